//! A resource that transfers bytes at a limited rate: a link, a port, a data bus. The caller adds the latency.

use crate::windows::Windows;
use crate::{Calendar, Duration, Histogram, Served, Statistics, StatisticsError, Time, Value};

/// Fractional bits of the time per byte, which may be far below a picosecond.
const FRACTION_BITS: u32 = 24;

/// A resource with a limited number of bytes per second. Requests in time order are served first come, first served;
/// see [`Calendar`] for requests out of order.
#[derive(Clone, Debug)]
pub struct Resource {
    calendar: Calendar,
    /// Time per byte in 2^-24 ps, rounded up, so that the rate is never exceeded.
    ps_per_byte: u64,
    bytes_per_second: u64,
    bytes: u64,
    requests: u64,
    busy_ps: u64,
    waits: Histogram,
    /// Traffic in each time window; `None` unless recording is on.
    windows: Option<Box<Windows>>,
}

impl Resource {
    /// Creates a resource of `bytes_per_second` (0 is treated as 1), whose calendar has buckets of length `bucket` (see
    /// [`Calendar`]). A good width is the time of a few typical requests.
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

    /// Transfers `bytes` that arrive at `at`. Returns the time at which the last byte has passed.
    #[inline]
    pub fn acquire(&mut self, at: Time, bytes: u32) -> Time {
        self.serve(at, bytes, Duration::ZERO).end
    }

    /// Like [`Resource::acquire`], with `extra` time in addition to the transfer, such as a bus turnaround. Also
    /// returns the waiting time.
    #[inline]
    pub fn serve(&mut self, at: Time, bytes: u32, extra: Duration) -> Served {
        let work = self.service(bytes).ps() + extra.ps();
        let served = match &mut self.windows {
            None => self.calendar.take(at, Duration::from_ps(work)),
            Some(_) => self.serve_recording(at, bytes, work),
        };
        self.bytes += u64::from(bytes);
        self.requests += 1;
        self.busy_ps += work;
        self.waits.record(served.waited.ps());
        served
    }

    /// Serves `work`, which includes the transfer of `bytes`, and records the windows in which they are transferred.
    #[cold]
    fn serve_recording(&mut self, at: Time, bytes: u32, work: u64) -> Served {
        let transfer = self.service(bytes).ps();
        let Some(windows) = &mut self.windows else { return self.calendar.take(at, Duration::from_ps(work)) };
        let mut record = |begin: u64, length: u64, reserved: u64| {
            let share = u128::from(reserved) * u128::from(transfer) / u128::from(work.max(1));
            windows.add(begin, length, share as u64);
        };
        self.calendar.take_recording(at, Duration::from_ps(work), &mut record)
    }

    /// Starts to record the traffic in windows of `length` from `origin` on. Discards earlier records.
    pub fn record_windows(&mut self, origin: Time, length: Duration) {
        self.windows = Some(Box::new(Windows::new(origin, length)));
    }

    /// Takes the next window that is complete at `now`: its start and the bytes transferred in it. `None` if there is
    /// none or [recording](Self::record_windows) is off. Later requests with a time in this window are no longer
    /// counted. The bytes are never more than the rate allows in the window.
    pub fn take_window(&mut self, now: Time) -> Option<(Time, f64)> {
        let (begin, transfer) = self.windows.as_mut()?.take(now)?;
        Some((begin, transfer.ps() as f64 * (1 << FRACTION_BITS) as f64 / self.ps_per_byte as f64))
    }

    /// Time to transfer `bytes` without contention, rounded up.
    #[inline]
    pub fn service(&self, bytes: u32) -> Duration {
        let scaled = u128::from(bytes) * u128::from(self.ps_per_byte);
        Duration::from_ps(scaled.div_ceil(1 << FRACTION_BITS) as u64)
    }

    /// The rate in bytes per second.
    pub const fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Bytes transferred so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of requests so far.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Total busy time so far.
    pub const fn busy(&self) -> Duration {
        Duration::from_ps(self.busy_ps)
    }

    /// Waiting times of the requests, picoseconds.
    pub const fn waits(&self) -> &Histogram {
        &self.waits
    }

    /// Resets the statistics but not the reservations, for the start of a region of interest.
    pub fn clear_statistics(&mut self) {
        (self.bytes, self.requests, self.busy_ps) = (0, 0, 0);
        self.waits = Histogram::default();
    }

    /// Adds its statistics under `name`: bytes, utilization over `elapsed`, and waiting times.
    ///
    /// # Errors
    /// If a name is malformed or already in use.
    pub fn report(
        &self,
        statistics: &mut Statistics,
        name: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        statistics.count(&format!("{name}.bytes"), self.bytes, "bytes", "bytes transferred")?;
        statistics.rate(
            &format!("{name}.utilisation"),
            self.busy_ps as f64,
            elapsed.ps() as f64,
            "of the time",
            "fraction of the time in which it was busy",
        )?;
        let waits = Value::Histogram(self.waits.clone());
        statistics.insert(&format!("{name}.waiting"), waits, "ps", "waiting time of a request")
    }
}
