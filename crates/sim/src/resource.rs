//! A part that moves bytes at a limited rate: a link, a port, a data bus.
//! Not a latency: whoever crosses it adds that. Not a policy: first come, first served as far as order is known.

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
        let served = self.calendar.take(at, Duration::from_ps(work));
        self.bytes += u64::from(bytes);
        self.requests += 1;
        self.busy_ps += work;
        self.waits.record(served.waited.ps());
        served
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
