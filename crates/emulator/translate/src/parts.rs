//! Optimizations that can be switched on and off, to measure the effect of each. Source: the treatment of flags, jumps
//! and blocks in LATX (lat-opensource/lat) and Box64 (ptitSeb/box64).

use std::fmt;
use std::str::FromStr;

/// An optimization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Translate everything that direct jumps and calls reach as one unit. If off: block by block, each up to its first
    /// branch.
    Units,
    /// Skip the computation of dead flags. If off: every instruction computes all its flags.
    Flags,
    /// Extend flag liveness across block ends and branches. If off: all flags are live after each branch and each
    /// block.
    FlagsAcross,
    /// Fuse a comparison with the branch, move or set that reads its flags. If off: compute the flags and test them.
    Fusion,
    /// Keep values in other registers or other forms than the source does between instructions (copies, word
    /// extensions, pointer increments). If off: all registers are architectural before each instruction.
    Forms,
    /// Propagate known register values across blocks and around loops, and peel loop iterations. If off: within a block
    /// only.
    Loops,
    /// Indirect jumps use a lookup table with one word for each source address. If off: they try a hash table first,
    /// and use the lookup table on a miss.
    Table,
    /// Returns use a jump that the processor's return-address stack predicts. If off: an ordinary indirect jump.
    Returns,
    /// Use LoongArch's binary-translation extension (LBT) to compute and test flags that take more than two
    /// instructions otherwise.
    Lbt,
}

impl Part {
    /// All optimizations, in the order in which they are printed.
    pub const ALL: [Self; 9] = [
        Self::Units,
        Self::Flags,
        Self::FlagsAcross,
        Self::Fusion,
        Self::Forms,
        Self::Loops,
        Self::Table,
        Self::Returns,
        Self::Lbt,
    ];

    /// The name in command-line options and experiment files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Units => "units",
            Self::Flags => "flags",
            Self::FlagsAcross => "flags-across",
            Self::Fusion => "fusion",
            Self::Forms => "forms",
            Self::Loops => "loops",
            Self::Table => "table",
            Self::Returns => "returns",
            Self::Lbt => "lbt",
        }
    }

    /// Whether the optimization is on by default.
    pub const fn is_default(self) -> bool {
        !matches!(self, Self::Lbt)
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl FromStr for Part {
    type Err = UnknownPart;

    fn from_str(name: &str) -> Result<Self, UnknownPart> {
        let found = Self::ALL.into_iter().find(|part| part.name() == name);
        found.ok_or_else(|| UnknownPart(name.into()))
    }
}

/// A set of optimizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts(u16);

impl Default for Parts {
    fn default() -> Self {
        Part::ALL.into_iter().fold(Self::NONE, |parts, part| parts.with(part, part.is_default()))
    }
}

impl Parts {
    /// No optimizations.
    pub const NONE: Self = Self(0);

    /// Whether an optimization is on.
    pub const fn has(self, part: Part) -> bool {
        self.0 & part.bit() != 0
    }

    /// The same set with one optimization switched on or off.
    #[must_use]
    pub const fn with(self, part: Part, is_there: bool) -> Self {
        if is_there { Self(self.0 | part.bit()) } else { Self(self.0 & !part.bit()) }
    }
}

/// Prints the differences from the default in the syntax of [`Parts::from_str`]; nothing for the default.
impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = Part::ALL.into_iter().filter(|part| self.has(*part) != part.is_default());
        for (index, part) in changed.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let no = if self.has(part) { "" } else { "no-" };
            write!(f, "{comma}{no}{}", part.name())?;
        }
        Ok(())
    }
}

/// An unknown optimization name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPart(String);

impl fmt::Display for UnknownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Part::ALL.map(Part::name).join(", ");
        write!(
            f,
            "translation has no part '{}'; name {names}, each with 'no-' before it to leave it out, or first 'none' to leave out all",
            self.0
        )
    }
}

impl std::error::Error for UnknownPart {}

/// Parses changes to the default: names separated by commas, with the prefix `no-` to switch one off. `none` switches
/// off all that are on so far.
impl FromStr for Parts {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        let mut parts = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, is_there) = word.strip_prefix("no-").map_or((word, true), |name| (name, false));
            parts = match name.parse() {
                Ok(part) => parts.with(part, is_there),
                Err(_) if word == "none" => Self::NONE,
                Err(unknown) => return Err(unknown),
            };
        }
        Ok(parts)
    }
}

/// The options of a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The optimizations that are on.
    pub parts: Parts,
    /// The address of the hash table, which has [`HASH_ENTRIES`] entries: a source address and the address of its code,
    /// eight bytes each. Used only without [`Part::Table`].
    pub hash: u64,
    /// Translate a cold block: a jump to its own start exits to the engine, which counts visits.
    pub is_cold: bool,
}

impl Options {
    /// Whether an optimization is on.
    pub const fn has(&self, part: Part) -> bool {
        self.parts.has(part)
    }

    /// The same options for a cold block, which has neither other blocks nor loops.
    #[must_use]
    pub const fn cold(&self) -> Self {
        let parts = self.parts.with(Part::Units, false).with(Part::Loops, false);
        Self { parts, is_cold: true, ..*self }
    }
}

/// The number of hash-table entries.
pub const HASH_ENTRIES: u64 = 1 << 14;
/// The binary logarithm of an entry's size in bytes.
pub const HASH_SHIFT: u32 = 4;
/// The size of the hash table in bytes.
pub const HASH_BYTES: u64 = HASH_ENTRIES << HASH_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_of_parts_is_read_back_and_the_default_is_nothing() {
        assert_eq!((Parts::default().to_string(), "".parse()), (String::new(), Ok(Parts::default())));
        for bits in 0..1 << Part::ALL.len() {
            let parts = Part::ALL
                .into_iter()
                .fold(Parts::NONE, |parts, part| parts.with(part, bits >> part as u32 & 1 != 0));
            assert_eq!(parts.to_string().parse(), Ok(parts), "{parts}");
        }
    }

    #[test]
    fn words_change_the_default_one_after_the_other() {
        let parts: Parts = "no-units, lbt".parse().unwrap();
        assert!(!parts.has(Part::Units) && parts.has(Part::Lbt) && parts.has(Part::Fusion));
        let parts: Parts = "none,fusion".parse().unwrap();
        assert_eq!(parts, Parts::NONE.with(Part::Fusion, true));
    }

    #[test]
    fn an_unknown_part_is_refused_with_all_there_are() {
        for text in ["unit", "no-cam", "units,no-none", "no-"] {
            let message = text.parse::<Parts>().unwrap_err().to_string();
            assert!(Part::ALL.iter().all(|part| message.contains(part.name())), "{message}");
        }
    }
}
