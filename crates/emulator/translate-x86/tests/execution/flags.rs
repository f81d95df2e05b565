//! Bits of RFLAGS.

use iced_x86::RflagsBits;

/// The bits of RFLAGS of the flags in a set of iced-x86's flag bits.
pub fn flag_bits(flags: u32) -> u64 {
    let bits = [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ];
    bits.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| 1u64 << bit).sum()
}
