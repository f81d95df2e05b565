//! The host instructions of sequences, and the scratch registers that they need.

use iced_x86::Code;

use super::super::host_vectors::Pair;

/// The operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// Scratch registers.
    A,
    B,
    C,
    /// The instruction's sources.
    J,
    K,
    /// The third source of instructions with four operands.
    Third,
    /// The destination's value before the instruction.
    Old,
    /// The destination. Only the last step may write it, because it may also be a source.
    D,
}

impl Location {
    pub const SCRATCH: [Self; 3] = [Self::A, Self::B, Self::C];

    pub fn is_scratch(self) -> bool {
        Self::SCRATCH.contains(&self)
    }
}

/// A host instruction, or the instructions that load a constant. The first location is the destination.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostStep {
    /// `to = from`
    Move(Location, Location),
    /// `to = left op right`
    Two(Pair, Location, Location, Location),
    /// `to = left op right` with an immediate that selects elements.
    Choose(Pair, Location, Location, Location, i32),
    /// `to = mask ? right : left` for each byte.
    Blend(Location, Location, Location, Location),
    /// `to = from op count`
    Shift(Pair, Location, Location, i32),
    /// `to = op(from)` with an immediate that selects elements or a mode.
    One(Pair, Location, Location, i32),
    /// `to = op(from)`, for an instruction without a 256-bit form with the same operands.
    Narrow(Code, Location, Location),
    /// The same 64 bits in all doublewords.
    Splat(Location, u64),
    /// The same 128 bits in each half.
    Pattern(Location, u128),
}

impl HostStep {
    pub fn to(&self) -> Location {
        match *self {
            Self::Move(to, ..)
            | Self::Two(_, to, ..)
            | Self::Choose(_, to, ..)
            | Self::Blend(to, ..)
            | Self::Shift(_, to, ..)
            | Self::One(_, to, ..)
            | Self::Narrow(_, to, ..)
            | Self::Splat(to, _)
            | Self::Pattern(to, _) => to,
        }
    }

    /// The operand that must be in a register, if any.
    pub fn left(&self) -> Option<Location> {
        match *self {
            Self::Two(_, _, left, _)
            | Self::Choose(_, _, left, _, _)
            | Self::Blend(_, left, _, _)
            | Self::Shift(_, _, left, _) => Some(left),
            Self::Move(..) | Self::One(..) | Self::Narrow(..) | Self::Splat(..) | Self::Pattern(..) => None,
        }
    }

    /// The operands that may be in memory.
    pub fn memory_operands(&self) -> [Option<Location>; 2] {
        match *self {
            Self::Two(_, _, _, right) | Self::Choose(_, _, _, right, _) => [Some(right), None],
            Self::Blend(_, _, right, mask) => [Some(right), Some(mask)],
            Self::Move(_, from) | Self::One(_, _, from, _) | Self::Narrow(_, _, from) => [Some(from), None],
            Self::Shift(..) | Self::Splat(..) | Self::Pattern(..) => [None, None],
        }
    }

    fn reads(&self, location: Location) -> bool {
        self.left() == Some(location) || self.memory_operands().contains(&Some(location))
    }
}

/// Whether `steps` still read the value in `location`.
pub(super) fn is_live(steps: &[HostStep], location: Location) -> bool {
    for step in steps {
        if step.reads(location) {
            return true;
        }
        if step.to() == location {
            return false;
        }
    }
    false
}

/// A free scratch register for the left operand of `step`, in case that operand is in memory. `after` holds the
/// following steps.
pub(super) fn scratch_for_left(step: &HostStep, after: &[HostStep]) -> Option<Location> {
    let is_read = |location| step.memory_operands().contains(&Some(location));
    let to = step.to();
    if to.is_scratch() && !is_read(to) {
        return Some(to);
    }
    Location::SCRATCH.into_iter().find(|&location| !is_read(location) && !is_live(after, location))
}
