//! Times in output.

/// Formats a time in seconds since 1970 in UTC, to the second.
pub fn utc_time(at: f64) -> String {
    let seconds = if at.is_finite() && at >= 0.0 { at as u64 } else { 0 };
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The Gregorian date of a day counted from 1970-01-01.
fn date(mut day: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Bounds the loop for a time from a wrong clock.
    day = day.min(3_000_000);
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc_time(0.0), "1970-01-01 00:00:00Z");
        assert_eq!(utc_time(951_782_400.0), "2000-02-29 00:00:00Z");
        assert_eq!(utc_time(1_767_225_599.9), "2025-12-31 23:59:59Z");
        assert_eq!(utc_time(f64::NAN), "1970-01-01 00:00:00Z");
    }
}
