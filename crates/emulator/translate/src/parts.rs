//! The parts of translation that can be left out or put in, so that it can be measured what each is worth.
//! Not the parts themselves: those are the front ends'.
//! Source: what binary translators do about flags, jumps and blocks: LATX (lat-opensource/lat), Box64 (ptitSeb/box64).

use std::fmt;
use std::str::FromStr;

/// One part of translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What direct jumps and calls reach is translated together. Without: block by block, each up to its first branch.
    Units,
    /// Flags that nobody reads are not computed. Without: every instruction computes all flags it has.
    Flags,
    /// The same across the ends of blocks, and past branches. Without: behind each branch and each block all flags are read.
    FlagsAcross,
    /// A comparison and the branch, move or set that reads its flags become one comparison. Without: by way of flags.
    Fusion,
    /// Between two instructions, values may be in other registers or in another form than the source has them in (copies, extensions of
    /// words, steps of pointers). Without: all is in its place before each.
    Forms,
    /// What is known of registers holds across blocks and around loops, whose rounds may be translated apart. Without: in a block.
    Loops,
    /// Indirect jumps find their code in a table with a word for each place of the source. Without: in a hash table, and in that one if
    /// they miss.
    Table,
    /// Returns are jumps that the processor's stack of return addresses predicts. Without: jumps as any others.
    Returns,
    /// Flags that take more than two instructions are computed and tested by LoongArch's binary-translation extension.
    Lbt,
}

impl Part {
    /// All of them, in the order in which they are written.
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

    /// What commands and experiments call it.
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

    /// Whether it is there unless somebody asks otherwise.
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

/// Which parts translation has. The default is what a user gets who asks for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts(u16);

impl Default for Parts {
    fn default() -> Self {
        Part::ALL.into_iter().fold(Self::NONE, |parts, part| parts.with(part, part.is_default()))
    }
}

impl Parts {
    /// Without any.
    pub const NONE: Self = Self(0);

    /// Whether it has a part.
    pub const fn has(self, part: Part) -> bool {
        self.0 & part.bit() != 0
    }

    /// The same with a part, or without it.
    #[must_use]
    pub const fn with(self, part: Part, is_there: bool) -> Self {
        if is_there { Self(self.0 | part.bit()) } else { Self(self.0 & !part.bit()) }
    }
}

/// What differs from the default, as [`Parts::from_str`] reads it; nothing for the default.
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

/// A word that names no part.
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

/// Changes of the default: names with commas between them, `no-` before what is left out; `none` leaves out all that is there so far.
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

/// How a front end is to translate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// With which parts.
    pub parts: Parts,
    /// Where [`HASH_ENTRIES`] entries of the hash table are: for each a source address and the address of its code, eight bytes each. Only
    /// asked for without [`Part::Table`].
    pub hash: u64,
    /// The code is for the first few times: a jump to its own beginning comes out to the engine, which counts.
    pub is_cold: bool,
}

impl Options {
    /// Whether a part is to be there.
    pub const fn has(&self, part: Part) -> bool {
        self.parts.has(part)
    }

    /// The same, but block by block and for the first few times: no jump of such a block's own leads into it, so that it has no loops.
    #[must_use]
    pub const fn cold(&self) -> Self {
        let parts = self.parts.with(Part::Units, false).with(Part::Loops, false);
        Self { parts, is_cold: true, ..*self }
    }
}

/// How many entries the hash table of indirect jumps has.
pub const HASH_ENTRIES: u64 = 1 << 14;
/// The bits of an entry's size.
pub const HASH_SHIFT: u32 = 4;
/// The size of the hash table.
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
