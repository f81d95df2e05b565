//! x87 instructions that read and write the control, status and tag word, and save and restore all state. Source: Intel
//! SDM, volume 1, section 8.1.10; volume 2.

use iced_x86::{OpKind, Register};
use longma_loongarch::Trap;

use super::{Stack, Words, bits, initialise, set_bits, set_words, summarised, words};

impl Stack<'_, '_> {
    pub(super) fn controls(&mut self, name: &str) -> Result<bool, Trap> {
        let mut words = words(self.m.state);
        let i = self.m.instruction;
        match name {
            "FLDCW" => {
                words.control = self.m.load(self.m.address(), 2)? as u16;
                set_words(self.m.state, words);
            }
            "FNSTCW" | "FSTCW" => self.m.store(self.m.address(), words.control.into(), 2)?,
            "FNSTSW" | "FSTSW" if i.op0_kind() == OpKind::Register => {
                self.m.set_register(Register::AX, words.status.into());
            }
            "FNSTSW" | "FSTSW" => self.m.store(self.m.address(), words.status.into(), 2)?,
            "FNCLEX" | "FCLEX" => {
                words.status &= 0x7f00;
                set_words(self.m.state, words);
            }
            "FNINIT" | "FINIT" => initialise(self.m.state),
            "FFREE" => self.set_tag(self.number(0), true),
            "FFREEP" => {
                self.set_tag(self.number(0), true);
                self.move_top(1);
            }
            "FINCSTP" => self.move_top(1),
            "FDECSTP" => self.move_top(-1),
            "FNSTENV" | "FSTENV" => {
                let environment = self.environment();
                self.m.store_bytes(self.m.address(), &environment)?;
                words.control |= 0x3f;
                set_words(self.m.state, words);
            }
            "FNSAVE" | "FSAVE" => {
                let mut all = self.environment();
                for number in 0..8 {
                    let (mantissa, exponent) = bits(self.m.state, number);
                    all.extend(mantissa.to_le_bytes());
                    all.extend(exponent.to_le_bytes());
                }
                self.m.store_bytes(self.m.address(), &all)?;
                initialise(self.m.state);
            }
            "FLDENV" => {
                let mut environment = vec![0; self.environment_bytes()];
                self.m.load_bytes(self.m.address(), &mut environment)?;
                self.load_environment(&environment);
            }
            "FRSTOR" => {
                let bytes = self.environment_bytes();
                let mut all = vec![0; bytes + 80];
                self.m.load_bytes(self.m.address(), &mut all)?;
                self.load_environment(&all[..bytes]);
                for (number, value) in (0..).zip(all[bytes..].chunks_exact(10)) {
                    let mantissa = u64::from_le_bytes(std::array::from_fn(|at| value[at]));
                    set_bits(self.m.state, number, (mantissa, u16::from_le_bytes([value[8], value[9]])));
                }
            }
            // The last three control older coprocessors.
            "FNOP" | "WAIT" | "FNDISI" | "FNENI" | "FNSETPM" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The size of the environment: 28 bytes, or 14 with the prefix for 16-bit operands.
    fn environment_bytes(&self) -> usize {
        if matches!(self.m.instruction.memory_size().size(), 14 | 94) { 14 } else { 28 }
    }

    /// Control, status and tag word. Addresses of the last instruction and its operand are not stored and read as zero.
    fn environment(&self) -> Vec<u8> {
        let words = words(self.m.state);
        let tag = |register: u8| {
            let number = register.wrapping_sub(self.m.state.lbt.top) & 7;
            let (mantissa, exponent) = bits(self.m.state, number);
            match (mantissa, exponent & 0x7fff) {
                _ if words.empty >> register & 1 != 0 => 3,
                (0, 0) => 1,
                (_, 0 | 0x7fff) => 2,
                _ if mantissa >> 63 == 0 => 2,
                _ => 0,
            }
        };
        let tags = (0..8).fold(0u16, |tags, register| tags | tag(register) << (2 * register));
        let bytes = self.environment_bytes();
        let (stride, mut environment) = (if bytes == 14 { 2 } else { 4 }, vec![0; bytes]);
        for (at, word) in [words.control, words.status, tags].into_iter().enumerate() {
            environment[stride * at..][..2].copy_from_slice(&word.to_le_bytes());
            if stride == 4 {
                environment[stride * at + 2..][..2].copy_from_slice(&[0xff; 2]);
            }
        }
        if stride == 4 {
            environment[26..].copy_from_slice(&[0xff; 2]);
        }
        environment
    }

    fn load_environment(&mut self, environment: &[u8]) {
        let stride = if environment.len() == 14 { 2 } else { 4 };
        let half = |at: usize| u16::from_le_bytes([environment[stride * at], environment[stride * at + 1]]);
        let tags = half(2);
        let empty = (0..8).fold(0, |all, n| all | u8::from(tags >> (2 * n) & 3 == 3) << n);
        let (control, status) = (half(0), summarised(half(1), half(0)));
        set_words(self.m.state, Words { control, status, empty });
    }
}
