//! Optimizations that can be switched on and off, to measure the effect of each. Source: the treatment of flags, jumps
//! and blocks in LATX (lat-opensource/lat) and Box64 (ptitSeb/box64).

use std::fmt;
use std::str::FromStr;

/// An optimization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimization {
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

impl Optimization {
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

impl FromStr for Optimization {
    type Err = UnknownOptimization;

    fn from_str(name: &str) -> Result<Self, UnknownOptimization> {
        let matching = Self::ALL.into_iter().find(|optimization| optimization.name() == name);
        matching.ok_or_else(|| UnknownOptimization(name.into()))
    }
}

/// A set of optimizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Optimizations(u16);

impl Default for Optimizations {
    fn default() -> Self {
        Optimization::ALL.into_iter().fold(Self::NONE, |optimizations, optimization| {
            optimizations.with(optimization, optimization.is_default())
        })
    }
}

impl Optimizations {
    /// No optimizations.
    pub const NONE: Self = Self(0);

    /// Whether an optimization is on.
    pub const fn has(self, optimization: Optimization) -> bool {
        self.0 & optimization.bit() != 0
    }

    /// The same set with one optimization switched on or off.
    #[must_use]
    pub const fn with(self, optimization: Optimization, is_on: bool) -> Self {
        if is_on { Self(self.0 | optimization.bit()) } else { Self(self.0 & !optimization.bit()) }
    }
}

/// Prints the differences from the default in the syntax of [`Optimizations::from_str`]; nothing for the default.
impl fmt::Display for Optimizations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = Optimization::ALL
            .into_iter()
            .filter(|optimization| self.has(*optimization) != optimization.is_default());
        for (index, optimization) in changed.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let no = if self.has(optimization) { "" } else { "no-" };
            write!(f, "{comma}{no}{}", optimization.name())?;
        }
        Ok(())
    }
}

/// An unknown optimization name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOptimization(String);

impl fmt::Display for UnknownOptimization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Optimization::ALL.map(Optimization::name).join(", ");
        write!(
            f,
            "unknown optimization '{}': use {names}, with the prefix 'no-' to disable one, or start with 'none' to disable all",
            self.0
        )
    }
}

impl std::error::Error for UnknownOptimization {}

/// Parses changes to the default: names separated by commas, with the prefix `no-` to switch one off. `none` switches
/// off all that are on so far.
impl FromStr for Optimizations {
    type Err = UnknownOptimization;

    fn from_str(text: &str) -> Result<Self, UnknownOptimization> {
        let mut optimizations = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, is_on) = word.strip_prefix("no-").map_or((word, true), |name| (name, false));
            optimizations = match name.parse() {
                Ok(optimization) => optimizations.with(optimization, is_on),
                Err(_) if word == "none" => Self::NONE,
                Err(unknown) => return Err(unknown),
            };
        }
        Ok(optimizations)
    }
}

/// The options of a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The optimizations that are on.
    pub optimizations: Optimizations,
    /// The address of the hash table, which has [`HASH_ENTRIES`] entries: a source address and the address of its code,
    /// eight bytes each. Used only without [`Optimization::Table`].
    pub hash: u64,
    /// Translate a cold block: a jump to its own start exits to the engine, which counts visits.
    pub is_cold: bool,
    /// The engine executes all floating-point instructions whose results depend on modes that LoongArch does not have,
    /// such as flushing subnormals to zero. Set once a thread has enabled such a mode.
    pub exact_floats: bool,
    /// Flags are live after calls and returns, against the calling convention. Set once a unit reads flags after a call.
    pub keeps_flags_across_calls: bool,
}

impl Options {
    /// Whether an optimization is on.
    pub const fn has(&self, optimization: Optimization) -> bool {
        self.optimizations.has(optimization)
    }

    /// The same options for a cold block, which is translated alone and has no loops.
    #[must_use]
    pub const fn cold(&self) -> Self {
        let optimizations =
            self.optimizations.with(Optimization::Units, false).with(Optimization::Loops, false);
        Self { optimizations, is_cold: true, ..*self }
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
    fn optimizations_print_and_parse_and_the_default_is_empty() {
        assert_eq!(
            (Optimizations::default().to_string(), "".parse()),
            (String::new(), Ok(Optimizations::default()))
        );
        for bits in 0..1 << Optimization::ALL.len() {
            let optimizations =
                Optimization::ALL.into_iter().fold(Optimizations::NONE, |optimizations, optimization| {
                    optimizations.with(optimization, bits >> optimization as u32 & 1 != 0)
                });
            assert_eq!(optimizations.to_string().parse(), Ok(optimizations), "{optimizations}");
        }
    }

    #[test]
    fn names_are_applied_to_the_default_in_order() {
        let optimizations: Optimizations = "no-units, lbt".parse().unwrap();
        assert!(
            !optimizations.has(Optimization::Units)
                && optimizations.has(Optimization::Lbt)
                && optimizations.has(Optimization::Fusion)
        );
        let optimizations: Optimizations = "none,fusion".parse().unwrap();
        assert_eq!(optimizations, Optimizations::NONE.with(Optimization::Fusion, true));
    }

    #[test]
    fn an_unknown_optimization_is_rejected_with_the_list_of_names() {
        for text in ["unit", "no-cam", "units,no-none", "no-"] {
            let message = text.parse::<Optimizations>().unwrap_err().to_string();
            assert!(
                Optimization::ALL.iter().all(|optimization| message.contains(optimization.name())),
                "{message}"
            );
        }
    }
}
