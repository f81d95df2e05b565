//! Numbers that differ between MIPS and the generic Linux ABI: errors, signals, flags. Source: Linux
//! arch/mips/include/uapi/asm/{errno,signal,fcntl,mman,socket,ioctls,resource}.h and the headers of asm-generic.

/// MIPS error numbers, indexed by the generic number.
#[rustfmt::skip]
const ERRORS: [u16; 134] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 45, 78, 46, 89, 93, 90, 41, 35, 36, 37, 38, 39, 40,
    41, 42, 43, 44, 50, 51, 52, 53, 54, 55, 58, 59, 60, 61, 62, 63,
    64, 65, 66, 67, 68, 69, 70, 71, 74, 73, 77, 79, 80, 81, 82, 83,
    84, 85, 86, 87, 88, 91, 92, 94, 95, 96, 97, 98, 99, 120, 121, 122,
    123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 143, 144, 145, 146,
    147, 148, 149, 150, 151, 135, 137, 138, 139, 140, 1133, 159, 160, 158, 161, 162,
    163, 164, 165, 166, 167, 168,
];

/// MIPS signals 1 to 31, indexed by the generic number. SIGSTKFLT has no counterpart and maps to SIGEMT.
const SIGNALS: [u8; 32] = [
    0, 1, 2, 3, 4, 5, 6, 10, 8, 9, 16, 11, 17, 13, 14, 15, 7, 18, 25, 23, 24, 26, 27, 21, 30, 31, 28, 29, 20,
    22, 19, 12,
];

/// open(2) flags: the MIPS value and the generic value.
const OPEN: [(u64, u64); 11] = [
    (0x8, 0x400),
    (0x10, 0x1000),
    (0x80, 0x800),
    (0x100, 0x40),
    (0x200, 0x200),
    (0x400, 0x80),
    (0x800, 0x100),
    (0x1000, 0x2000),
    (0x4000, 0x10_0000),
    (0x8000, 0x4000),
    (0x2000, 0x8000),
];
/// open(2) flags with identical values.
const OPEN_SAME: u64 = 0x3 | 0x1_0000 | 0x2_0000 | 0x4_0000 | 0x8_0000 | 0x20_0000 | 0x40_0000;

/// mmap(2) flags: the MIPS value and the generic value.
const MAP: [(u64, u64); 9] = [
    (0x400, 0x4000),
    (0x800, 0x20),
    (0x1000, 0x100),
    (0x2000, 0x800),
    (0x8000, 0x2000),
    (0x1_0000, 0x8000),
    (0x2_0000, 0x1_0000),
    (0x4_0000, 0x2_0000),
    (0x8_0000, 0x4_0000),
];
/// MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_FIXED_NOREPLACE.
const MAP_SAME: u64 = 0x13 | 0x10_0000;

/// Socket options at level SOL_SOCKET: the MIPS value and the generic value.
const SOCKET: [(u64, u64); 17] = [
    (0x4, 2),
    (0x1008, 3),
    (0x1007, 4),
    (0x10, 5),
    (0x20, 6),
    (0x1001, 7),
    (0x1002, 8),
    (0x8, 9),
    (0x100, 10),
    (0x80, 13),
    (0x200, 15),
    (0x1003, 19),
    (0x1004, 18),
    (0x1005, 21),
    (0x1006, 20),
    (0x1009, 30),
    (0x1028, 38),
];

/// Converts an error number from generic to MIPS.
pub fn error(number: u64) -> u64 {
    ERRORS.get(number as usize).map_or(number, |&error| error.into())
}

/// Converts a signal number from generic to MIPS.
pub fn signal_to_mips(number: u64) -> u64 {
    SIGNALS.get(number as usize).map_or(number, |&signal| signal.into())
}

/// Converts a signal number from MIPS to generic; out of range if there is no counterpart.
pub fn signal_from_mips(number: u64) -> u64 {
    match number {
        32.. => number,
        _ => (0..32).find(|other| signal_to_mips(*other) == number).unwrap_or(255),
    }
}

/// Applies a conversion to each signal of a set.
fn map_signals(set: u64, number: fn(u64) -> u64) -> u64 {
    let signals = (1..=64).filter(|signal| set >> (signal - 1) & 1 != 0).map(number);
    signals.filter(|signal| (1..=64).contains(signal)).fold(0, |sum, signal| sum | 1 << (signal - 1))
}

/// Converts a signal set from generic to MIPS numbers.
pub fn set_to_mips(set: u64) -> u64 {
    map_signals(set, signal_to_mips)
}

/// Converts a signal set from MIPS to generic numbers.
pub fn set_from_mips(set: u64) -> u64 {
    map_signals(set, signal_from_mips)
}

fn convert(table: &[(u64, u64)], same: u64, flags: u64, to_mips: bool) -> u64 {
    let pair = |(mips, other): (u64, u64)| if to_mips { (other, mips) } else { (mips, other) };
    table
        .iter()
        .map(|entry| pair(*entry))
        .fold(flags & same, |sum, (from, to)| if flags & from != 0 { sum | to } else { sum })
}

/// Converts open(2) flags from MIPS to generic values. Also for calls that only take O_CLOEXEC and O_NONBLOCK.
pub fn open_flags(flags: u64) -> u64 {
    convert(&OPEN, OPEN_SAME, flags, false)
}

/// Converts open(2) flags from generic to MIPS values.
pub fn open_flags_to_mips(flags: u64) -> u64 {
    convert(&OPEN, OPEN_SAME, flags, true)
}

/// Converts mmap(2) flags from MIPS to generic values.
pub fn map_flags(flags: u64) -> u64 {
    convert(&MAP, MAP_SAME, flags, false)
}

/// Converts a socket level and option from MIPS to generic values.
pub fn socket_option(level: u64, option: u64) -> (u64, u64) {
    if level != 0xffff {
        return (level, option);
    }
    let mapped = SOCKET.iter().find(|(mips, _)| *mips == option).map(|(_, other)| *other);
    // Options outside of the table are identical or undefined.
    (1, mapped.unwrap_or(if option < 0x100 { option } else { 0xffff }))
}

/// Converts a socket type: SOCK_STREAM and SOCK_DGRAM are swapped.
pub fn socket_type(kind: u64) -> u64 {
    let plain = match kind & 0xf {
        1 => 2,
        2 => 1,
        other => other,
    };
    plain | open_flags(kind & !0xf)
}

/// Converts a setrlimit(2) resource.
pub fn resource(number: u64) -> u64 {
    match number {
        5 => 7,
        6 => 9,
        7 => 5,
        8 => 6,
        9 => 8,
        other => other,
    }
}

/// Converts an ioctl(2) request whose argument has the same layout. Returns `None` for terminal requests, whose
/// structures differ, and for unknown ones.
pub fn request(number: u64) -> Option<u64> {
    Some(match number as u32 {
        0x4008_7468 => 0x5413,
        0x467f => 0x541b,
        0x667e => 0x5421,
        0x6601 => 0x5451,
        0x6602 => 0x5450,
        other if other >> 8 & 0xff != 0x54 && other >> 8 & 0xff != 0x74 => other.into(),
        _ => return None,
    })
}
