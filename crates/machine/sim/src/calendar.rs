//! Capacity of one server over time, in buckets: work that comes a little out of time order takes the first free time.
//! Not bytes or links: see `resource`.
//! Source: buckets of capacity stand for the queue that Sniper's "history list" contention model keeps.

use crate::{Duration, Time};

/// Buckets of a calendar: what may lie between the oldest and the newest time that it still serves exactly.
const BUCKETS: usize = 128;

/// What is known of one bucket of time. Offsets and lengths are picoseconds inside the bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The low half of the bucket's number; another number means that the bucket is from an earlier turn and empty.
    number: u32,
    /// Where the first work in it begins.
    begin: u32,
    /// Where the last work in it ends. In a full bucket: how many buckets on the next one with free time may be.
    end: u32,
    /// How much of it is taken, never more than from `begin` to `end` in a bucket that is not full.
    used: u32,
}

/// The time of one server that does one piece of work after another, at full rate. Work that arrives in time order is served
/// first come, first served, exactly. Work that arrives later than work of a later time (cores are simulated one after another,
/// a quantum each) takes what is left: in a bucket that is partly taken it runs at the rate that is left there.
///
/// No bucket ever gives more time than it has. The calendar remembers 128 buckets; work older than those is served as if
/// it had arrived at their start.
#[derive(Clone, Debug)]
pub struct Calendar {
    buckets: Box<[Bucket; BUCKETS]>,
    /// A bucket lasts 2^shift ps.
    shift: u32,
    /// The newest bucket that work was put into or arrived in.
    front: u64,
    /// Nothing before this bucket is given out any more.
    floor: u64,
    /// The latest arrival so far.
    newest: u64,
}

/// When a piece of work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// When it ended.
    pub end: Time,
    /// How much later that is than on an idle server.
    pub waited: Duration,
}

impl Calendar {
    /// A calendar whose buckets last `bucket`, rounded up to a power of two of picoseconds (at most 2^31 ps, about 2 ms).
    pub fn new(bucket: Duration) -> Self {
        let shift = bucket.ps().clamp(1, 1 << 31).next_power_of_two().trailing_zeros();
        Self { buckets: Box::new([Bucket::default(); BUCKETS]), shift, front: 0, floor: 0, newest: 0 }
    }

    /// How long a bucket lasts.
    pub const fn bucket(&self) -> Duration {
        Duration::from_ps(1 << self.shift)
    }

    /// How far work may arrive behind the newest and still be served at its own time.
    pub const fn horizon(&self) -> Duration {
        Duration::from_ps((BUCKETS as u64 - 1) << self.shift)
    }

    /// Takes `work` of the server's time, the first that is free from `at` on.
    #[inline]
    pub fn take(&mut self, at: Time, work: Duration) -> Served {
        self.take_noting(at, work, &mut |_, _, _| {})
    }

    /// As [`take`](Self::take); `note` hears of each bucket that gave some of its time when it begins, how long it is, and how much it gave,
    /// picoseconds; of work longer than all buckets, when it began and how long it took.
    #[inline]
    pub(crate) fn take_noting(
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

    /// Serves work that arrives in order and ends in the bucket it arrives in, as nearly all does; `None` says nothing.
    #[inline]
    fn append(&mut self, at: u64, work: u64) -> Option<u64> {
        let width = 1u64 << self.shift;
        let (number, offset) = (at >> self.shift, at & (width - 1));
        if at < self.newest || number < self.floor || work.wrapping_sub(1) >= width {
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
        self.newest = at;
        self.reach(number);
        Some((number << self.shift) + end)
    }

    fn serve(&mut self, at: u64, work: u64, note: &mut impl FnMut(u64, u64, u64)) -> u64 {
        if work == 0 {
            return at;
        }
        if work >> self.shift >= BUCKETS as u64 {
            let end = self.serve_alone(at, work);
            note(end.saturating_sub(work), work, work);
            return end;
        }
        let width = 1u32 << self.shift;
        let in_order = at >= self.newest;
        self.newest = self.newest.max(at);
        let (mut number, mut offset) = (at >> self.shift, (at & (u64::from(width) - 1)) as u32);
        self.reach(number);
        if number < self.floor {
            (number, offset) = (self.floor, 0);
        }
        let mut left = work as u32;
        if in_order {
            // First come, first served: gaps before the end of what is there belong to earlier times.
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
            let (taken, end) = bucket.take(offset, left, width);
            note(number << self.shift, width.into(), taken.into());
            left -= taken;
            if left == 0 {
                return (number << self.shift) + u64::from(end);
            }
            number += 1;
            offset = 0;
            self.reach(number);
        }
    }

    /// Work longer than all buckets together: nobody comes in between, so it begins after everything known.
    #[cold]
    fn serve_alone(&mut self, at: u64, work: u64) -> u64 {
        let known = self.front.saturating_add(1).saturating_mul(1 << self.shift);
        let end = at.max(known).saturating_add(work);
        self.newest = self.newest.max(at);
        self.floor = (end >> self.shift).saturating_add(1);
        self.front = self.front.max(self.floor);
        end
    }

    /// Notes that `number` is within what the calendar remembers.
    #[inline]
    fn reach(&mut self, number: u64) {
        if number > self.front {
            self.front = number;
            self.floor = self.floor.max((number + 1).saturating_sub(BUCKETS as u64));
        }
    }

    fn bucket_at(&mut self, number: u64) -> &mut Bucket {
        let bucket = &mut self.buckets[number as usize % BUCKETS];
        if bucket.number != number as u32 {
            *bucket = Bucket { number: number as u32, ..Bucket::default() };
        }
        bucket
    }

    /// The first bucket after the full bucket `number` that has time left; remembered in every bucket on the way.
    fn next_free(&mut self, number: u64) -> u64 {
        let width = 1u32 << self.shift;
        let mut free = number;
        loop {
            self.reach(free);
            let bucket = *self.bucket_at(free);
            if bucket.used < width {
                break;
            }
            free += u64::from(bucket.end.max(1));
        }
        let mut passed = number.max(self.floor);
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
    /// Takes at most `work` from `offset` on; how much it got and where that ends.
    fn take(&mut self, offset: u32, work: u32, width: u32) -> (u32, u32) {
        if self.used == 0 {
            let taken = work.min(width - offset);
            (self.begin, self.end, self.used) = (offset, offset + taken, taken);
            self.fill(width);
            return (taken, offset + taken);
        }
        let (mut taken, mut at) = (0, offset);
        if at < self.begin {
            taken = work.min(self.begin - at);
            at += taken;
            if taken == work {
                self.begin = offset;
                self.used += taken;
                self.fill(width);
                return (taken, at);
            }
        }
        if at < self.end {
            let (got, end) = self.take_between(at, work - taken);
            taken += got;
            at = end;
        }
        // From here on the work before `begin` belongs to the hull.
        self.begin = self.begin.min(offset);
        self.used += taken;
        if taken < work && at < width {
            let more = (work - taken).min(width - at);
            taken += more;
            at += more;
            self.used += more;
        }
        self.end = self.end.max(at);
        self.fill(width);
        (taken, at)
    }

    /// Takes `work`, which fits, from `offset` on, behind all that is there; where it ends.
    #[inline]
    fn append(&mut self, offset: u32, work: u32, width: u32) -> u32 {
        self.begin = if self.used == 0 { offset } else { self.begin };
        self.used += work;
        self.end = offset + work;
        self.fill(width);
        offset + work
    }

    /// Takes from the gaps between `begin` and `end`, which are taken to lie evenly: the work runs at the rate that is left.
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

    /// A full bucket has no hull; it says where to look next instead.
    #[inline]
    fn fill(&mut self, width: u32) {
        if self.used == width {
            self.end = 1;
        }
    }
}
