//! A part that moves bytes at a limited rate: a link, a port, a data bus.
//! Not a latency: whoever crosses it adds that. Not a policy: first come, first served as far as order is known.

use crate::windows::Windows;
use crate::{Calendar, Duration, Histogram, Served, Statistics, StatisticsError, Time, Value};

/// Fractions of a picosecond that service times are held in, so that a byte's time may be far below one.
const FRACTION_BITS: u32 = 24;

/// A part that moves a limited number of bytes a second.
#[derive(Clone, Debug)]
pub struct Resource {
    calendar: Calendar,
    /// Picoseconds a byte, in 2^-24 ps, rounded up: never more than the rate is given.
    ps_per_byte: u64,
    bytes_per_second: u64,
    bytes: u64,
    requests: u64,
    busy_ps: u64,
    waits: Histogram,
    /// What it moved in each window of time, if somebody wants to know.
    windows: Option<Box<Windows>>,
}

impl Resource {
    /// A resource of `bytes_per_second` (at least 1), whose calendar has buckets of `bucket` (see [`Calendar`]). Good buckets
    /// last as long as a few of its usual requests.
    pub fn new(bytes_per_second: u64, bucket: Duration) -> Self {
        let rate = bytes_per_second.max(1);
        let ps_per_byte = (1_000_000_000_000u128 << FRACTION_BITS).div_ceil(u128::from(rate));
        Self {
            calendar: Calendar::new(bucket),
            ps_per_byte: u64::try_from(ps_per_byte).unwrap_or(u64::MAX),
            bytes_per_second: rate,
            bytes: 0,
            requests: 0,
            busy_ps: 0,
            waits: Histogram::default(),
            windows: None,
        }
    }

    /// Moves `bytes`, which arrive at `at`, and says when the last of them is through.
    #[inline]
    pub fn acquire(&mut self, at: Time, bytes: u32) -> Time {
        self.serve(at, bytes, Duration::ZERO).end
    }

    /// As [`Resource::acquire`], with `extra` time beside the bytes', such as a bus's turnaround; says the waiting too.
    #[inline]
    pub fn serve(&mut self, at: Time, bytes: u32, extra: Duration) -> Served {
        let work = self.service(bytes).ps() + extra.ps();
        let served = match &mut self.windows {
            None => self.calendar.take(at, Duration::from_ps(work)),
            Some(_) => self.serve_noting(at, bytes, work),
        };
        self.bytes += u64::from(bytes);
        self.requests += 1;
        self.busy_ps += work;
        self.waits.record(served.waited.ps());
        served
    }

    /// Serves `work`, of which `bytes` are a part, and notes in which windows they move.
    #[cold]
    fn serve_noting(&mut self, at: Time, bytes: u32, work: u64) -> Served {
        let moving = self.service(bytes).ps();
        let Some(windows) = &mut self.windows else { return self.calendar.take(at, Duration::from_ps(work)) };
        let mut note = |begin: u64, length: u64, taken: u64| {
            let share = u128::from(taken) * u128::from(moving) / u128::from(work.max(1));
            windows.add(begin, length, share as u64);
        };
        self.calendar.take_noting(at, Duration::from_ps(work), &mut note)
    }

    /// Notes from now on what moves in each window of `length` from `origin` on, and forgets what was noted before.
    pub fn watch(&mut self, origin: Time, length: Duration) {
        self.windows = Some(Box::new(Windows::new(origin, length)));
    }

    /// The next window that is over at `now`, if what moves is [watched](Self::watch): when it began, and how many bytes moved in it. It is
    /// not given again, so nobody may ask for it who still comes with requests of its time. Its bytes are never more than the rate allows.
    pub fn take_window(&mut self, now: Time) -> Option<(Time, f64)> {
        let (begin, moving) = self.windows.as_mut()?.take(now)?;
        Some((begin, moving.ps() as f64 * (1 << FRACTION_BITS) as f64 / self.ps_per_byte as f64))
    }

    /// How long `bytes` take when nobody else is there, rounded up.
    #[inline]
    pub fn service(&self, bytes: u32) -> Duration {
        let scaled = u128::from(bytes) * u128::from(self.ps_per_byte);
        Duration::from_ps(scaled.div_ceil(1 << FRACTION_BITS) as u64)
    }

    /// Its rate.
    pub const fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Bytes moved so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Requests so far.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// How long it was busy so far.
    pub const fn busy(&self) -> Duration {
        Duration::from_ps(self.busy_ps)
    }

    /// How long each request waited, picoseconds.
    pub const fn waits(&self) -> &Histogram {
        &self.waits
    }

    /// Forgets the statistics, not the work in progress: for the start of a region of interest.
    pub fn clear_statistics(&mut self) {
        (self.bytes, self.requests, self.busy_ps) = (0, 0, 0);
        self.waits = Histogram::default();
    }

    /// Adds its statistics below `name`: bytes, utilisation over `elapsed`, and waiting.
    ///
    /// # Errors
    /// If a name is malformed or taken.
    pub fn report(
        &self,
        statistics: &mut Statistics,
        name: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        statistics.count(&format!("{name}.bytes"), self.bytes, "bytes", "bytes moved")?;
        statistics.rate(
            &format!("{name}.utilisation"),
            self.busy_ps as f64,
            elapsed.ps() as f64,
            "of the time",
            "how much of the time it was busy",
        )?;
        let waits = Value::Histogram(self.waits.clone());
        statistics.insert(
            &format!("{name}.waiting"),
            waits,
            "ps",
            "how long a request waited for those before it",
        )
    }
}
