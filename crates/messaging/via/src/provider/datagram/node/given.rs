//! Requests that the program was given: each is one, however often the datagrams come that ask for it.
//! Not those that wait to be given.
//! Source: the time that a connection is remembered after its end is TCP's (RFC 9293, TIME-WAIT).

use super::Peer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most that are remembered after they were answered; the oldest go first.
const MOST_ANSWERED: usize = 1 << 14;

/// Who asks, and his tag.
pub(super) type Asking = (Peer, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The program has it.
    Open,
    /// It was accepted or refused. What asks again is late, or was repeated by the network.
    Answered,
}

#[derive(Default)]
pub(super) struct Given {
    stages: BTreeMap<Asking, Stage>,
    /// The answered ones, and when they can be forgotten.
    ends: VecDeque<(Duration, Asking)>,
}

impl Given {
    pub(super) fn find(&self, asking: &Asking) -> Option<Stage> {
        self.stages.get(asking).copied()
    }

    pub(super) fn give(&mut self, asking: Asking) {
        self.stages.insert(asking, Stage::Open);
    }

    /// It was answered at `now`, and what asks for it can come for so long.
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
