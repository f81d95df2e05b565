//! Quantities in a machine file: "64 KiB", "2.5 GHz", "85 ns", "14 cycles", "25.6 GB/s", "128 bit", "3200 MT/s". All
//! are stored as integers of a base unit.
//!
//! Source: prefixes from SI and IEC 80000-13 (kB = 1000 bytes, KiB = 1024 bytes; b = bit, B = byte).

use serde::{Serialize, Serializer};
use std::fmt;

/// Why a text is not a quantity. The message names the expected form and, if possible, the probably intended text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnitError {
    /// The fault.
    pub message: String,
    /// How to fix it.
    pub help: String,
}

/// A unit: its symbol and its size in base units.
type Unit = (&'static str, u64);

/// A physical quantity: its name, an example, and its units, smallest first.
struct UnitFamily {
    what: &'static str,
    example: &'static str,
    units: &'static [Unit],
    base: &'static str,
    /// The smallest value allowed, in base units.
    least: u64,
}

/// Splits "12.5 GB/s" into (125, 1, "GB/s"): digits without the point, number of decimals, unit.
fn split(text: &str) -> Option<(u128, u32, &str)> {
    let (number, unit) = text.split_once(' ')?;
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let well_formed = digits(integer) && (digits(fraction) || !number.contains('.'));
    if !well_formed || integer.len() + fraction.len() > 30 || unit.is_empty() {
        return None;
    }
    let mantissa: u128 = format!("{integer}{fraction}").parse().ok()?;
    Some((mantissa, fraction.len() as u32, unit))
}

impl UnitFamily {
    fn error(&self, message: String, help: String) -> UnitError {
        let help = if help.is_empty() {
            let units: Vec<_> = self.units.iter().map(|u| u.0).collect();
            format!(
                "write a number, one space and a unit ({}), such as \"{}\"",
                units.join(", "),
                self.example
            )
        } else {
            help
        };
        UnitError { message, help }
    }

    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let Some((mantissa, decimals, sign)) = split(text) else {
            return Err(self.error(format!("\"{text}\" is not {}", self.what), self.correction(text)));
        };
        let Some((_, scale)) = self.units.iter().find(|u| u.0 == sign) else {
            let message = format!("\"{sign}\" is not a unit of {}", self.what.trim_start_matches("a "));
            return Err(self.error(message, self.correction(text)));
        };
        let divisor = 10u128.pow(decimals);
        let product = mantissa.checked_mul(u128::from(*scale));
        let Some(product) = product.filter(|p| p / divisor <= i64::MAX as u128) else {
            return Err(self.error(format!("\"{text}\" is too large"), String::new()));
        };
        if product % divisor != 0 {
            let help = format!("use fewer decimals, so that the value is a whole number of {}s", self.base);
            return Err(self.error(format!("\"{text}\" has a finer resolution than one {}", self.base), help));
        }
        let value = (product / divisor) as u64;
        if value < self.least {
            let help = "give a positive value, or omit the key if it is optional".into();
            return Err(self.error(format!("{} of \"{text}\" is not positive", self.what), help));
        }
        Ok(value)
    }

    /// A correction for "64KB", "64 kib" or "2.5ghz"; empty if there is no good guess.
    fn correction(&self, text: &str) -> String {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, sign) = (&text[..end], text[end..].trim());
        if number.is_empty() || split(&format!("{number} x")).is_none() || sign.is_empty() {
            return String::new();
        }
        let exact = self.units.iter().find(|u| u.0 == sign);
        // "KB" in a data sheet usually means 1024 bytes, which a machine file writes as "KiB".
        let like = || self.units.iter().rfind(|u| u.0.eq_ignore_ascii_case(sign));
        let is_binary = |u: &&Unit| u.0.contains('i') && u.0.replace('i', "").eq_ignore_ascii_case(sign);
        let binary = || self.units.iter().find(is_binary);
        let guess = exact
            .or_else(|| if self.base == "byte" { binary().or_else(like) } else { like() })
            .or_else(|| self.units.iter().find(|u| sign == "us" && u.0 == "us"));
        guess.map(|u| format!("write \"{number} {}\"", u.0)).unwrap_or_default()
    }

    /// Writes `value` in the largest unit that represents it exactly with at most three decimals.
    fn print(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, scale) in self.units.iter().rev() {
            let decimal = u128::from(value) * 1000;
            if value >= *scale && decimal % u128::from(*scale) == 0 {
                let thousandths = decimal / u128::from(*scale);
                // Prefer a smaller unit to a binary prefix with decimals ("1.5 MiB").
                if sign.contains('i') && sign != &"bit" && thousandths % 1000 != 0 {
                    continue;
                }
                let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
                return write!(f, "{} {sign}", text.trim_end_matches('0').trim_end_matches('.'));
            }
        }
        write!(f, "{value} {}", self.units[0].0)
    }
}

macro_rules! quantity {
    ($(#[doc = $doc:literal])* $name:ident, $get:ident, $what:literal, $example:literal, $base:literal, [$($unit:literal = $scale:expr),+ $(,)?] $(, least $least:literal)?) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            const FAMILY: UnitFamily = UnitFamily {
                what: $what,
                example: $example,
                base: $base,
                units: &[$(($unit, $scale)),+],
                least: 0 $(+ $least)?,
            };

            #[doc = concat!("The quantity of `value` ", $base, "s.")]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            #[doc = concat!("The quantity in whole ", $base, "s.")]
            pub const fn $get(self) -> u64 {
                self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                Self::FAMILY.parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Self::FAMILY.print(self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
const K: u64 = 1000;

quantity! {
    /// A size in bytes, written "64 KiB" (1024 bytes each) or "1.2 GB" (10^9 bytes each).
    Size, bytes, "a size", "64 KiB", "byte",
    ["B" = 1, "kB" = K, "KiB" = 1 << 10, "MB" = K * K, "MiB" = 1 << 20, "GB" = K * K * K, "GiB" = 1 << 30,
     "TB" = K * K * K * K, "TiB" = 1 << 40]
}
quantity! {
    /// A frequency in hertz, written "2.5 GHz".
    Frequency, hz, "a frequency", "2.5 GHz", "hertz", ["Hz" = 1, "kHz" = K, "MHz" = K * K, "GHz" = K * K * K]
}
quantity! {
    /// A time in picoseconds, written "85 ns".
    Time, ps, "a time", "85 ns", "picosecond",
    ["ps" = 1, "ns" = K, "us" = K * K, "ms" = K * K * K, "s" = K * K * K * K]
}
quantity! {
    /// A width in bits, written "128 bit".
    Width, bits, "a width", "128 bit", "bit", ["bit" = 1], least 1
}
quantity! {
    /// Transfers a second on one wire, written "3200 MT/s".
    TransferRate, per_second, "a transfer rate", "3200 MT/s", "transfer", ["T/s" = 1, "MT/s" = K * K, "GT/s" = K * K * K],
    least 1
}
quantity! {
    /// A data rate in bits per second, written "12.8 GB/s" (bytes) or "1.28 Gb/s" (bits).
    BitRate, bits_per_second, "a bandwidth", "12.8 GB/s", "bit a second",
    ["b/s" = 1, "kb/s" = K, "Mb/s" = K * K, "MB/s" = 8 * K * K, "Gb/s" = K * K * K, "GB/s" = 8 * K * K * K],
    least 1
}
quantity! {
    /// A number of cycles of the part's clock, written "14 cycles".
    Cycles, count, "a number of cycles", "14 cycles", "cycle", ["cycles" = 1]
}
quantity! {
    /// Bytes moved in one clock cycle, written "32 B/cycle".
    PerCycle, bytes, "a bandwidth", "32 B/cycle", "byte a cycle", ["B/cycle" = 1], least 1
}

/// A latency: cycles of the part's own clock ("14 cycles"), or a time ("85 ns").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// In cycles: scales with the clock.
    Cycles(Cycles),
    /// As a time: independent of the clock.
    Time(Time),
}

impl Latency {
    /// The largest latencies that can be modelled: a hundred times the latency of the slowest part, flash included.
    /// Some models step through every cycle of a latency.
    const MAX_CYCLES: u64 = 1_000_000;
    const MAX_PS: u64 = 1_000_000_000_000;

    /// The latency in picoseconds, rounded to the nearest, for a part that runs at `clock`.
    pub fn ps(self, clock: Frequency) -> u64 {
        match self {
            Latency::Time(time) => time.ps(),
            Latency::Cycles(cycles) => clock.ps_of_cycles(cycles.count()),
        }
    }

    /// The latency in cycles of `clock`, rounded up to whole cycles.
    pub fn cycles(self, clock: Frequency) -> u64 {
        match self {
            Latency::Cycles(cycles) => cycles.count(),
            Latency::Time(time) => clock.cycles_in_ps(time.ps()),
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Latency::Cycles(Cycles::new(0))
    }
}

impl std::str::FromStr for Latency {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let too_long = |limit: &str| UnitError {
            message: format!("a latency of {text} is too long to be modelled"),
            help: format!("give at most {limit}"),
        };
        if text.ends_with('s') && text.contains("cycle") {
            let cycles: Cycles = text.parse()?;
            let is_short = cycles.count() <= Self::MAX_CYCLES;
            return if is_short { Ok(Latency::Cycles(cycles)) } else { Err(too_long("1000000 cycles")) };
        }
        match text.parse::<Time>() {
            Ok(time) if time.ps() > Self::MAX_PS => Err(too_long("1 s")),
            Ok(time) => Ok(Latency::Time(time)),
            Err(UnitError { message, help }) if help.starts_with("write a number") => {
                let message =
                    message.replace("a time", "a latency").replace("unit of time", "unit of latency");
                let help =
                    "write a number of cycles of the part's clock, or a time, such as \"14 cycles\" or \"85 ns\"".into();
                Err(UnitError { message, help })
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Latency::Cycles(cycles) => cycles.fmt(f),
            Latency::Time(time) => time.fmt(f),
        }
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A bandwidth: bytes each cycle of the part's own clock ("32 B/cycle"), or a data rate ("12.8 GB/s").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bandwidth {
    /// Per cycle: scales with the clock.
    PerCycle(PerCycle),
    /// As a data rate: independent of the clock.
    Rate(BitRate),
}

impl Bandwidth {
    /// The bandwidth in bytes per second for a part that runs at `clock`.
    pub fn bytes_per_second(self, clock: Frequency) -> u64 {
        match self {
            Bandwidth::PerCycle(bytes) => bytes.bytes().saturating_mul(clock.hz()),
            Bandwidth::Rate(rate) => rate.bits_per_second() / 8,
        }
    }
}

impl Default for Bandwidth {
    fn default() -> Self {
        Bandwidth::Rate(BitRate::new(0))
    }
}

impl std::str::FromStr for Bandwidth {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.ends_with("cycle") {
            text.parse().map(Bandwidth::PerCycle)
        } else {
            text.parse().map(Bandwidth::Rate)
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bandwidth::PerCycle(bytes) => bytes.fmt(f),
            Bandwidth::Rate(rate) => rate.fmt(f),
        }
    }
}

impl Serialize for Bandwidth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_latency_too_long_to_model_is_an_error() {
        for text in ["99999999999 cycles", "1000001 cycles", "2 s"] {
            let error = text.parse::<Latency>().unwrap_err();
            assert!(error.message.contains("too long to be modelled"), "{text}: {}", error.message);
        }
        assert!("1000000 cycles".parse::<Latency>().is_ok() && "1 s".parse::<Latency>().is_ok());
    }

    #[test]
    fn zero_rates_are_errors() {
        let width = "0 bit".parse::<Width>().unwrap_err();
        assert_eq!(width.message, "a width of \"0 bit\" is not positive");
        assert!("0 MT/s".parse::<TransferRate>().is_err() && "1 T/s".parse::<TransferRate>().is_ok());
        assert!("0 GB/s".parse::<Bandwidth>().is_err() && "0 B/cycle".parse::<Bandwidth>().is_err());
        assert!("0 cycles".parse::<Latency>().is_ok() && "0 ns".parse::<Time>().is_ok());
    }

    #[test]
    fn quantities_are_parsed_as_printed_in_data_sheets() {
        assert_eq!("64 KiB".parse(), Ok(Size::new(65536)));
        assert_eq!("2.5 GHz".parse(), Ok(Frequency::new(2_500_000_000)));
        assert_eq!("85 ns".parse(), Ok(Time::new(85_000)));
        assert_eq!("47.46 MB/s".parse(), Ok(BitRate::new(379_680_000)));
        assert_eq!("14 cycles".parse(), Ok(Latency::Cycles(Cycles::new(14))));
        assert_eq!("2.5 us".parse(), Ok(Latency::Time(Time::new(2_500_000))));
        assert_eq!("32 B/cycle".parse(), Ok(Bandwidth::PerCycle(PerCycle::new(32))));
    }

    #[test]
    fn a_misspelt_unit_gets_a_correction() {
        let help = |e: Result<Size, UnitError>| e.unwrap_err().help;
        assert_eq!(help("64KB".parse()), "write \"64 KiB\"");
        assert_eq!(help("64 kib".parse()), "write \"64 KiB\"");
        assert_eq!("2.5ghz".parse::<Frequency>().unwrap_err().help, "write \"2.5 GHz\"");
        assert_eq!(
            "12 parsecs".parse::<Latency>().unwrap_err().message,
            "\"parsecs\" is not a unit of latency"
        );
        assert!("-1 ns".parse::<Time>().is_err());
        assert!(
            "0.0001 ns".parse::<Time>().unwrap_err().message.contains("finer resolution than one picosecond")
        );
        assert!("99999999999 TiB".parse::<Size>().unwrap_err().message.contains("too large"));
    }

    #[test]
    fn cycles_are_converted_with_the_clock_of_the_part() {
        let clock = Frequency::new(800_000_000);
        assert_eq!("5 cycles".parse::<Latency>().unwrap().ps(clock), 6250);
        assert_eq!("16 B/cycle".parse::<Bandwidth>().unwrap().bytes_per_second(clock), 12_800_000_000);
    }

    proptest! {
        #[test]
        fn printed_quantities_are_parsed_back(value in 0..i64::MAX as u64) {
            prop_assert_eq!(Size::new(value).to_string().parse(), Ok(Size::new(value)));
            prop_assert_eq!(Time::new(value).to_string().parse(), Ok(Time::new(value)));
            prop_assert_eq!(Frequency::new(value).to_string().parse(), Ok(Frequency::new(value)));
            let rate = BitRate::new(value.max(1));
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Latency>();
            let _ = text.parse::<Bandwidth>();
        }
    }
}
