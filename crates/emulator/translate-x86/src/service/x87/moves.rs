//! Loads, stores and moves of x87. Source: Intel SDM, volume 2; volume 1, section 8.1.2 (C1) and 4.7 (packed decimals).

use iced_x86::OpKind;
use longma_loongarch::Trap;
use rustc_apfloat::ieee::{Double, Single, X87DoubleExtended as Extended};
use rustc_apfloat::{Float, FloatConvert, Round, Status, StatusAnd};

use super::arithmetic::{is_signalling, magnitude};
use super::{INEXACT, INVALID, OVERFLOW, Stack, double, from_bits, set_bits};
use crate::registers::flags_of;
use crate::service::{CF, Done, PF, ZF, exceptions_of};

impl Stack<'_, '_> {
    pub(super) fn moves(&mut self, name: &str) -> Result<bool, Trap> {
        let i = self.m.instruction;
        let in_memory = i.op_count() > 0 && i.op0_kind() == OpKind::Memory;
        match name {
            "FLD" if in_memory && i.memory_size().size() == 10 => {
                let address = self.m.address();
                let exponent = self.m.load(address.wrapping_add(8), 2)? as u16;
                let mantissa = self.m.load(address, 8)?;
                self.push_bits((mantissa, exponent));
            }
            "FLD" if in_memory => {
                let value = self.float()?;
                self.push(value);
            }
            "FLD" => {
                let value = self.get_bits(self.number(0));
                self.push_bits(value);
            }
            "FBLD" => self.load_decimal()?,
            "FBSTP" => self.store_decimal()?,
            "FILD" => {
                let value = self.integer()?;
                self.push(value);
            }
            "FST" | "FSTP" | "FSTPNCE" => {
                self.c1 = Some(false);
                if in_memory {
                    self.store_float()?;
                } else {
                    let value = self.get_bits(0);
                    self.set_raw(self.number(0), value);
                }
                if name != "FST" {
                    self.pop();
                }
            }
            "FIST" | "FISTP" | "FISTTP" => self.store_integer(name)?,
            "FXCH" => {
                let number = self.number(if i.op_count() > 1 { 1 } else { 0 });
                self.c1 = Some(false);
                let (a, b) = (self.get_bits(0), self.get_bits(number));
                self.set_raw(0, b);
                self.set_raw(number, a);
            }
            "FLD1" => self.push(double(1.0)),
            "FLDZ" => self.push(double(0.0)),
            "FLDPI" => self.constant(0xc90f_daa2_2168_c234, 0x4000, true),
            "FLDL2E" => self.constant(0xb8aa_3b29_5c17_f0bb, 0x3fff, true),
            "FLDL2T" => self.constant(0xd49a_784b_cd1b_8afe, 0x4000, false),
            "FLDLG2" => self.constant(0x9a20_9a84_fbcf_f798, 0x3ffd, true),
            "FLDLN2" => self.constant(0xb172_17f7_d1cf_79ab, 0x3ffe, true),
            _ => match name.strip_prefix("FCMOV") {
                Some(condition) => return Ok(self.conditional_move(condition)),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Pushes a constant: its truncated mantissa, and whether the next fraction bit is set.
    fn constant(&mut self, mantissa: u64, exponent: u16, is_above_half: bool) {
        let is_up = match self.round() {
            Round::NearestTiesToEven => is_above_half,
            Round::TowardPositive => true,
            _ => false,
        };
        self.push_bits((mantissa + u64::from(is_up), exponent));
    }

    fn set_raw(&mut self, number: u8, value: (u64, u16)) {
        set_bits(self.m.state, number, value);
        self.set_tag(number, false);
    }

    fn store_integer(&mut self, name: &str) -> Done {
        let round = if name == "FISTTP" { Round::TowardZero } else { self.round() };
        let bytes = self.m.instruction.memory_size().size();
        let value = self.get(0);
        let result = value.to_i128_r(8 * bytes, round, &mut false);
        let is_bad = result.status.contains(Status::INVALID_OP) || value.is_nan();
        let smallest = 1u64 << (8 * bytes - 1);
        let bits = if is_bad { smallest } else { result.value as u64 };
        self.m.store(self.m.address(), bits, bytes)?;
        let is_inexact = !is_bad && result.status.contains(Status::INEXACT);
        self.raised |= if is_bad { INVALID } else { 0 };
        self.raised |= if is_inexact { INEXACT } else { 0 };
        let rounded = Extended::from_i128(result.value).value;
        self.c1 = Some(is_inexact && name != "FISTTP" && magnitude(rounded) > magnitude(value));
        if name != "FIST" {
            self.pop();
        }
        Ok(())
    }

    /// FBLD: 18 decimal digits and a sign.
    fn load_decimal(&mut self) -> Done {
        let mut bytes = [0; 10];
        self.m.load_bytes(self.m.address(), &mut bytes)?;
        let digits = bytes[..9].iter().rev().flat_map(|byte| [byte >> 4, byte & 15]);
        let value = digits.fold(0i128, |sum, digit| 10 * sum + i128::from(digit));
        let number = Extended::from_i128(value).value;
        self.push(if bytes[9] & 0x80 != 0 { -number } else { number });
        Ok(())
    }

    /// FBSTP.
    fn store_decimal(&mut self) -> Done {
        const LIMIT: i128 = 1_000_000_000_000_000_000;
        let value = self.get(0);
        let result = value.to_i128_r(64, self.round(), &mut false);
        let is_bad =
            value.is_nan() || result.status.contains(Status::INVALID_OP) || result.value.abs() >= LIMIT;
        let mut bytes = [0; 10];
        if is_bad {
            bytes[7..].copy_from_slice(&[0xc0, 0xff, 0xff]);
        } else {
            let mut rest = result.value.unsigned_abs();
            for byte in &mut bytes[..9] {
                *byte = ((rest % 10) | ((rest / 10 % 10) << 4)) as u8;
                rest /= 100;
            }
            bytes[9] = if value.is_negative() { 0x80 } else { 0 };
        }
        self.m.store_bytes(self.m.address(), &bytes)?;
        let is_inexact = !is_bad && result.status.contains(Status::INEXACT);
        self.raised |= if is_bad { INVALID } else { 0 };
        self.raised |= if is_inexact { INEXACT } else { 0 };
        let rounded = Extended::from_i128(result.value).value;
        self.c1 = Some(is_inexact && magnitude(rounded) > magnitude(value));
        self.pop();
        Ok(())
    }

    /// FCMOVcc. Returns false if the condition does not exist.
    fn conditional_move(&mut self, condition: &str) -> bool {
        let flags = flags_of(self.m.state);
        let (negated, condition) = match condition.strip_prefix('N') {
            Some(rest) => (true, rest),
            None => (false, condition),
        };
        let holds = match condition {
            "B" => flags & CF != 0,
            "E" => flags & ZF != 0,
            "BE" => flags & (CF | ZF) != 0,
            "U" => flags & PF != 0,
            _ => return false,
        };
        if holds != negated {
            let value = self.get_bits(self.number(1));
            self.set_raw(0, value);
        }
        true
    }

    /// Stores the top of the stack as a floating-point number.
    fn store_float(&mut self) -> Done {
        let (address, round) = (self.m.address(), self.round());
        let (mantissa, exponent) = self.get_bits(0);
        let value = from_bits((mantissa, exponent));
        let bytes = self.m.instruction.memory_size().size();
        let (number, status, converted_back): (u64, Status, Extended) = match bytes {
            4 => {
                let single: StatusAnd<Single> = value.convert_r(round, &mut false);
                (single.value.to_bits() as u64, single.status, single.value.convert(&mut false).value)
            }
            8 => {
                let double: StatusAnd<Double> = value.convert_r(round, &mut false);
                (double.value.to_bits() as u64, double.status, double.value.convert(&mut false).value)
            }
            _ => {
                let mut bytes = [0; 10];
                bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
                bytes[8..].copy_from_slice(&exponent.to_le_bytes());
                return self.m.store_bytes(address, &bytes);
            }
        };
        self.m.store(address, number, bytes)?;
        if value.is_nan() {
            self.raised |= if is_signalling(value) { INVALID } else { 0 };
            return Ok(());
        }
        self.raised |= exceptions_of(status) as u16;
        // A result that is rounded toward zero overflows, too.
        let limit = if bytes == 4 { 128 } else { 1024 };
        self.raised |= if value.is_finite_non_zero() && value.ilogb() >= limit { OVERFLOW } else { 0 };
        self.c1 = Some(status.contains(Status::INEXACT) && magnitude(converted_back) > magnitude(value));
        Ok(())
    }
}
