//! Rare vector instructions that the engine executes: gathers with unusual addresses, sums of absolute differences,
//! string comparisons, reciprocals. Source: Intel SDM, volume 2; volume 1,
//! section 14 (AVX).

use iced_x86::{Mnemonic, OpKind, Register};
use longma_loongarch::State;

use super::{Done, Machine};
use crate::code::{first, is_vex, last, must_be_aligned, old};
use crate::registers::*;
use longma_loongarch::Trap;

/// A 256-bit value.
pub(super) type Wide = [u8; 32];

/// The value of a YMM register.
fn whole(state: &State, n: usize) -> Wide {
    let low = state.v[16 + n].0;
    let high = upper(state, n);
    let lanes = [low[0], low[1], high[0], high[1]];
    let mut bytes = [0; 32];
    for (at, lane) in lanes.into_iter().enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&lane.to_le_bytes());
    }
    bytes
}

pub(super) fn lane(bytes: &[u8], at: usize, size: usize) -> u64 {
    (0..size).fold(0, |sum, byte| sum | u64::from(bytes[at * size + byte]) << (8 * byte))
}

pub(super) fn put_lane(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    bytes[at * size..][..size].copy_from_slice(&value.to_le_bytes()[..size]);
}

impl Machine<'_> {
    /// Executes a vector instruction. `None` if it is unknown.
    pub(super) fn vectors(&mut self) -> Option<Done> {
        use Mnemonic::*;
        Some(match old(&self.instruction) {
            Rcpps | Rcpss | Rsqrtps | Rsqrtss => self.estimate(),
            Dpps | Dppd => self.dot_product(),
            Mpsadbw => self.differences(),
            Phminposuw => self.minimum_word(),
            Pcmpestri | Pcmpestri64 | Pcmpestrm | Pcmpestrm64 | Pcmpistri | Pcmpistrm => {
                self.compare_strings()
            }
            Maskmovdqu => self.store_bytes_where(),
            _ => return self.newer_vectors(),
        })
    }

    fn newer_vectors(&mut self) -> Option<Done> {
        use Mnemonic::*;
        Some(match self.instruction.mnemonic() {
            Vcvtph2ps => self.widen_halves(),
            Vcvtps2ph => self.narrow_to_halves(),
            Vpgatherdd | Vgatherdps | Vpgatherdq | Vgatherdpd => self.gather(4),
            Vpgatherqd | Vgatherqps | Vpgatherqq | Vgatherqpd => self.gather(8),
            _ => return None,
        })
    }

    /// The value of a vector operand: a whole register, or memory padded with zeros.
    pub(super) fn vector_in(&self, operand: u32) -> Result<Wide, Trap> {
        let i = &self.instruction;
        if i.op_kind(operand) == OpKind::Register {
            return Ok(whole(self.state, i.op_register(operand).number()));
        }
        let mut bytes = [0; 32];
        let size = i.memory_size().size();
        let address = if must_be_aligned(i) { self.aligned_address(size as u64)? } else { self.address() };
        self.load_bytes(address, &mut bytes[..size])?;
        Ok(bytes)
    }

    /// Writes a vector register. VEX-encoded instructions clear the bits above the operand, others preserve them.
    pub(super) fn vector_out(&mut self, register: Register, value: &Wide) {
        let n = register.number();
        let at = |lane: usize| u64::from_le_bytes(std::array::from_fn(|byte| value[8 * lane + byte]));
        self.state.v[16 + n].0[..2].copy_from_slice(&[at(0), at(1)]);
        if is_vex(&self.instruction) {
            set_upper(self.state, n, if register.is_ymm() { [at(2), at(3)] } else { [0; 2] });
        }
    }

    pub(super) fn sources(&self) -> Result<[Wide; 2], Trap> {
        Ok([self.vector_in(first(&self.instruction))?, self.vector_in(last(&self.instruction))?])
    }

    /// The operand size in bytes.
    pub(super) fn width(&self) -> usize {
        if self.instruction.op0_register().is_ymm() { 32 } else { 16 }
    }

    /// RCPPS, RSQRTPS and their scalar forms. The manual allows a relative error of 1.5 * 2^-12; the results here are
    /// more precise.
    fn estimate(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let scalar = matches!(old(&i), Rcpss | Rsqrtss);
        let source = self.vector_in(last(&i))?;
        let mut out = self.vector_in(first(&i))?;
        for at in 0..if scalar { 1 } else { self.width() / 4 } {
            let value = f32::from_bits(lane(&source, at, 4) as u32);
            let root = matches!(old(&i), Rsqrtps | Rsqrtss);
            let result = if root { 1.0 / value.sqrt() } else { 1.0 / value };
            put_lane(&mut out, at, 4, result.to_bits().into());
        }
        self.vector_out(i.op0_register(), &out);
        Ok(())
    }

    /// MPSADBW.
    fn differences(&mut self) -> Done {
        let i = self.instruction;
        let [a, b] = self.sources()?;
        let mut result = [0; 32];
        for half in 0..self.width() / 16 {
            let order = usize::from(i.immediate8()) >> (3 * half);
            let (of_a, of_b) = (4 * (order >> 2 & 1), 4 * (order & 3));
            let (a, b) = (&a[16 * half..], &b[16 * half..]);
            for at in 0..8 {
                let sum = (0..4).map(|n| u64::from(a[of_a + at + n].abs_diff(b[of_b + n]))).sum();
                put_lane(&mut result[16 * half..], at, 2, sum);
            }
        }
        self.vector_out(i.op0_register(), &result);
        Ok(())
    }

    /// PHMINPOSUW.
    fn minimum_word(&mut self) -> Done {
        let i = self.instruction;
        let source = self.vector_in(1)?;
        let (minimum, at) = (0..8).map(|at| (lane(&source, at, 2), at as u64)).min().unwrap_or_default();
        let mut result = [0; 32];
        put_lane(&mut result, 0, 8, minimum | at << 16);
        self.vector_out(i.op0_register(), &result);
        Ok(())
    }

    /// MASKMOVDQU.
    fn store_bytes_where(&mut self) -> Done {
        let i = self.instruction;
        let (value, mask) =
            (whole(self.state, i.op1_register().number()), whole(self.state, i.op2_register().number()));
        let segment = self.segment_base();
        let short = i.op0_kind() == OpKind::MemorySegEDI;
        let base = self.state.r(RDI) & if short { 0xffff_ffff } else { u64::MAX };
        for at in (0..16).filter(|at| mask[*at] & 0x80 != 0) {
            self.store(base.wrapping_add(at as u64).wrapping_add(segment), value[at].into(), 1)?;
        }
        Ok(())
    }

    /// Gathers with indices of `index_bytes` bytes. Elements loaded before a fault are kept.
    fn gather(&mut self, index_bytes: usize) -> Done {
        let i = self.instruction;
        let (d, chooser, index) = (i.op0_register(), i.op2_register(), i.memory_index());
        let size = i.memory_size().size();
        let count = (d.size() / size).min(index.size() / index_bytes);
        let mut result = whole(self.state, d.number());
        let mut mask = whole(self.state, chooser.number());
        let indices = whole(self.state, index.number());
        let base = self.address();
        let mut outcome = Ok(());
        for at in 0..count {
            if mask[at * size + size - 1] & 0x80 != 0 {
                let unused = 64 - 8 * index_bytes as u32;
                let index = (lane(&indices, at, index_bytes) << unused) as i64 >> unused;
                let sum = base.wrapping_add_signed(index.wrapping_mul(i.memory_index_scale().into()));
                match self.load(sum, size) {
                    Ok(value) => put_lane(&mut result, at, size, value),
                    Err(trap) => {
                        outcome = Err(trap);
                        break;
                    }
                }
            }
            put_lane(&mut mask, at, size, 0);
        }
        if outcome.is_ok() {
            mask = [0; 32];
            result[count * size..].fill(0);
        }
        self.vector_out(d, &result);
        self.vector_out(chooser, &mask);
        outcome
    }
}
