//! A calendar of a server's reserved time in buckets. Requests that arrive slightly out of time order are served in the
//! first free interval.
//!
//! Source: buckets of capacity replace the queue in Sniper's "history list" contention model.

use crate::{Duration, Time};

/// Number of buckets: the range between the oldest and the newest time that is served exactly.
const BUCKETS: usize = 128;

/// The state of one bucket. Offsets and lengths are picoseconds within the bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Low half of the bucket's number. A different number means that the entry is stale, so the bucket is empty.
    number: u32,
    /// Start of the first work in it.
    begin: u32,
    /// End of the last work in it. In a full bucket: the distance to the next bucket that may have free time, in
    /// buckets.
    end: u32,
    /// Time reserved in it; at most `end - begin` in a bucket that is not full.
    used: u32,
}

/// The time of a server that processes one request after another at full rate. Requests in time order are served first
/// come, first served, exactly. A request may have an earlier time than requests already served, because cores are
/// simulated one after another, a quantum each. It receives time that is still free. In a partially reserved bucket, it
/// runs at the remaining rate.
///
/// A bucket never provides more time than it has. The calendar covers 128 buckets; a request older than these is served
/// as if it had arrived at their start.
#[derive(Clone, Debug)]
pub struct Calendar {
    buckets: Box<[Bucket; BUCKETS]>,
    /// Base-2 logarithm of a bucket's width in picoseconds.
    shift: u32,
    /// The newest bucket with an arrival or with reserved time.
    newest_bucket: u64,
    /// The first bucket that can still be reserved.
    first_free: u64,
    /// The latest arrival.
    latest_arrival: u64,
}

/// The result of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// End of the work.
    pub end: Time,
    /// Delay compared with an idle server.
    pub waited: Duration,
}

impl Calendar {
    /// Creates a calendar with buckets of `bucket`, rounded up to a power of two of picoseconds (at most 2^31 ps, about
    /// 2 ms).
    pub fn new(bucket: Duration) -> Self {
        let shift = bucket.ps().clamp(1, 1 << 31).next_power_of_two().trailing_zeros();
        Self {
            buckets: Box::new([Bucket::default(); BUCKETS]),
            shift,
            newest_bucket: 0,
            first_free: 0,
            latest_arrival: 0,
        }
    }

    /// Width of a bucket.
    pub const fn bucket(&self) -> Duration {
        Duration::from_ps(1 << self.shift)
    }

    /// The span before the latest arrival in which a request is still served at its own time.
    pub const fn horizon(&self) -> Duration {
        Duration::from_ps((BUCKETS as u64 - 1) << self.shift)
    }

    /// Reserves `work` of the server's time, the first that is free from `at` on.
    #[inline]
    pub fn take(&mut self, at: Time, work: Duration) -> Served {
        self.take_recording(at, work, &mut |_, _, _| {})
    }

    /// Like [`take`](Self::take). Calls `note` for each bucket from which time was reserved, with its start, its width
    /// and the reserved time, picoseconds; for work longer than all buckets, with its start and duration.
    #[inline]
    pub(crate) fn take_recording(
        &mut self,
        at: Time,
        work: Duration,
        note: &mut impl FnMut(u64, u64, u64),
    ) -> Served {
        let (at, work) = (at.ps(), work.ps());
        let end = match self.append(at, work) {
            Some(end) => {
                note(at >> self.shift << self.shift, 1 << self.shift, work);
                end
            }
            None => self.serve(at, work, note),
        };
        let idle = at.saturating_add(work);
        Served { end: Time::from_ps(end), waited: Duration::from_ps(end.saturating_sub(idle)) }
    }

    /// Fast path for work that arrives in time order and ends in the bucket of its arrival, which is the common case.
    /// `None` if the general path is needed.
    #[inline]
    fn append(&mut self, at: u64, work: u64) -> Option<u64> {
        let width = 1u64 << self.shift;
        let (number, offset) = (at >> self.shift, at & (width - 1));
        if at < self.latest_arrival || number < self.first_free || work.wrapping_sub(1) >= width {
            return None;
        }
        let bucket = &mut self.buckets[number as usize % BUCKETS];
        let fresh = bucket.number != number as u32;
        let (begin, end, used) = if fresh || bucket.used == 0 {
            (offset as u32, 0, 0)
        } else {
            (bucket.begin, bucket.end, bucket.used)
        };
        let end = offset.max(end.into()) + work;
        if u64::from(used) == width || end > width {
            return None;
        }
        *bucket = Bucket { number: number as u32, begin, end: end as u32, used: used + work as u32 };
        bucket.fill(width as u32);
        self.latest_arrival = at;
        self.advance_to(number);
        Some((number << self.shift) + end)
    }

    fn serve(&mut self, at: u64, work: u64, note: &mut impl FnMut(u64, u64, u64)) -> u64 {
        if work == 0 {
            return at;
        }
        if work >> self.shift >= BUCKETS as u64 {
            let end = self.serve_after_all(at, work);
            note(end.saturating_sub(work), work, work);
            return end;
        }
        let width = 1u32 << self.shift;
        let in_order = at >= self.latest_arrival;
        self.latest_arrival = self.latest_arrival.max(at);
        let (mut number, mut offset) = (at >> self.shift, (at & (u64::from(width) - 1)) as u32);
        self.advance_to(number);
        if number < self.first_free {
            (number, offset) = (self.first_free, 0);
        }
        let mut left = work as u32;
        if in_order {
            // First come, first served: gaps before the end of the existing work are reserved for requests with earlier
            // times.
            let bucket = self.bucket_at(number);
            if bucket.used < width {
                offset = offset.max(bucket.end);
                if left <= width - offset {
                    let end = bucket.append(offset, left, width);
                    note(number << self.shift, width.into(), left.into());
                    return (number << self.shift) + u64::from(end);
                }
            }
        }
        loop {
            let bucket = self.bucket_at(number);
            if bucket.used == width {
                number = self.next_free(number);
                offset = 0;
                continue;
            }
            let (reserved, end) = bucket.take(offset, left, width);
            note(number << self.shift, width.into(), reserved.into());
            left -= reserved;
            if left == 0 {
                return (number << self.shift) + u64::from(end);
            }
            number += 1;
            offset = 0;
            self.advance_to(number);
        }
    }

    /// Serves work longer than all buckets together: it starts after all reservations.
    #[cold]
    fn serve_after_all(&mut self, at: u64, work: u64) -> u64 {
        let calendar_end = self.newest_bucket.saturating_add(1).saturating_mul(1 << self.shift);
        let end = at.max(calendar_end).saturating_add(work);
        self.latest_arrival = self.latest_arrival.max(at);
        self.first_free = (end >> self.shift).saturating_add(1);
        self.newest_bucket = self.newest_bucket.max(self.first_free);
        end
    }

    /// Advances the window of the calendar to include bucket `number`.
    #[inline]
    fn advance_to(&mut self, number: u64) {
        if number > self.newest_bucket {
            self.newest_bucket = number;
            self.first_free = self.first_free.max((number + 1).saturating_sub(BUCKETS as u64));
        }
    }

    fn bucket_at(&mut self, number: u64) -> &mut Bucket {
        let bucket = &mut self.buckets[number as usize % BUCKETS];
        if bucket.number != number as u32 {
            *bucket = Bucket { number: number as u32, ..Bucket::default() };
        }
        bucket
    }

    /// The first bucket with free time after the full bucket `number`. Caches the distance in every bucket on the way.
    fn next_free(&mut self, number: u64) -> u64 {
        let width = 1u32 << self.shift;
        let mut free = number;
        loop {
            self.advance_to(free);
            let bucket = *self.bucket_at(free);
            if bucket.used < width {
                break;
            }
            free += u64::from(bucket.end.max(1));
        }
        let mut passed = number.max(self.first_free);
        while passed < free {
            let bucket = self.bucket_at(passed);
            let next = passed + u64::from(bucket.end.max(1));
            bucket.end = (free - passed) as u32;
            passed = next;
        }
        free
    }
}

impl Bucket {
    /// Reserves at most `work` from `offset` on. Returns the reserved time and where it ends.
    fn take(&mut self, offset: u32, work: u32, width: u32) -> (u32, u32) {
        if self.used == 0 {
            let reserved = work.min(width - offset);
            (self.begin, self.end, self.used) = (offset, offset + reserved, reserved);
            self.fill(width);
            return (reserved, offset + reserved);
        }
        let (mut reserved, mut at) = (0, offset);
        if at < self.begin {
            reserved = work.min(self.begin - at);
            at += reserved;
            if reserved == work {
                self.begin = offset;
                self.used += reserved;
                self.fill(width);
                return (reserved, at);
            }
        }
        if at < self.end {
            let (got, end) = self.take_between(at, work - reserved);
            reserved += got;
            at = end;
        }
        // The time before `begin` is now part of the busy range.
        self.begin = self.begin.min(offset);
        self.used += reserved;
        if reserved < work && at < width {
            let more = (work - reserved).min(width - at);
            reserved += more;
            at += more;
            self.used += more;
        }
        self.end = self.end.max(at);
        self.fill(width);
        (reserved, at)
    }

    /// Appends `work`, which fits, at `offset` after all existing work. Returns its end.
    #[inline]
    fn append(&mut self, offset: u32, work: u32, width: u32) -> u32 {
        self.begin = if self.used == 0 { offset } else { self.begin };
        self.used += work;
        self.end = offset + work;
        self.fill(width);
        offset + work
    }

    /// Reserves time in the gaps between `begin` and `end`, which are assumed to be evenly distributed: the work runs
    /// at the remaining rate.
    fn take_between(&self, at: u32, work: u32) -> (u32, u32) {
        let length = u64::from(self.end - self.begin);
        let free = length - u64::from(self.used).min(length);
        let rest = u64::from(self.end - at);
        let reachable = free * rest / length;
        if reachable <= u64::from(work) {
            return (reachable as u32, self.end);
        }
        let time = (u64::from(work) * length).div_ceil(free).min(rest);
        (work, at + time as u32)
    }

    /// A full bucket has no busy range; `end` then holds the distance to the next bucket to try.
    #[inline]
    fn fill(&mut self, width: u32) {
        if self.used == width {
            self.end = 1;
        }
    }
}
