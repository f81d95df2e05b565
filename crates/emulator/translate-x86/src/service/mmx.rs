//! MMX instructions, and those of SSE to SSSE3 with MMX registers, which the engine executes. MMX register `n` is the
//! mantissa of the physical x87 register `n`. Source: Intel SDM, volume 1, chapter 9; volume 2.

use iced_x86::{Mnemonic, OpKind};
use longma_loongarch::{State, Trap, float};
use rustc_apfloat::ieee::{Double, Single};
use rustc_apfloat::{Float, Round, Status};

use super::vectors::{lane, put_lane};
use super::{Done, Machine, x87};
use crate::registers::{RDI, X87_EXPONENTS, X87_MANTISSAS};

/// The value of an MMX register.
pub(super) fn register(state: &State, n: usize) -> u64 {
    state.v[usize::from(X87_MANTISSAS) + n / 4].0[n % 4]
}

fn set_register(state: &mut State, n: usize, value: u64) {
    state.v[usize::from(X87_MANTISSAS) + n / 4].0[n % 4] = value;
    state.v[usize::from(X87_EXPONENTS)].0[n / 4] |= 0xffff << (16 * (n % 4));
}

/// Sets the x87 state that every MMX instruction except EMMS leaves: the top of the stack is register 0, and no register
/// is empty.
fn enter(state: &mut State) {
    let words = x87::words(state);
    x87::set_words(state, x87::Words { status: words.status & !0x3800, empty: 0, ..words });
}

/// The rounding mode of MXCSR.
fn rounding(state: &State) -> Round {
    match super::control(state) >> 13 & 3 {
        0 => Round::NearestTiesToEven,
        1 => Round::TowardNegative,
        2 => Round::TowardPositive,
        _ => Round::TowardZero,
    }
}

/// The signed value of a lane.
fn signed(value: u64, at: usize, size: usize) -> i64 {
    let unused = 64 - 8 * size as u32;
    (lane(&value.to_le_bytes(), at, size) << unused) as i64 >> unused
}

fn unsigned(value: u64, at: usize, size: usize) -> i64 {
    lane(&value.to_le_bytes(), at, size) as i64
}

/// A value from its lanes of `size` bytes.
fn lanes(size: usize, mut value: impl FnMut(usize) -> i64) -> u64 {
    let mut bytes = [0; 8];
    (0..8 / size).for_each(|at| put_lane(&mut bytes, at, size, value(at) as u64));
    u64::from_le_bytes(bytes)
}

/// The nearest value of a signed or unsigned lane.
fn saturated(value: i64, size: usize, is_signed: bool) -> i64 {
    let bits = 8 * size as u32;
    if is_signed {
        value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

/// Instructions on pairs of lanes of two values.
fn lanewise(mnemonic: Mnemonic, a: u64, b: u64) -> Option<u64> {
    use Mnemonic::*;
    let size = match mnemonic {
        Paddb | Paddsb | Paddusb | Psubb | Psubsb | Psubusb | Pcmpeqb | Pcmpgtb | Pavgb | Pminub | Pmaxub
        | Pabsb | Psignb => 1,
        Paddw | Paddsw | Paddusw | Psubw | Psubsw | Psubusw | Pcmpeqw | Pcmpgtw | Pavgw | Pminsw | Pmaxsw
        | Pabsw | Psignw | Pmullw | Pmulhw | Pmulhuw | Pmulhrsw => 2,
        Paddd | Psubd | Pcmpeqd | Pcmpgtd | Pabsd | Psignd => 4,
        Paddq | Psubq | Pand | Pandn | Por | Pxor | Pmuludq => 8,
        _ => return None,
    };
    let all = |holds: bool| -i64::from(holds);
    Some(lanes(size, |at| {
        let (x, y) = (signed(a, at, size), signed(b, at, size));
        let (ux, uy) = (unsigned(a, at, size), unsigned(b, at, size));
        match mnemonic {
            Paddb | Paddw | Paddd | Paddq => x.wrapping_add(y),
            Psubb | Psubw | Psubd | Psubq => x.wrapping_sub(y),
            Paddsb | Paddsw => saturated(x + y, size, true),
            Psubsb | Psubsw => saturated(x - y, size, true),
            Paddusb | Paddusw => saturated(ux + uy, size, false),
            Psubusb | Psubusw => saturated(ux - uy, size, false),
            Pcmpeqb | Pcmpeqw | Pcmpeqd => all(x == y),
            Pcmpgtb | Pcmpgtw | Pcmpgtd => all(x > y),
            Pavgb | Pavgw => (ux + uy + 1) >> 1,
            Pminub => ux.min(uy),
            Pmaxub => ux.max(uy),
            Pminsw => x.min(y),
            Pmaxsw => x.max(y),
            Pabsb | Pabsw | Pabsd => y.abs(),
            Psignb | Psignw | Psignd => x.wrapping_mul(y.signum()),
            Pmullw => x * y,
            Pmulhw => (x * y) >> 16,
            Pmulhuw => (ux * uy) >> 16,
            Pmulhrsw => (((x * y) >> 14) + 1) >> 1,
            Pand => x & y,
            Pandn => !x & y,
            Por => x | y,
            Pxor => x ^ y,
            _ => ((a & 0xffff_ffff) * (b & 0xffff_ffff)) as i64,
        }
    }))
}

/// Instructions that combine lanes at different positions.
fn across(mnemonic: Mnemonic, a: u64, b: u64) -> Option<u64> {
    use Mnemonic::*;
    let pair = |value: u64, at: usize, size: usize| (signed(value, at, size), signed(value, at + 1, size));
    let horizontal = |size: usize, combine: fn(i64, i64) -> i64| {
        let each = 4 / size;
        lanes(size, |at| {
            let (value, from) = if at < each { (a, 2 * at) } else { (b, 2 * (at - each)) };
            let (x, y) = pair(value, from, size);
            combine(x, y)
        })
    };
    let unpack = |size: usize, start: usize| {
        lanes(size, |at| unsigned(if at % 2 == 0 { a } else { b }, start / size + at / 2, size))
    };
    let pack = |size: usize, is_signed: bool| {
        let each = 4 / size;
        lanes(size, |at| {
            let (value, from) = if at < each { (a, at) } else { (b, at - each) };
            saturated(signed(value, from, 2 * size), size, is_signed)
        })
    };
    Some(match mnemonic {
        Packsswb => pack(1, true),
        Packuswb => pack(1, false),
        Packssdw => pack(2, true),
        Punpcklbw => unpack(1, 0),
        Punpcklwd => unpack(2, 0),
        Punpckldq => unpack(4, 0),
        Punpckhbw => unpack(1, 4),
        Punpckhwd => unpack(2, 4),
        Punpckhdq => unpack(4, 4),
        Phaddw => horizontal(2, |x, y| x + y),
        Phaddd => horizontal(4, |x, y| x + y),
        Phaddsw => horizontal(2, |x, y| saturated(x + y, 2, true)),
        Phsubw => horizontal(2, |x, y| x - y),
        Phsubd => horizontal(4, |x, y| x - y),
        Phsubsw => horizontal(2, |x, y| saturated(x - y, 2, true)),
        Pmaddwd => lanes(4, |at| (0..2).map(|n| signed(a, 2 * at + n, 2) * signed(b, 2 * at + n, 2)).sum()),
        Pmaddubsw => lanes(2, |at| {
            let sum = (0..2).map(|n| unsigned(a, 2 * at + n, 1) * signed(b, 2 * at + n, 1)).sum();
            saturated(sum, 2, true)
        }),
        Psadbw => (0..8).map(|at| unsigned(a, at, 1).abs_diff(unsigned(b, at, 1))).sum(),
        Pshufb => lanes(1, |at| {
            let from = unsigned(b, at, 1);
            if from & 0x80 != 0 { 0 } else { unsigned(a, from as usize & 7, 1) }
        }),
        _ => return None,
    })
}

/// Shifts of all lanes by the same count.
fn shifts(mnemonic: Mnemonic, a: u64, count: u64) -> Option<u64> {
    use Mnemonic::*;
    let size = match mnemonic {
        Psllw | Psrlw | Psraw => 2,
        Pslld | Psrld | Psrad => 4,
        Psllq | Psrlq => 8,
        _ => return None,
    };
    let bits = 8 * size as u64;
    Some(lanes(size, |at| match mnemonic {
        Psraw | Psrad => signed(a, at, size) >> count.min(bits - 1),
        _ if count >= bits => 0,
        Psllw | Pslld | Psllq => unsigned(a, at, size) << count,
        _ => (unsigned(a, at, size) as u64 >> count) as i64,
    }))
}

impl Machine<'_> {
    /// Executes an instruction with MMX registers, or EMMS. `None` for others.
    pub(super) fn mmx(&mut self) -> Option<Done> {
        let i = self.instruction;
        if i.mnemonic() == Mnemonic::Emms {
            let words = x87::words(self.state);
            x87::set_words(self.state, x87::Words { empty: 0xff, ..words });
            return Some(Ok(()));
        }
        let is_mmx =
            |n: u32| n < i.op_count() && i.op_kind(n) == OpKind::Register && i.op_register(n).is_mm();
        let converts = matches!(i.mnemonic(), Mnemonic::Cvtpi2ps | Mnemonic::Cvtpi2pd);
        if !converts && !(0..i.op_count()).any(is_mmx) {
            return None;
        }
        Some(self.mmx_instruction())
    }

    /// The value of an operand: an MMX register, half of a vector, a general register, memory or an immediate.
    fn mmx_in(&self, operand: u32) -> Result<u64, Trap> {
        let i = &self.instruction;
        match i.op_kind(operand) {
            OpKind::Register => {
                let register_operand = i.op_register(operand);
                Ok(match register_operand {
                    _ if register_operand.is_mm() => register(self.state, register_operand.number()),
                    _ if register_operand.is_xmm() => self.state.v[16 + register_operand.number()].0[0],
                    _ => self.register(register_operand),
                })
            }
            OpKind::Memory => self.load(self.address(), i.memory_size().size().min(8)),
            _ => Ok(i.immediate8().into()),
        }
    }

    fn mmx_out(&mut self, operand: u32, value: u64) -> Done {
        let i = self.instruction;
        if i.op_kind(operand) == OpKind::Memory {
            self.store(self.address(), value, i.memory_size().size())?;
            enter(self.state);
            return Ok(());
        }
        enter(self.state);
        let to = i.op_register(operand);
        if to.is_mm() {
            set_register(self.state, to.number(), value);
        } else if to.is_xmm() {
            self.state.v[16 + to.number()].0[..2].copy_from_slice(&[value, 0]);
        } else {
            self.set_register(to, value);
        }
        Ok(())
    }

    fn mmx_instruction(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let mnemonic = i.mnemonic();
        let order = || usize::from(i.immediate8());
        let result = match mnemonic {
            Movd | Movq | Movntq | Movq2dq | Movdq2q => self.mmx_in(1)?,
            Maskmovq => return self.store_mmx_bytes_where(),
            Cvtpi2ps | Cvtpi2pd | Cvtps2pi | Cvttps2pi | Cvtpd2pi | Cvttpd2pi => {
                return self.mmx_conversion();
            }
            Pmovmskb => {
                let a = self.mmx_in(1)?;
                (0..8).fold(0, |mask, at| mask | (a >> (8 * at + 7) & 1) << at)
            }
            Pextrw => self.mmx_in(1)? >> (16 * (order() & 3)) & 0xffff,
            Pinsrw => {
                let at = 16 * (order() & 3);
                self.mmx_in(0)? & !(0xffff << at) | (self.mmx_in(1)? & 0xffff) << at
            }
            Pshufw => {
                let a = self.mmx_in(1)?;
                lanes(2, |at| unsigned(a, order() >> (2 * at) & 3, 2))
            }
            Palignr => {
                let concatenated = u128::from(self.mmx_in(0)?) << 64 | u128::from(self.mmx_in(1)?);
                if order() < 16 { (concatenated >> (8 * order())) as u64 } else { 0 }
            }
            _ => {
                let (a, b) = (self.mmx_in(0)?, self.mmx_in(1)?);
                let found = lanewise(mnemonic, a, b).or_else(|| across(mnemonic, a, b));
                found.or_else(|| shifts(mnemonic, a, b)).ok_or(Trap::IllegalInstruction)?
            }
        };
        self.mmx_out(0, result)
    }

    /// Conversions between two integers in an MMX register and two floating-point numbers in a vector.
    fn mmx_conversion(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let name = i.mnemonic();
        if matches!(name, Cvtpi2ps | Cvtpi2pd) {
            let source = self.mmx_in(1)?;
            if i.op1_kind() == OpKind::Register || name == Cvtpi2ps {
                enter(self.state);
            }
            let round = rounding(self.state);
            let mut raised = Status::OK;
            let numbers = [0, 1].map(|at| {
                let value = i128::from(signed(source, at, 4));
                if name == Cvtpi2pd {
                    return Double::from_i128(value).value.to_bits() as u64;
                }
                let single = Single::from_i128_r(value, round);
                raised |= single.status;
                single.value.to_bits() as u64
            });
            let to = &mut self.state.v[16 + i.op0_register().number()].0;
            match name {
                Cvtpi2pd => to[..2].copy_from_slice(&numbers),
                _ => to[0] = numbers[0] | numbers[1] << 32,
            }
            super::raise(self.state, super::exceptions_of(raised));
            return Ok(());
        }
        let source = self.vector_in(1)?;
        let truncates = matches!(name, Cvttps2pi | Cvttpd2pi);
        let round = if truncates { Round::TowardZero } else { rounding(self.state) };
        let rules = self.state.fcsr.rules();
        let mut raised = Status::OK;
        let result = lanes(4, |at| {
            let found = if matches!(name, Cvtps2pi | Cvttps2pi) {
                let value = rules.flushed::<float::Single>(lane(&source, at, 4));
                Single::from_bits(value.into()).to_i128_r(32, round, &mut false)
            } else {
                let value = rules.flushed::<float::Double>(lane(&source, at, 8));
                Double::from_bits(value.into()).to_i128_r(32, round, &mut false)
            };
            raised |= found.status;
            if found.status.contains(Status::INVALID_OP) { i32::MIN.into() } else { found.value as i64 }
        });
        self.mmx_out(0, result)?;
        super::raise(self.state, super::exceptions_of(raised));
        Ok(())
    }

    /// MASKMOVQ.
    fn store_mmx_bytes_where(&mut self) -> Done {
        let (value, mask) = (self.mmx_in(1)?, self.mmx_in(2)?);
        let short = self.instruction.op0_kind() == OpKind::MemorySegEDI;
        let base = self.state.r(RDI) & if short { 0xffff_ffff } else { u64::MAX };
        let base = base.wrapping_add(self.segment_base());
        for at in (0..8).filter(|at| mask >> (8 * at + 7) & 1 != 0) {
            self.store(base.wrapping_add(at), value >> (8 * at) & 0xff, 1)?;
        }
        enter(self.state);
        Ok(())
    }
}
