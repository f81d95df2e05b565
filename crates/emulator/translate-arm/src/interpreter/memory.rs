//! Loads and stores. Registers are written after all accesses have succeeded.

use longma_translate::front_end::DataMemory;

use super::registers::truncated;
use super::{DecodedInstruction, Group, Machine};

/// A loaded or stored value of up to 16 bytes.
type Value = [u64; 2];

impl<M: DataMemory> Machine<'_, M> {
    fn load(&self, address: u64, bytes: u8) -> Option<Value> {
        match bytes {
            16 => self.memory.load_wide(address),
            _ => self.memory.load(address, bytes).map(|value| [value, 0]),
        }
    }

    fn store(&self, address: u64, bytes: u8, value: Value) -> Option<()> {
        let is_stored = match bytes {
            16 => self.memory.store_wide(address, value),
            _ => self.memory.store(address, bytes, value[0]),
        };
        is_stored.then_some(())
    }

    /// A load or store of one register.
    pub(super) fn access(&mut self, step: &DecodedInstruction) -> Option<()> {
        let (size, is_vector, operation) = (step.bits(30, 2), step.bit(26), step.bits(22, 2));
        let register = step.register(0);
        if step.group == Group::Literal {
            return self.load_literal(step, size, is_vector);
        }
        // 16-byte accesses are encoded with the size of a byte and the upper bit of the operation.
        let bytes = if is_vector && operation >= 2 { 16 } else { 1 << size };
        let base = self.x_or_sp(step.register(5));
        let offset = match step.group {
            Group::RegisterOffset => self.register_offset(step, bytes),
            _ => step.value,
        };
        let moved = base.wrapping_add(offset);
        let address = if step.group == Group::PostIndexed { base } else { moved };
        let is_load = if is_vector { operation & 1 != 0 } else { operation != 0 };
        if is_load {
            let value = self.load(address, bytes)?;
            if is_vector {
                self.set_vector(register, value);
            } else {
                self.set_x(register, extended(value[0], size, operation));
            }
            // The manual leaves open the result of loading the base register. As in QEMU, the write-back comes last.
            self.write_back(step, moved);
        } else {
            let value = if is_vector { self.vector(register) } else { [self.x(register), 0] };
            self.store(address, bytes, value)?;
            self.write_back(step, moved);
        }
        Some(())
    }

    fn write_back(&mut self, step: &DecodedInstruction, moved: u64) {
        use Group::*;
        if matches!(step.group, PostIndexed | PreIndexed | PairPostIndexed | PairPreIndexed) {
            self.set_x_or_sp(step.register(5), moved);
        }
    }

    fn register_offset(&self, step: &DecodedInstruction, bytes: u8) -> u64 {
        let value = self.x(step.register(16));
        let extended = match step.bits(13, 3) {
            2 => u64::from(value as u32),
            6 => value as i32 as u64,
            _ => value,
        };
        extended << if step.bit(12) { bytes.trailing_zeros() } else { 0 }
    }

    /// LDR and LDRSW of a literal.
    fn load_literal(&mut self, step: &DecodedInstruction, size: u32, is_vector: bool) -> Option<()> {
        if is_vector {
            let value = self.load(step.value, 4 << size)?;
            self.set_vector(step.register(0), value);
        } else {
            let value = self.load(step.value, if size == 1 { 8 } else { 4 })?[0];
            self.set_x(step.register(0), if size == 2 { value as i32 as u64 } else { value });
        }
        Some(())
    }

    /// LDP, STP and LDPSW.
    pub(super) fn access_pair(&mut self, step: &DecodedInstruction) -> Option<()> {
        let (size, is_vector, is_load) = (step.bits(30, 2), step.bit(26), step.bit(22));
        let registers = [step.register(0), step.register(10)];
        let bytes = match (is_vector, size) {
            (true, _) => 4 << size,
            (false, 2) => 8,
            _ => 4,
        };
        let base = self.x_or_sp(step.register(5));
        let moved = base.wrapping_add(step.value);
        let first = if step.group == Group::PairPostIndexed { base } else { moved };
        let second = first.wrapping_add(u64::from(bytes));
        if is_load {
            let values = [self.load(first, bytes)?, self.load(second, bytes)?];
            for (register, value) in registers.into_iter().zip(values) {
                if is_vector {
                    self.set_vector(register, value);
                } else {
                    self.set_x(register, if size == 1 { value[0] as i32 as u64 } else { value[0] });
                }
            }
            self.write_back(step, moved);
        } else {
            let values = registers.map(
                |register| {
                    if is_vector { self.vector(register) } else { [self.x(register), 0] }
                },
            );
            // If the second store fails, the translated code repeats the first store, with the same value.
            self.store(first, bytes, values[0])?;
            self.store(second, bytes, values[1])?;
            self.write_back(step, moved);
        }
        Some(())
    }
}

/// The value of a load of `1 << size` bytes: zero-extended, or sign-extended to 64 or 32 bits.
fn extended(value: u64, size: u32, operation: u32) -> u64 {
    let signed = || {
        let unused = 64 - (8 << size);
        ((value << unused) as i64 >> unused) as u64
    };
    match operation {
        1 => value,
        _ => truncated(signed(), operation == 2),
    }
}
