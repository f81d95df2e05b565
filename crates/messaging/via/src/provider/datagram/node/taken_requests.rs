//! Requests that the program has taken. Duplicate datagrams of a request are recognized, so that it is reported once.
//!
//! Source: answered requests are remembered like TCP connections in TIME-WAIT (RFC 9293).

use super::Peer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The maximum number of answered requests to remember. The oldest are dropped first.
const MAX_ANSWERED: usize = 1 << 14;

/// The peer and its tag.
pub(super) type RequestKey = (Peer, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The program has taken the request and not answered it.
    Open,
    /// The request was accepted or rejected. Further copies of it are late or duplicated.
    Answered,
}

#[derive(Default)]
pub(super) struct TakenRequests {
    stages: BTreeMap<RequestKey, Stage>,
    /// Answered requests with the time at which they can be dropped.
    ends: VecDeque<(Duration, RequestKey)>,
}

impl TakenRequests {
    pub(super) fn find(&self, asking: &RequestKey) -> Option<Stage> {
        self.stages.get(asking).copied()
    }

    pub(super) fn give(&mut self, asking: RequestKey) {
        self.stages.insert(asking, Stage::Open);
    }

    /// Marks a request as answered at `now`. Copies of it can arrive for the time `longest`.
    pub(super) fn answer(&mut self, asking: RequestKey, now: Duration, longest: Duration) {
        while let Some((end, oldest)) = self.ends.front().copied()
            && (end <= now || self.ends.len() >= MAX_ANSWERED)
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
    fn answered_requests_are_remembered_for_a_limited_time_and_number() {
        let (mut taken_requests, mut now) = (TakenRequests::default(), Duration::ZERO);
        let (asking, longest) = (|tag| (Peer::Hardware([0; 6]), tag), Duration::from_secs(20));
        taken_requests.give(asking(0));
        for tag in 1..=3 * MAX_ANSWERED as u64 {
            taken_requests.give(asking(tag));
            taken_requests.answer(asking(tag), now, longest);
            assert_eq!(taken_requests.find(&asking(tag)), Some(Stage::Answered));
        }
        assert_eq!(
            (taken_requests.stages.len(), taken_requests.ends.len()),
            (MAX_ANSWERED + 1, MAX_ANSWERED)
        );
        now += longest;
        taken_requests.answer(asking(u64::MAX), now, longest);
        assert_eq!((taken_requests.stages.len(), taken_requests.find(&asking(0))), (2, Some(Stage::Open)));
    }
}
