//! Atomic instructions that the engine executes: CMPXCHG8B, and those whose operand is not aligned. Source: Intel SDM,
//! volume 2; volume 3, section 9.1.2.2.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::Trap;

use super::{AF, CF, Done, Machine, OF, ZF, exceptions, mask, sign};
use crate::registers::*;

/// Whether an instruction updates memory atomically: one with a LOCK prefix, and XCHG, XADD and the CMPXCHG
/// instructions even without one.
pub(crate) fn is_atomic(i: &Instruction) -> bool {
    use Mnemonic::*;
    let in_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    in_memory
        && (i.has_lock_prefix() || matches!(i.mnemonic(), Xchg | Xadd | Cmpxchg | Cmpxchg8b | Cmpxchg16b))
}

impl Machine<'_> {
    /// Executes an atomic instruction.
    pub(super) fn atomic(&mut self) -> Done {
        use Mnemonic::*;
        match self.instruction.mnemonic() {
            Xchg => self.exchange(),
            Cmpxchg => self.compare_and_exchange(),
            Cmpxchg8b => self.compare_exchange_8_bytes(),
            // Its operand must be aligned.
            Cmpxchg16b => Err(exceptions::protection()),
            Bts | Btr | Btc => self.change_bit(),
            Xadd => {
                let register = self.instruction.op1_register();
                let (added, bytes) = (self.register(register), register.size());
                let old = self.replace(self.address(), bytes, |old| old.wrapping_add(added))?;
                self.set_register(register, old);
                self.sum_flags([old, added, old.wrapping_add(added)], bytes);
                Ok(())
            }
            _ => self.locked_arithmetic(),
        }
    }

    /// Atomically replaces the value at `address` if it is `expected`. Returns the old value. A failed comparison also
    /// requires a writable page.
    fn exchange_if(&self, address: u64, bytes: usize, expected: u64, new: u64) -> Result<u64, Trap> {
        let old = self.memory.compare_exchange(address, bytes, expected.into(), new.into());
        old.map(|old| old as u64).map_err(Trap::Memory)
    }

    /// Atomically changes the value at `address`. Returns the old value.
    fn replace(&self, address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> Result<u64, Trap> {
        let mut old = self.load(address, bytes)?;
        loop {
            let current = self.exchange_if(address, bytes, old, change(old) & mask(bytes))?;
            if current == old {
                return Ok(old);
            }
            old = current;
        }
    }

    fn exchange(&mut self) -> Done {
        let i = self.instruction;
        let register = if i.op0_kind() == OpKind::Memory { i.op1_register() } else { i.op0_register() };
        let new = self.register(register);
        let old = self.replace(self.address(), register.size(), |_| new)?;
        self.set_register(register, old);
        Ok(())
    }

    fn compare_and_exchange(&mut self) -> Done {
        let i = self.instruction;
        let bytes = i.memory_size().size();
        let registers = [Register::AL, Register::AX, Register::EAX, Register::RAX];
        let accumulator = registers[bytes.trailing_zeros() as usize];
        let expected = self.register(accumulator);
        let old = self.exchange_if(self.address(), bytes, expected, self.register(i.op1_register()))?;
        self.compare(expected, old, bytes);
        if old != expected {
            self.set_register(accumulator, old);
        }
        Ok(())
    }

    /// CMPXCHG8B.
    fn compare_exchange_8_bytes(&mut self) -> Done {
        let pair = |high: u8, low: u8| self.state.r(high) << 32 | self.state.r(low) & mask(4);
        let expected = pair(RDX, RAX);
        let old = self.exchange_if(self.address(), 8, expected, pair(RCX, RBX))?;
        self.set_flag(ZF, old == expected);
        if old != expected {
            self.state.set_r(RAX, old & mask(4));
            self.state.set_r(RDX, old >> 32);
        }
        Ok(())
    }

    /// BTS, BTR and BTC. A bit number in a register may be outside the operand.
    fn change_bit(&mut self) -> Done {
        let i = self.instruction;
        let bytes = i.memory_size().size();
        let bits = 8 * bytes as u32;
        let (address, number) = match i.op1_kind() {
            OpKind::Register => {
                let unused = 64 - bits;
                let number = (self.register(i.op1_register()) << unused) as i64 >> unused;
                let words = number >> bits.trailing_zeros();
                (self.address().wrapping_add_signed(words * bytes as i64), number as u64)
            }
            _ => (self.address(), i.immediate8().into()),
        };
        let bit = 1u64 << (number & u64::from(bits - 1));
        let old = self.replace(address, bytes, |old| match i.mnemonic() {
            Mnemonic::Bts => old | bit,
            Mnemonic::Btr => old & !bit,
            _ => old ^ bit,
        })?;
        self.set_flag(CF, old & bit != 0);
        Ok(())
    }

    fn locked_arithmetic(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let (bytes, mnemonic) = (i.memory_size().size(), i.mnemonic());
        let b = match mnemonic {
            Inc | Dec => 1,
            Neg | Not => 0,
            _ => self.read(1)? & mask(bytes),
        };
        let carry = flags_of(self.state) & CF;
        let combine = |old: u64| match mnemonic {
            Add | Inc => old.wrapping_add(b),
            Sub | Dec => old.wrapping_sub(b),
            Adc => old.wrapping_add(b).wrapping_add(carry),
            Sbb => old.wrapping_sub(b).wrapping_sub(carry),
            And => old & b,
            Or => old | b,
            Xor => old ^ b,
            Neg => old.wrapping_neg(),
            _ => !old,
        };
        let old = self.replace(self.address(), bytes, combine)?;
        let new = combine(old) & mask(bytes);
        match mnemonic {
            Not => return Ok(()),
            And | Or | Xor => {
                self.set_flag(CF, false);
                self.set_flag(OF, false);
                self.set_result_flags(new, bytes);
            }
            Add | Inc | Adc => self.sum_flags([old, b, new], bytes),
            Neg => self.difference_flags([0, old, new], bytes),
            _ => self.difference_flags([old, b, new], bytes),
        }
        if matches!(mnemonic, Inc | Dec) {
            self.set_flag(CF, carry != 0);
        }
        Ok(())
    }

    /// The flags of a sum, possibly with carry.
    fn sum_flags(&mut self, [a, b, sum]: [u64; 3], bytes: usize) {
        let carries = a & b | (a | b) & !sum;
        self.carry_flags(carries, (a ^ sum) & (b ^ sum), [a, b, sum], bytes);
    }

    /// The flags of a difference, possibly with borrow.
    fn difference_flags(&mut self, [a, b, difference]: [u64; 3], bytes: usize) {
        let borrows = !a & b | (!a | b) & difference;
        self.carry_flags(borrows, (a ^ b) & (a ^ difference), [a, b, difference], bytes);
    }

    fn carry_flags(&mut self, carries: u64, overflows: u64, [a, b, result]: [u64; 3], bytes: usize) {
        self.set_flag(CF, sign(carries, bytes));
        self.set_flag(OF, sign(overflows, bytes));
        self.set_flag(AF, (a ^ b ^ result) & 0x10 != 0);
        self.set_result_flags(result, bytes);
    }
}
