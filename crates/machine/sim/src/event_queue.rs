//! A priority queue of events ordered by time; events at the same time are ordered by insertion.
//!
//! Source: a binary heap with lazy deletion, as in textbooks on discrete-event simulation.

use crate::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Identifies an event, for cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    order: u64,
    slot: u32,
}

/// Events ordered by time, and by insertion at equal times.
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<(Time, EventId)>>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    planned: u64,
    live: usize,
}

/// A reusable slot for an event.
#[derive(Clone, Debug)]
struct Slot<T> {
    order: u64,
    event: Option<T>,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), planned: 0, live: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Schedules `event` at `at`.
    ///
    /// # Panics
    /// If 2^32 events are scheduled at once.
    pub fn push(&mut self, at: Time, event: T) -> EventId {
        let order = self.planned;
        self.planned += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { order, event: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 events at once")
        });
        self.slots[slot as usize] = Slot { order, event: Some(event) };
        let id = EventId { order, slot };
        self.heap.push(Reverse((at, id)));
        self.live += 1;
        id
    }

    /// Cancels an event and returns it; `None` if it has been popped or cancelled before.
    pub fn cancel(&mut self, id: EventId) -> Option<T> {
        let event = self.take(id)?;
        // Rebuild the heap when more than half of it is dead, so that a cancellation costs O(log n) amortized.
        if self.heap.len() > 64 && self.heap.len() > 2 * self.live {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, id))| is_live(slots, *id));
        }
        Some(event)
    }

    /// Removes and returns the next event and its time.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        while let Some(Reverse((at, id))) = self.heap.pop() {
            if let Some(event) = self.take(id) {
                return Some((at, event));
            }
        }
        None
    }

    /// Like [`pop`](Self::pop), if the event's time is not after `limit`.
    pub fn pop_until(&mut self, limit: Time) -> Option<(Time, T)> {
        if self.next_time()? <= limit { self.pop() } else { None }
    }

    /// Time of the next event.
    pub fn next_time(&mut self) -> Option<Time> {
        while let Some(Reverse((at, id))) = self.heap.peek() {
            if is_live(&self.slots, *id) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    /// Number of scheduled events.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns whether no event is scheduled.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    fn take(&mut self, id: EventId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|s| s.order == id.order)?;
        let event = slot.event.take()?;
        self.free.push(id.slot);
        self.live -= 1;
        Some(event)
    }
}

fn is_live<T>(slots: &[Slot<T>], id: EventId) -> bool {
    slots.get(id.slot as usize).is_some_and(|s| s.order == id.order && s.event.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum QueueOperation {
        Push(u64),
        Cancel(usize),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<QueueOperation>> {
        let step = prop_oneof![
            3 => (0u64..20).prop_map(QueueOperation::Push),
            1 => any::<usize>().prop_map(QueueOperation::Cancel),
            2 => Just(QueueOperation::Pop),
        ];
        proptest::collection::vec(step, 0..400)
    }

    proptest! {
        #[test]
        fn events_match_a_sorted_list(steps in steps()) {
            let mut queue = EventQueue::new();
            let mut list: Vec<(u64, usize, EventId)> = Vec::new();
            let mut ids = Vec::new();
            for (event, step) in steps.into_iter().enumerate() {
                match step {
                    QueueOperation::Push(at) => {
                        let id = queue.push(Time::from_ps(at), event);
                        ids.push(id);
                        list.push((at, event, id));
                    }
                    QueueOperation::Cancel(pick) if !ids.is_empty() => {
                        let id = ids[pick % ids.len()];
                        let planned = list.iter().position(|e| e.2 == id).map(|i| list.remove(i).1);
                        prop_assert_eq!(queue.cancel(id), planned);
                    }
                    QueueOperation::Cancel(_) => {}
                    QueueOperation::Pop => {
                        list.sort_by_key(|e| (e.0, e.1));
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        let expected = first.map(|(at, event, _)| (Time::from_ps(at), event));
                        prop_assert_eq!(queue.next_time(), expected.map(|e| e.0));
                        prop_assert_eq!(queue.pop(), expected);
                    }
                }
                prop_assert_eq!(queue.len(), list.len());
                prop_assert_eq!(queue.is_empty(), list.is_empty());
            }
        }
    }

    #[test]
    fn many_cancelled_events_do_not_stay_in_the_queue() {
        let mut queue = EventQueue::new();
        for turn in 0..100_000u64 {
            let id = queue.push(Time::from_ps(turn), turn);
            assert_eq!(queue.cancel(id), Some(turn));
        }
        assert!(queue.heap.len() <= 65 && queue.slots.len() == 1);
    }

    #[test]
    fn an_event_after_the_limit_stays() {
        let mut queue = EventQueue::new();
        queue.push(Time::from_ps(10), 'a');
        assert_eq!(queue.pop_until(Time::from_ps(9)), None);
        assert_eq!(queue.pop_until(Time::from_ps(10)), Some((Time::from_ps(10), 'a')));
    }
}
