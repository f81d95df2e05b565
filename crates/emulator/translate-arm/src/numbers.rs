//! Open flags with different values on AArch64 and in the generic Linux ABI. Source: Linux
//! arch/arm64/include/uapi/asm/fcntl.h, include/uapi/asm-generic/fcntl.h.

/// O_DIRECTORY, O_NOFOLLOW, O_DIRECT and O_LARGEFILE: the AArch64 value and the generic value.
const OPEN: [(u64, u64); 4] =
    [(0x4000, 0x1_0000), (0x8000, 0x2_0000), (0x1_0000, 0x4000), (0x2_0000, 0x8000)];

fn convert(flags: u64, pair: impl Fn((u64, u64)) -> (u64, u64)) -> u64 {
    let rest = flags & !OPEN.iter().fold(0, |all, (own, _)| all | own);
    OPEN.iter()
        .map(|entry| pair(*entry))
        .fold(rest, |sum, (from, to)| if flags & from != 0 { sum | to } else { sum })
}

/// Converts open(2) flags from AArch64 to generic values.
pub fn open_flags(flags: u64) -> u64 {
    convert(flags, |pair| pair)
}

/// Converts open(2) flags from generic to AArch64 values.
pub fn open_flags_to_arm(flags: u64) -> u64 {
    convert(flags, |(own, other)| (other, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_convert_both_ways() {
        assert_eq!(open_flags(0x4000 | 0x8_0000 | 2), 0x1_0000 | 0x8_0000 | 2);
        for flags in [0, 0x241, 0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x3_c000 | 0x800] {
            assert_eq!(open_flags_to_arm(open_flags(flags)), flags);
        }
    }
}
