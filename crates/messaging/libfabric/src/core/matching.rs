//! Matches messages with receives: a list of posted receives, and a list of messages that arrived before their receive.
//!
//! A message goes to the oldest receive that matches it, and a receive takes the oldest message that matches it.
//!
//! Source: fi_tagged(3): a receive matches if source and tag are equal, except for the bits that it ignores.

use crate::abi::constants::ADDR_UNSPEC;
use std::collections::VecDeque;

/// The messages that a receive matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The number of the source in the address vector; `ADDR_UNSPEC` matches every source.
    pub(crate) source: u64,
    pub(crate) tag: u64,
    /// Bits of the tag that need not be equal.
    pub(crate) ignore: u64,
}

impl Pattern {
    #[inline]
    fn matches(&self, source: u64, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0 && (self.source == ADDR_UNSPEC || self.source == source)
    }
}

/// A message that no posted receive matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived<M> {
    /// The connection on which the message arrived, until the connection ends.
    pub(crate) connection: Option<usize>,
    /// The number of the source; `ADDR_NOTAVAIL` if the address vector does not have it.
    pub(crate) source: u64,
    pub(crate) tag: u64,
    pub(crate) message: M,
}

/// The receives `R` and messages `M` of one kind, tagged or not.
pub(crate) struct MatchList<R, M> {
    posted: VecDeque<(Pattern, R)>,
    unexpected: VecDeque<Arrived<M>>,
}

impl<R, M> Default for MatchList<R, M> {
    fn default() -> Self {
        Self { posted: VecDeque::new(), unexpected: VecDeque::new() }
    }
}

impl<R, M> MatchList<R, M> {
    /// Removes and returns the oldest message that a new receive matches.
    pub(crate) fn take(&mut self, pattern: &Pattern) -> Option<Arrived<M>> {
        let place =
            self.unexpected.iter().position(|arrived| pattern.matches(arrived.source, arrived.tag))?;
        self.unexpected.remove(place)
    }

    /// The oldest message that a pattern matches.
    pub(crate) fn peek(&self, pattern: &Pattern) -> Option<&Arrived<M>> {
        self.unexpected.iter().find(|arrived| pattern.matches(arrived.source, arrived.tag))
    }

    /// Adds a receive that no message matches.
    pub(crate) fn post(&mut self, pattern: Pattern, receive: R) {
        self.posted.push_back((pattern, receive));
    }

    /// Removes and returns the oldest receive that matches a new message.
    #[inline]
    pub(crate) fn arrive(&mut self, source: u64, tag: u64) -> Option<(Pattern, R)> {
        let place = self.posted.iter().position(|(pattern, _)| pattern.matches(source, tag))?;
        self.posted.remove(place)
    }

    /// Puts a receive back as the oldest.
    pub(crate) fn put_back(&mut self, pattern: Pattern, receive: R) {
        self.posted.push_front((pattern, receive));
    }

    /// Adds a message that no receive matches.
    pub(crate) fn keep(&mut self, arrived: Arrived<M>) {
        self.unexpected.push_back(arrived);
    }

    /// Removes the oldest receive for which `is_meant` is true.
    pub(crate) fn withdraw(&mut self, is_meant: impl Fn(&Pattern, &R) -> bool) -> Option<(Pattern, R)> {
        let place = self.posted.iter().position(|(pattern, receive)| is_meant(pattern, receive))?;
        self.posted.remove(place)
    }

    /// All messages that no posted receive matches.
    pub(crate) fn unexpected(&mut self) -> &mut VecDeque<Arrived<M>> {
        &mut self.unexpected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum QueueOperation {
        Post(Pattern),
        Arrive { source: u64, tag: u64 },
        Cancel(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<QueueOperation>> {
        let source = prop_oneof![Just(ADDR_UNSPEC), 0u64..3];
        let post = (source, 0u64..8, prop_oneof![Just(0u64), Just(1), Just(6), Just(u64::MAX)])
            .prop_map(|(source, tag, ignore)| QueueOperation::Post(Pattern { source, tag, ignore }));
        let arrive = (prop_oneof![Just(ADDR_UNSPEC), 0u64..3], 0u64..8)
            .prop_map(|(source, tag)| QueueOperation::Arrive { source, tag });
        prop::collection::vec(
            prop_oneof![4 => post, 4 => arrive, 1 => (0usize..40).prop_map(QueueOperation::Cancel)],
            0..80,
        )
    }

    /// The rule of the manual page, written with complete histories: pairs of step numbers.
    fn reference(steps: &[QueueOperation]) -> Vec<(usize, usize)> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        let mut cancelled = Vec::new();
        for (now, step) in steps.iter().enumerate() {
            let fits = |receive: usize, message: usize| match (&steps[receive], &steps[message]) {
                (QueueOperation::Post(pattern), QueueOperation::Arrive { source, tag }) => {
                    (pattern.source == ADDR_UNSPEC || pattern.source == *source)
                        && (pattern.tag | pattern.ignore) == (*tag | pattern.ignore)
                }
                _ => false,
            };
            let is_free = |step: usize| {
                !cancelled.contains(&step)
                    && pairs.iter().all(|&(receive, message)| receive != step && message != step)
            };
            let pair = match step {
                QueueOperation::Post(_) => (0..now)
                    .find(|&message| is_free(message) && fits(now, message))
                    .map(|message| (now, message)),
                QueueOperation::Arrive { .. } => (0..now)
                    .find(|&receive| is_free(receive) && fits(receive, now))
                    .map(|receive| (receive, now)),
                QueueOperation::Cancel(receive) => {
                    if *receive < now
                        && matches!(steps[*receive], QueueOperation::Post(_))
                        && is_free(*receive)
                    {
                        cancelled.push(*receive);
                    }
                    None
                }
            };
            pairs.extend(pair);
        }
        pairs
    }

    proptest! {
        #[test]
        fn receives_and_messages_are_paired_as_the_manual_page_says(steps in steps()) {
            let mut list = MatchList::<usize, usize>::default();
            let mut pairs = Vec::new();
            for (now, step) in steps.iter().enumerate() {
                match *step {
                    QueueOperation::Post(pattern) => {
                        let peeked = list.peek(&pattern).map(|arrived| arrived.message);
                        match list.take(&pattern) {
                            Some(arrived) => {
                                prop_assert_eq!(peeked, Some(arrived.message));
                                pairs.push((now, arrived.message));
                            }
                            None => list.post(pattern, now),
                        }
                    }
                    QueueOperation::Arrive { source, tag } => match list.arrive(source, tag) {
                        Some((_, receive)) => pairs.push((receive, now)),
                        None => list.keep(Arrived { connection: None, source, tag, message: now }),
                    },
                    QueueOperation::Cancel(receive) => drop(list.withdraw(|_, &posted| posted == receive)),
                }
            }
            prop_assert_eq!(pairs, reference(&steps));
        }
    }
}
