//! Requests that the program has taken. Duplicate datagrams of a request are recognized, so that it is reported once.
//!
//! Source: answered requests are remembered like TCP connections in TIME-WAIT (RFC 9293).

use super::Peer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The maximum number of answered requests to remember. The oldest are dropped first.
const MOST_ANSWERED: usize = 1 << 14;

/// The peer and its tag.
pub(super) type Asking = (Peer, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The program has taken the request and not answered it.
    Open,
    /// The request was accepted or rejected. Further copies of it are late or duplicated.
    Answered,
}

#[derive(Default)]
pub(super) struct Given {
    stages: BTreeMap<Asking, Stage>,
    /// Answered requests with the time at which they can be dropped.
    ends: VecDeque<(Duration, Asking)>,
}

impl Given {
    pub(super) fn find(&self, asking: &Asking) -> Option<Stage> {
        self.stages.get(asking).copied()
    }

    pub(super) fn give(&mut self, asking: Asking) {
        self.stages.insert(asking, Stage::Open);
    }

    /// Marks a request as answered at `now`. Copies of it can arrive for the time `longest`.
    pub(super) fn answer(&mut self, asking: Asking, now: Duration, longest: Duration) {
        while let Some((end, oldest)) = self.ends.front().copied()
            && (end <= now || self.ends.len() >= MOST_ANSWERED)
        {
            self.ends.pop_front();
            self.stages.remove(&oldest);
        }
        self.stages.insert(asking, Stage::Answered);
        self.ends.push_back((now + longest, asking));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_known_for_its_time_and_no_more_than_so_many() {
        let (mut given, mut now) = (Given::default(), Duration::ZERO);
        let (asking, longest) = (|tag| (Peer::Hardware([0; 6]), tag), Duration::from_secs(20));
        given.give(asking(0));
        for tag in 1..=3 * MOST_ANSWERED as u64 {
            given.give(asking(tag));
            given.answer(asking(tag), now, longest);
            assert_eq!(given.find(&asking(tag)), Some(Stage::Answered));
        }
        assert_eq!((given.stages.len(), given.ends.len()), (MOST_ANSWERED + 1, MOST_ANSWERED));
        now += longest;
        given.answer(asking(u64::MAX), now, longest);
        assert_eq!((given.stages.len(), given.find(&asking(0))), (2, Some(Stage::Open)));
    }
}
