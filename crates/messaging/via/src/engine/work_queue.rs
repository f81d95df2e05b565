//! A work queue: the descriptors posted to one side of a VI, in order, from posting to collection. It is private to the
//! process and protected by the VI's lock.
//!
//! Source: VIA, descriptor processing model.

use crate::descriptor::{Completion, Descriptor, Operation, RemoteSegment, Segment, Status};
use crate::protection::MemoryHandle;

/// The progress of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not yet passed to the provider (send), or not yet used by a message (receive).
    Queued,
    /// Passed to the provider with this token.
    Posted(u32),
    /// Complete but not collected.
    Done,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) operation: Operation,
    pub(crate) stage: Stage,
    pub(crate) status: Status,
    pub(crate) fence: bool,
    pub(crate) immediate: Option<u32>,
    /// The requested length, bytes; when done, the number of bytes moved.
    pub(crate) length: u32,
    pub(crate) context: u64,
    pub(crate) remote: RemoteSegment,
    /// The range of its segments in the arena, as wrapping positions.
    first_segment: u32,
    end_segment: u32,
    /// The memory region with the program's own form of the descriptor, if there is a completion callback.
    context_memory: MemoryHandle,
}

impl Entry {
    #[inline]
    fn completion(&self) -> Completion {
        Completion {
            operation: self.operation,
            status: self.status,
            length: self.length,
            immediate: if self.status.contains(Status::IMMEDIATE) { self.immediate } else { None },
            context: self.context,
        }
    }
}

const EMPTY: Entry = Entry {
    operation: Operation::Send,
    stage: Stage::Done,
    status: Status(0),
    fence: false,
    immediate: None,
    length: 0,
    context: 0,
    remote: RemoteSegment { address: 0, handle: MemoryHandle(0) },
    first_segment: 0,
    end_segment: 0,
    context_memory: MemoryHandle(0),
};

/// Positions cover the whole range of `u32` and are taken modulo the current capacity, a power of two. A queue starts
/// small and doubles on demand, so that a queue that is rarely deep stays in the L1 cache.
pub(crate) struct WorkQueue {
    entries: Box<[Entry]>,
    /// The oldest entry not collected.
    head: u32,
    /// The oldest queued entry.
    next: u32,
    /// The position of the next post.
    tail: u32,
    /// The oldest entry for which the completion callback has not been called.
    reported: u32,
    segments: Box<[Segment]>,
    segments_head: u32,
    segments_tail: u32,
    /// The maximum number of descriptors, and of segments per descriptor.
    depth: usize,
    max_segments: usize,
}

/// The initial capacity, descriptors.
const INITIAL_CAPACITY: usize = 64;
const NO_SEGMENT: Segment = Segment { address: 0, handle: MemoryHandle(0), length: 0 };

impl WorkQueue {
    /// Creates a queue of `depth` descriptors (rounded up to a power of two) with up to `max_segments` segments each.
    pub(crate) fn new(depth: u32, max_segments: u32) -> WorkQueue {
        let (depth, max_segments) = (depth.next_power_of_two() as usize, max_segments as usize);
        WorkQueue {
            entries: vec![EMPTY; depth.min(INITIAL_CAPACITY)].into_boxed_slice(),
            head: 0,
            next: 0,
            tail: 0,
            reported: 0,
            segments: vec![NO_SEGMENT; 2 * INITIAL_CAPACITY].into_boxed_slice(),
            segments_head: 0,
            segments_tail: 0,
            depth,
            max_segments,
        }
    }

    #[cold]
    fn grow_entries(&mut self) {
        let mut grown = vec![EMPTY; self.entries.len() * 2].into_boxed_slice();
        let mut position = self.head;
        while position != self.tail {
            grown[position as usize & (grown.len() - 1)] = self.entries[self.index(position)];
            position = position.wrapping_add(1);
        }
        self.entries = grown;
    }

    /// Doubles the arena. Contiguous segments stay contiguous, because the new size is a multiple of the old one.
    #[cold]
    fn grow_segments(&mut self) {
        let (old, capacity) = (self.segments.len(), self.segments.len() * 2);
        let mut grown = vec![NO_SEGMENT; capacity].into_boxed_slice();
        let mut position = self.segments_head;
        while position != self.segments_tail {
            grown[position as usize % capacity] = self.segments[position as usize % old];
            position = position.wrapping_add(1);
        }
        self.segments = grown;
    }

    /// The maximum size of the arena, segments.
    fn max_arena(&self) -> usize {
        (self.depth * 2 + self.max_segments * 2).next_power_of_two()
    }

    #[inline]
    fn index(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }

    /// Whether there is no posted descriptor left to collect.
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether there is room for another descriptor with `segments` segments. Grows the queue if necessary.
    #[inline]
    pub(crate) fn has_space(&mut self, segments: usize) -> bool {
        let queued = self.tail.wrapping_sub(self.head) as usize;
        if queued == self.entries.len() {
            if queued == self.depth {
                return false;
            }
            self.grow_entries();
        }
        let used = self.segments_tail.wrapping_sub(self.segments_head) as usize;
        // Twice the number, because segments are stored contiguously and may have to skip the end of the arena.
        while used + 2 * segments > self.segments.len() {
            if self.segments.len() >= self.max_arena() {
                return false;
            }
            self.grow_segments();
        }
        true
    }

    /// The maximum number of descriptors.
    pub(crate) fn capacity(&self) -> usize {
        self.depth
    }

    /// Whether an entry is queued.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.next != self.tail
    }

    /// Whether the provider has an incomplete entry.
    pub(crate) fn has_posted(&self) -> bool {
        let mut position = self.head;
        while position != self.next {
            if matches!(self.entries[self.index(position)].stage, Stage::Posted(_)) {
                return true;
            }
            position = position.wrapping_add(1);
        }
        false
    }

    /// Whether the provider has an incomplete RDMA read.
    pub(crate) fn has_posted_read(&self) -> bool {
        let mut position = self.head;
        while position != self.next {
            let entry = &self.entries[self.index(position)];
            if entry.operation == Operation::RdmaRead && matches!(entry.stage, Stage::Posted(_)) {
                return true;
            }
            position = position.wrapping_add(1);
        }
        false
    }

    /// Appends a descriptor at `stage`. If an entry is queued, all later ones must be too. Returns `false` if there is
    /// no room.
    #[inline]
    pub(crate) fn push(
        &mut self,
        descriptor: &Descriptor<'_>,
        length: u32,
        stage: Stage,
        status: Status,
    ) -> bool {
        self.has_space(descriptor.segments.len()) && self.push_reserved(descriptor, length, stage, status)
    }

    /// Like `push`, if `has_space` has just returned true.
    #[inline]
    pub(crate) fn push_reserved(
        &mut self,
        descriptor: &Descriptor<'_>,
        length: u32,
        stage: Stage,
        status: Status,
    ) -> bool {
        let (first, end) = match stage {
            // The segments of a complete entry are never read.
            Stage::Done => (self.segments_tail, self.segments_tail),
            _ => match self.store_segments(descriptor.segments) {
                Some(stored) => stored,
                None => return false,
            },
        };
        let index = self.index(self.tail);
        let Some(entry) = self.entries.get_mut(index) else { return false };
        entry.operation = descriptor.operation;
        entry.stage = stage;
        entry.status = status;
        entry.length = length;
        entry.context = descriptor.context;
        entry.first_segment = first;
        entry.end_segment = end;
        entry.immediate = descriptor.immediate;
        entry.context_memory = descriptor.context_memory;
        if stage != Stage::Done {
            // Only incomplete entries need these fields.
            entry.fence = descriptor.fence;
            entry.remote = descriptor.remote;
        }
        self.tail = self.tail.wrapping_add(1);
        if stage != Stage::Queued {
            debug_assert_eq!(self.next.wrapping_add(1), self.tail);
            self.next = self.tail;
        }
        true
    }

    #[inline]
    fn store_segments(&mut self, segments: &[Segment]) -> Option<(u32, u32)> {
        let capacity = self.segments.len() as u32;
        let count = segments.len() as u32;
        let mut first = self.segments_tail;
        // The size is a power of two; a division would take longer than the rest of this function.
        let index = first & (capacity - 1);
        if index + count > capacity {
            // Segments are stored contiguously: skip the end of the arena.
            first = first.wrapping_add(capacity - index);
        }
        let end = first.wrapping_add(count);
        if end.wrapping_sub(self.segments_head) > capacity {
            return None;
        }
        let index = (first & (capacity - 1)) as usize;
        match (segments, self.segments.get_mut(index)) {
            ([only], Some(held)) => *held = *only,
            _ => self.segments[index..index + segments.len()].copy_from_slice(segments),
        }
        self.segments_tail = end;
        Some((first, end))
    }

    /// The oldest queued entry.
    #[inline]
    pub(crate) fn queued(&self) -> Option<&Entry> {
        self.has_queued().then(|| &self.entries[self.index(self.next)])
    }

    /// The segments of the oldest queued entry.
    #[inline]
    pub(crate) fn queued_segments(&self) -> &[Segment] {
        match self.queued() {
            Some(entry) => self.segments_of(entry),
            None => &[],
        }
    }

    /// The segments of all queued entries that a message can use, the oldest first.
    pub(crate) fn all_queued_segments(&self) -> impl Iterator<Item = &[Segment]> {
        let count = self.tail.wrapping_sub(self.next);
        (0..count)
            .map(|ahead| &self.entries[self.index(self.next.wrapping_add(ahead))])
            .filter(|entry| !entry.status.is_error())
            .map(|entry| self.segments_of(entry))
    }

    #[inline]
    fn segments_of(&self, entry: &Entry) -> &[Segment] {
        let index = entry.first_segment as usize & (self.segments.len() - 1);
        let count = entry.end_segment.wrapping_sub(entry.first_segment) as usize;
        &self.segments[index..index + count]
    }

    /// The incomplete entry posted with `token`, and its segments.
    pub(crate) fn posted(&self, token: u32) -> Option<(&Entry, &[Segment])> {
        let mut position = self.head;
        while position != self.next {
            let entry = &self.entries[self.index(position)];
            if entry.stage == Stage::Posted(token) {
                return Some((entry, self.segments_of(entry)));
            }
            position = position.wrapping_add(1);
        }
        None
    }

    /// Moves the oldest queued entry to `stage`.
    #[inline]
    pub(crate) fn advance(&mut self, stage: Stage, change: impl FnOnce(&mut Entry)) {
        debug_assert!(self.has_queued() && stage != Stage::Queued);
        let index = self.index(self.next);
        let entry = &mut self.entries[index];
        entry.stage = stage;
        change(entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Completes all posted entries up to `token`: `token` with `status`, the others successfully. Returns the number
    /// of completed entries.
    pub(crate) fn complete_to(&mut self, token: u32, status: Status) -> u32 {
        let mut count = 0;
        let mut position = self.head;
        while position != self.next {
            let index = self.index(position);
            let entry = &mut self.entries[index];
            if let Stage::Posted(posted) = entry.stage {
                if token.wrapping_sub(posted) > u32::MAX / 2 {
                    break;
                }
                entry.stage = Stage::Done;
                entry.status = if posted == token { status.with(Status::DONE) } else { Status::DONE };
                if entry.status.is_error() {
                    entry.length = 0;
                }
                count += 1;
            }
            position = position.wrapping_add(1);
        }
        count
    }

    /// Completes all entries: posted ones with `posted`, queued ones as flushed. Returns the number of completed
    /// entries.
    pub(crate) fn flush(&mut self, posted: Status) -> u32 {
        let mut count = 0;
        let mut position = self.head;
        while position != self.tail {
            let index = self.index(position);
            let entry = &mut self.entries[index];
            let status = match entry.stage {
                Stage::Queued => Some(Status::FLUSHED),
                Stage::Posted(_) => Some(posted),
                Stage::Done => None,
            };
            if let Some(status) = status {
                (entry.stage, entry.status, entry.length) = (Stage::Done, status.with(Status::DONE), 0);
                count += 1;
            }
            position = position.wrapping_add(1);
        }
        self.next = self.tail;
        count
    }

    /// Starts calling the completion callback, for entries posted from now on.
    pub(crate) fn begin_reporting(&mut self) {
        self.reported = self.tail;
    }

    /// The oldest complete entry for which the callback has not been called, and its context memory. Each entry is returned once,
    /// in order.
    #[inline]
    pub(crate) fn take_unreported(&mut self) -> Option<(Completion, MemoryHandle)> {
        let entry = &self.entries[self.index(self.reported)];
        if self.reported == self.tail || entry.stage != Stage::Done {
            return None;
        }
        let unreported = (entry.completion(), entry.context_memory);
        self.reported = self.reported.wrapping_add(1);
        Some(unreported)
    }

    /// Removes the oldest entry if it is complete.
    #[inline]
    pub(crate) fn collect(&mut self) -> Option<Completion> {
        if self.head == self.next {
            return None;
        }
        let entry = &self.entries[self.index(self.head)];
        if entry.stage != Stage::Done {
            return None;
        }
        let completion = entry.completion();
        self.segments_head = entry.end_segment;
        self.head = self.head.wrapping_add(1);
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_grows_keeps_every_descriptor_with_its_segments_in_order() {
        let mut queue = WorkQueue::new(1024, 252);
        let segments: Vec<Segment> =
            (0..252).map(|index| Segment { address: index, handle: MemoryHandle(1), length: 1 }).collect();
        let (mut posted, mut collected) = (0u64, 0u64);
        // Alternately deep and nearly empty, so that the queue grows at every position of the ring. Fewer bursts for
        // Miri, which is slow.
        let bursts: &[u32] = if cfg!(miri) { &[3, 70, 1, 40] } else { &[3, 70, 500, 1, 1000, 64, 900] };
        for burst in bursts {
            for _ in 0..*burst {
                let count = (posted % 3 + 1) as usize;
                let descriptor = Descriptor::receive(&segments[count..2 * count]).with_context(posted);
                if queue.push(&descriptor, count as u32, Stage::Queued, Status(0)) {
                    posted += 1;
                }
            }
            while collected + 2 < posted {
                let (context, held) =
                    (queue.queued().map(|entry| entry.context), queue.queued_segments().to_vec());
                assert_eq!(context, Some(collected));
                let count = (collected % 3 + 1) as usize;
                assert_eq!(held, segments[count..2 * count]);
                queue.advance(Stage::Done, |entry| entry.status = Status::DONE);
                assert_eq!(queue.collect().map(|done| done.context), Some(collected));
                collected += 1;
            }
        }
        assert!(collected > if cfg!(miri) { 100 } else { 2000 });
    }

    #[test]
    fn a_queue_accepts_exactly_its_number_of_descriptors() {
        let mut queue = WorkQueue::new(1024, 252);
        let segment = [NO_SEGMENT];
        let mut push = || queue.push(&Descriptor::receive(&segment), 0, Stage::Queued, Status(0));
        assert!((0..1024).all(|_| push()) && !push());
    }

    /// An empty queue whose positions have advanced by `count`.
    fn queue_after(count: u32) -> WorkQueue {
        let queue = WorkQueue::new(1024, 4);
        let (head, next, tail, reported) = (count, count, count, count);
        WorkQueue { head, next, tail, reported, segments_head: count, segments_tail: count, ..queue }
    }

    #[test]
    fn positions_segments_and_tokens_stay_correct_when_their_counts_wrap() {
        for edge in [1u32 << 31, 0] {
            let first = edge.wrapping_sub(100);
            let mut queue = queue_after(first);
            // Deep enough to grow while the positions wrap.
            for index in 0..200u32 {
                let segments =
                    vec![Segment { address: u64::from(index), handle: MemoryHandle(1), length: 1 }; 3];
                let descriptor = Descriptor::send(&segments).with_context(u64::from(index));
                let stage = Stage::Posted(first.wrapping_add(index));
                assert!(queue.push(&descriptor, 3, stage, Status(0)), "{index} before {edge}");
            }
            let (_, held) =
                queue.posted(first.wrapping_add(150)).expect("posted under a token beyond the edge");
            assert!(held.len() == 3 && held.iter().all(|segment| segment.address == 150));
            assert_eq!(queue.complete_to(first.wrapping_add(120), Status::DONE), 121);
            let collected: Vec<u64> =
                std::iter::from_fn(|| queue.collect()).map(|done| done.context).collect();
            assert_eq!(collected, (0..=120).collect::<Vec<u64>>());
            assert_eq!(queue.flush(Status::FLUSHED), 79);
            assert_eq!(std::iter::from_fn(|| queue.collect()).count(), 79);
            assert!(queue.is_empty());
        }
    }
}
