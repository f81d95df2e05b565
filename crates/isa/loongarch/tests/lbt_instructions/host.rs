//! The host's arithmetic unit as an oracle: executes one x86 instruction and returns its flags.

use std::arch::asm;

/// Sets the flags, executes one instruction and reads the flags.
macro_rules! run {
    ($flags:ident, $text:expr, $($operands:tt)*) => {{
        // Bit 1 always reads as one. Bit 9 enables interrupts, as in any user program.
        let mut flags = u64::from($flags) | 0x202;
        // SAFETY: the instruction changes only the declared registers and the flags, which are clobbered by default.
        // The pushes below the stack pointer are balanced, which asm! without `nostack` permits. No other memory is
        // accessed.
        unsafe {
            asm!("push {flags}", "popfq", $text, "pushfq", "pop {flags}", flags = inout(reg) flags, $($operands)*);
        }
        flags as u32 & 0x8d5
    }};
}

/// One instruction at four widths; the bracketed suffixes complete the mnemonic.
macro_rules! widths {
    ($bits:ident, $flags:ident, $name:literal, [$byte:literal $half:literal $word:literal $double:literal], $($operands:tt)*) => {
        match $bits {
            8 => run!($flags, concat!($name, $byte), $($operands)*),
            16 => run!($flags, concat!($name, $half), $($operands)*),
            32 => run!($flags, concat!($name, $word), $($operands)*),
            _ => run!($flags, concat!($name, $double), $($operands)*),
        }
    };
}

macro_rules! two_registers {
    ($name:literal, $bits:ident, $flags:ident, $a:ident, $b:ident) => {
        widths!($bits, $flags, $name, [" {a:l}, {b:l}" " {a:x}, {b:x}" " {a:e}, {b:e}" " {a:r}, {b:r}"],
            a = inout(reg) $a => _, b = in(reg) $b)
    };
}

macro_rules! one_register {
    ($name:literal, $bits:ident, $flags:ident, $a:ident) => {
        widths!($bits, $flags, $name, [" {a:l}" " {a:x}" " {a:e}" " {a:r}"], a = inout(reg) $a => _)
    };
}

macro_rules! by_count {
    ($name:literal, $bits:ident, $flags:ident, $a:ident, $b:ident) => {
        widths!($bits, $flags, $name, [" {a:l}, cl" " {a:x}, cl" " {a:e}, cl" " {a:r}, cl"],
            a = inout(reg) $a => _, in("rcx") $b)
    };
}

macro_rules! product {
    ($name:literal, $bits:ident, $flags:ident, $a:ident, $b:ident) => {
        widths!($bits, $flags, $name, [" {b:l}" " {b:x}" " {b:e}" " {b:r}"],
            b = in(reg) $b, inout("rax") $a => _, out("rdx") _)
    };
}

/// The flags after the host's instruction for LBT's `x86STEM`.
pub fn flags(stem: &str, bits: u32, unsigned: bool, flags: u32, a: u64, b: u64) -> u32 {
    match stem {
        "add" => two_registers!("add", bits, flags, a, b),
        "adc" => two_registers!("adc", bits, flags, a, b),
        "sub" => two_registers!("sub", bits, flags, a, b),
        "sbc" => two_registers!("sbb", bits, flags, a, b),
        "and" => two_registers!("and", bits, flags, a, b),
        "or" => two_registers!("or", bits, flags, a, b),
        "xor" => two_registers!("xor", bits, flags, a, b),
        "inc" => one_register!("inc", bits, flags, a),
        "dec" => one_register!("dec", bits, flags, a),
        "mul" if unsigned => product!("mul", bits, flags, a, b),
        "mul" => product!("imul", bits, flags, a, b),
        "sll" => by_count!("shl", bits, flags, a, b),
        "srl" => by_count!("shr", bits, flags, a, b),
        "sra" => by_count!("sar", bits, flags, a, b),
        "rotl" => by_count!("rol", bits, flags, a, b),
        "rotr" => by_count!("ror", bits, flags, a, b),
        "rcl" => by_count!("rcl", bits, flags, a, b),
        "rcr" => by_count!("rcr", bits, flags, a, b),
        _ => panic!("x86 has no {stem}"),
    }
}

/// Converts an extended number (64-bit significand, sign and exponent) to a double with the x87, in a rounding mode of
/// its control word (0 nearest, 1 down, 2 up, 3 to zero). Also returns the exception bits of the status word.
pub fn extended_to_double(significand: u64, sign_and_exponent: u16, rounding: u16) -> (u64, u16) {
    let mut extended = [0u8; 16];
    extended[..8].copy_from_slice(&significand.to_le_bytes());
    extended[8..10].copy_from_slice(&sign_and_exponent.to_le_bytes());
    let (control, mut double, mut status) = (0x37fu16 | rounding << 10, 0u64, 0u16);
    // SAFETY: loads 10 of the 16 bytes of `extended` and the 2 of `control`; stores the 8 of `double` and the 2 of
    // `status`; all are live. fninit puts the x87 into the state that the ABI requires (empty stack), before and after.
    unsafe {
        asm!(
            "fninit", "fldcw [{control}]", "fld tbyte ptr [{extended}]", "fstp qword ptr [{double}]",
            "fnstsw [{status}]", "fninit",
            control = in(reg) &raw const control, extended = in(reg) extended.as_ptr(),
            double = in(reg) &raw mut double, status = in(reg) &raw mut status,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    (double, status & 0x3f)
}

/// Converts a double to an extended number with the x87. Returns the significand, sign and exponent, and the exception
/// bits.
pub fn double_to_extended(double: u64) -> (u64, u16, u16) {
    let (mut extended, mut status) = ([0u8; 16], 0u16);
    // SAFETY: loads the 8 bytes of `double`; stores 10 of the 16 of `extended` and the 2 of `status`; the x87 state as
    // above.
    unsafe {
        asm!(
            "fninit", "fld qword ptr [{double}]", "fstp tbyte ptr [{extended}]", "fnstsw [{status}]", "fninit",
            double = in(reg) &raw const double, extended = in(reg) extended.as_mut_ptr(), status = in(reg) &raw mut status,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    let significand = u64::from_le_bytes(extended[..8].try_into().expect("eight bytes"));
    (significand, u16::from_le_bytes([extended[8], extended[9]]), status & 0x3f)
}
