//! The real-time clock of the bridge chip. It starts at a configured time and follows the stable counter, so that runs
//! are reproducible. Source: Loongson 7A1000 user manual, section 22 (real-time clock).

use serde::{Deserialize, Serialize};

use super::lane::Lane;

/// TOYREAD0: month, day, hour, minute, second and tenth of a second. The year is in the next register.
const TIME_OF_DAY_READ0: u64 = 0x2c;
const YEAR: u64 = 0x30;
const CONTROL: u64 = 0x40;
const TICKS_READ: u64 = 0x68;

/// The rate of the tick counter.
const TICKS_HZ: u64 = 32768;

/// The real-time clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rtc {
    /// The start time of the machine, in seconds since 1970.
    start_s: u64,
    control: u32,
}

impl Rtc {
    /// Creates a clock that starts at `start_s` seconds since 1970.
    pub fn new(start_s: u64) -> Self {
        Self { start_s, control: 0 }
    }

    /// Reads a register `elapsed_ns` nanoseconds after the machine has started.
    pub fn read(&self, offset: u64, bytes: usize, elapsed_ns: u64) -> u64 {
        let now_s = self.start_s.saturating_add(elapsed_ns / 1_000_000_000);
        let word = |address: u64| match address {
            TIME_OF_DAY_READ0 => time_of_day(now_s) | (elapsed_ns / 100_000_000 % 10) as u32,
            YEAR => (date(now_s / 86400).0 - 1900) as u32,
            CONTROL => self.control,
            TICKS_READ => (elapsed_ns as u128 * u128::from(TICKS_HZ) / 1_000_000_000) as u32,
            _ => 0,
        };
        let lane = Lane::new(offset, bytes);
        lane.extract(u64::from(word(lane.register)) | u64::from(word(lane.register + 4)) << 32)
    }

    /// Writes a register. Software cannot set the time.
    pub fn write(&mut self, offset: u64, bytes: usize, value: u64) {
        let lane = Lane::new(offset, bytes);
        if lane.register == CONTROL {
            self.control = lane.replace(self.control.into(), value) as u32;
        }
    }
}

/// The value of TOYREAD0 without tenths of a second.
fn time_of_day(now_s: u64) -> u32 {
    let (_, month, day) = date(now_s / 86400);
    let second = (now_s % 86400) as u32;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    month << 26 | day << 21 | hour << 16 | minute << 10 | (second % 60) << 4
}

/// Year, month and day in the Gregorian calendar, for a number of days since 1970-01-01.
fn date(days: u64) -> (u64, u32, u32) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    // 400 years have 146097 days. Skipping them keeps the loop short for any date.
    let (mut year, mut rest) = (1970 + days / 146_097 * 400, days % 146_097);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while rest >= lengths[month] {
        rest -= lengths[month];
        month += 1;
    }
    (year, month as u32 + 1, rest as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registers_show_the_date_and_the_time() {
        // 2024-02-29 12:34:56.7 UTC.
        let clock = Rtc::new(1_709_210_096 - 100);
        let elapsed_ns = 100_700_000_000;
        let expected = 2 << 26 | 29 << 21 | 12 << 16 | 34 << 10 | 56 << 4 | 7;
        assert_eq!(clock.read(TIME_OF_DAY_READ0, 4, elapsed_ns), expected);
        assert_eq!(clock.read(YEAR, 4, elapsed_ns), 124);
        assert_eq!(clock.read(0x28, 8, elapsed_ns), expected << 32);
    }

    #[test]
    fn the_calendar_covers_centuries_and_the_farthest_date() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(47_540), (2100, 2, 28));
        assert_eq!(date(47_541), (2100, 3, 1));
        date(u64::MAX / 86400);
    }
}
