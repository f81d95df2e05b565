//! A work queue: the descriptors posted to one side of a VI, in order, from post to collection.
//! Not a shared structure: it is private to the process, under the VI's lock.
//! Source: VIA, descriptor processing model.

use crate::descriptor::{Completion, Descriptor, Operation, RemoteSegment, Segment, Status};

/// How far an entry has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not handed to the provider (send), not used by a message (receive).
    Queued,
    /// Handed to the provider under a token.
    Posted(u32),
    /// Complete, not collected.
    Done,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) operation: Operation,
    pub(crate) stage: Stage,
    pub(crate) status: Status,
    pub(crate) fence: bool,
    pub(crate) immediate: Option<u32>,
    /// Bytes asked for; once done, bytes moved.
    pub(crate) length: u32,
    pub(crate) context: u64,
    pub(crate) remote: RemoteSegment,
    /// Where its segments are in the arena, as running numbers.
    first_segment: u32,
    end_segment: u32,
}

const EMPTY: Entry = Entry {
    operation: Operation::Send,
    stage: Stage::Done,
    status: Status(0),
    fence: false,
    immediate: None,
    length: 0,
    context: 0,
    remote: RemoteSegment { address: 0, handle: crate::memory::MemoryHandle(0) },
    first_segment: 0,
    end_segment: 0,
};

/// Positions run over the whole range of `u32` and are taken modulo the capacity, a power of two.
pub(crate) struct WorkQueue {
    entries: Box<[Entry]>,
    /// Oldest entry not collected.
    head: u32,
    /// Oldest entry that is queued.
    next: u32,
    /// Where the next post goes.
    tail: u32,
    segments: Box<[Segment]>,
    segments_head: u32,
    segments_tail: u32,
}

impl WorkQueue {
    /// A queue of `depth` descriptors (rounded up to a power of two) with up to `most_segments` segments each.
    pub(crate) fn new(depth: u32, most_segments: u32) -> WorkQueue {
        let depth = depth.next_power_of_two();
        let room = (depth * 2 + most_segments * 2).next_power_of_two();
        let no_segment = Segment { address: 0, handle: crate::memory::MemoryHandle(0), length: 0 };
        WorkQueue {
            entries: vec![EMPTY; depth as usize].into_boxed_slice(),
            head: 0,
            next: 0,
            tail: 0,
            segments: vec![no_segment; room as usize].into_boxed_slice(),
            segments_head: 0,
            segments_tail: 0,
        }
    }

    #[inline]
    fn place(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }

    /// Nothing posted that is not collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether there is room for another descriptor with that many segments.
    #[inline]
    pub(crate) fn has_room(&self, segments: usize) -> bool {
        let used = self.segments_tail.wrapping_sub(self.segments_head) as usize;
        // Twice: the segments stay in one piece, and may have to skip what is left before the arena's end.
        self.tail.wrapping_sub(self.head) as usize != self.entries.len()
            && used + 2 * segments <= self.segments.len()
    }

    /// How many descriptors it holds.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Whether an entry is queued.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.next != self.tail
    }

    /// Whether something was handed to the provider and is not complete.
    pub(crate) fn has_posted(&self) -> bool {
        let mut position = self.head;
        while position != self.next {
            if matches!(self.entries[self.place(position)].stage, Stage::Posted(_)) {
                return true;
            }
            position = position.wrapping_add(1);
        }
        false
    }

    /// Whether an RDMA read was handed to the provider and is not complete.
    pub(crate) fn has_posted_read(&self) -> bool {
        let mut position = self.head;
        while position != self.next {
            let entry = &self.entries[self.place(position)];
            if entry.operation == Operation::RdmaRead && matches!(entry.stage, Stage::Posted(_)) {
                return true;
            }
            position = position.wrapping_add(1);
        }
        false
    }

    /// Adds a descriptor at `stage` (queued ones must not be followed by others). `false`: no room.
    #[inline]
    pub(crate) fn push(
        &mut self,
        descriptor: &Descriptor<'_>,
        length: u32,
        stage: Stage,
        status: Status,
    ) -> bool {
        if self.tail.wrapping_sub(self.head) as usize == self.entries.len() {
            return false;
        }
        let (first, end) = match stage {
            // Nobody asks for the segments of a complete entry.
            Stage::Done => (self.segments_tail, self.segments_tail),
            _ => match self.store_segments(descriptor.segments) {
                Some(stored) => stored,
                None => return false,
            },
        };
        let place = self.place(self.tail);
        self.entries[place] = Entry {
            operation: descriptor.operation,
            stage,
            status,
            fence: descriptor.fence,
            immediate: descriptor.immediate,
            length,
            context: descriptor.context,
            remote: descriptor.remote,
            first_segment: first,
            end_segment: end,
        };
        self.tail = self.tail.wrapping_add(1);
        if stage != Stage::Queued {
            debug_assert_eq!(self.next.wrapping_add(1), self.tail);
            self.next = self.tail;
        }
        true
    }

    #[inline]
    fn store_segments(&mut self, segments: &[Segment]) -> Option<(u32, u32)> {
        let room = self.segments.len() as u32;
        let count = segments.len() as u32;
        let mut first = self.segments_tail;
        let place = first % room;
        if place + count > room {
            // They stay in one piece: skip what is left before the end.
            first = first.wrapping_add(room - place);
        }
        let end = first.wrapping_add(count);
        if end.wrapping_sub(self.segments_head) > room {
            return None;
        }
        let place = (first % room) as usize;
        self.segments[place..place + segments.len()].copy_from_slice(segments);
        self.segments_tail = end;
        Some((first, end))
    }

    /// The oldest queued entry.
    #[inline]
    pub(crate) fn queued(&self) -> Option<&Entry> {
        self.has_queued().then(|| &self.entries[self.place(self.next)])
    }

    /// Its segments.
    #[inline]
    pub(crate) fn queued_segments(&self) -> &[Segment] {
        match self.queued() {
            Some(entry) => self.segments_of(entry),
            None => &[],
        }
    }

    /// The segments of every queued entry, oldest first.
    pub(crate) fn all_queued_segments(&self) -> impl Iterator<Item = &[Segment]> {
        let count = self.tail.wrapping_sub(self.next);
        (0..count).map(|ahead| self.segments_of(&self.entries[self.place(self.next.wrapping_add(ahead))]))
    }

    #[inline]
    fn segments_of(&self, entry: &Entry) -> &[Segment] {
        let place = entry.first_segment as usize % self.segments.len();
        let count = entry.end_segment.wrapping_sub(entry.first_segment) as usize;
        &self.segments[place..place + count]
    }

    /// The entry posted under `token`, if it is not complete, and its segments.
    pub(crate) fn posted(&self, token: u32) -> Option<(&Entry, &[Segment])> {
        let mut position = self.head;
        while position != self.next {
            let entry = &self.entries[self.place(position)];
            if entry.stage == Stage::Posted(token) {
                return Some((entry, self.segments_of(entry)));
            }
            position = position.wrapping_add(1);
        }
        None
    }

    /// The oldest queued entry moves on to `stage`.
    #[inline]
    pub(crate) fn advance(&mut self, stage: Stage, change: impl FnOnce(&mut Entry)) {
        debug_assert!(self.has_queued() && stage != Stage::Queued);
        let place = self.place(self.next);
        let entry = &mut self.entries[place];
        entry.stage = stage;
        change(entry);
        self.next = self.next.wrapping_add(1);
    }

    /// All entries posted up to `token` are complete, that one with `status`. Says how many became complete.
    pub(crate) fn complete_to(&mut self, token: u32, status: Status) -> u32 {
        let mut count = 0;
        let mut position = self.head;
        while position != self.next {
            let place = self.place(position);
            let entry = &mut self.entries[place];
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

    /// Completes everything: what the provider had with `posted`, what was queued as flushed. Says how many became complete.
    pub(crate) fn flush(&mut self, posted: Status) -> u32 {
        let mut count = 0;
        let mut position = self.head;
        while position != self.tail {
            let place = self.place(position);
            let entry = &mut self.entries[place];
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

    /// Takes the oldest entry out, if it is complete.
    #[inline]
    pub(crate) fn collect(&mut self) -> Option<Completion> {
        if self.head == self.next {
            return None;
        }
        let entry = &self.entries[self.place(self.head)];
        if entry.stage != Stage::Done {
            return None;
        }
        let completion = Completion {
            operation: entry.operation,
            status: entry.status,
            length: entry.length,
            immediate: if entry.status.contains(Status::IMMEDIATE) { entry.immediate } else { None },
            context: entry.context,
        };
        self.segments_head = entry.end_segment;
        self.head = self.head.wrapping_add(1);
        Some(completion)
    }
}
