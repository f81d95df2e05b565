//! Instructions that the engine executes because they are rare or always trap. Source: Intel SDM, volume 2; volume 1,
//! section 10.2.3 (MXCSR).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_interpret_x86::is_canonical;
use longma_loongarch::{Access, Fault, FaultCause, State, Trap};

use rustc_apfloat::Status;

use crate::registers::*;
mod area;
mod atomic;
mod exceptions;
mod flags;
mod floats;
pub mod frame;
mod identity;
mod mmx;
mod procedures;
mod texts;
mod vector_floats;
mod vectors;
mod x87;

pub(crate) use atomic::is_atomic;
pub(crate) use exceptions::{protection, undo_jump};
pub(crate) use floats::{INITIAL_FCSR, control, set_control, zeroes_subnormals};
use longma_translate::calls::word;
use longma_translate::front_end::{ServiceResult, UserMemory};
pub(crate) use x87::{INITIAL_WORDS, keep_flags, kept_flags};

/// The `break` code of a division error.
const DIVISION: u32 = 7;
/// Bits of RFLAGS.
pub(super) const CF: u64 = 1;
pub(super) const PF: u64 = 1 << 2;
pub(super) const AF: u64 = 1 << 4;
pub(super) const ZF: u64 = 1 << 6;
pub(super) const SF: u64 = 1 << 7;
/// The flag that raises a debug exception after each instruction.
pub(crate) const TF: u64 = 1 << 8;
pub(super) const OF: u64 = 1 << 11;
/// The bits of MXCSR that are not reserved.
const CONTROL_BITS: u32 = 0xffff;

/// Sets exception flags of MXCSR.
fn raise(state: &mut State, exceptions: u32) {
    set_control(state, control(state) | exceptions & 0x3f);
}

/// The exception flags of MXCSR, and of the x87 status word, for the status of an operation.
fn exceptions_of(status: Status) -> u32 {
    let flags = [
        (Status::INVALID_OP, 1),
        (Status::DIV_BY_ZERO, 1 << 2),
        (Status::OVERFLOW, 1 << 3),
        (Status::UNDERFLOW, 1 << 4),
        (Status::INEXACT, 1 << 5),
    ];
    flags.iter().filter(|(flag, _)| status.contains(*flag)).map(|(_, bit)| bit).sum()
}

/// The registers and memory that an instruction works on.
pub(super) struct Machine<'a> {
    pub state: &'a mut State,
    memory: &'a dyn UserMemory,
    pub instruction: Instruction,
    /// A repeated instruction has used up its iterations and must be executed again.
    is_interrupted: bool,
}

/// The maximum number of iterations of a repeated instruction before pending signals are delivered.
const MAX_ROUNDS: u32 = 4096;

pub(super) type Done = Result<(), Trap>;

/// Executes an instruction. The caller advances the program counter.
pub(super) fn serve(instruction: &Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
    if let Some(trap) = exceptions::interrupt(instruction) {
        return ServiceResult::TrapAfter(trap, instruction.next_ip());
    }
    let was_stepping = kept_flags(state) & TF != 0;
    let mut machine = Machine { state, memory, instruction: *instruction, is_interrupted: false };
    match machine.execute() {
        Ok(()) if matches!(instruction.mnemonic(), Mnemonic::Popf | Mnemonic::Popfq) => {
            flags::after_pop(was_stepping, machine.state, instruction.next_ip())
        }
        Ok(()) if machine.is_interrupted => ServiceResult::Again,
        Ok(()) if sets_control(instruction) && zeroes_subnormals(machine.state) => {
            ServiceResult::ExactFloats { next_pc: Some(instruction.next_ip()) }
        }
        Ok(()) => ServiceResult::Done,
        Err(trap) => ServiceResult::Trap(trap),
    }
}

/// Whether an instruction loads MXCSR.
fn sets_control(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Ldmxcsr | Vldmxcsr | Fxrstor | Fxrstor64 | Xrstor | Xrstor64)
}

fn mask(bytes: usize) -> u64 {
    if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

fn sign(value: u64, bytes: usize) -> bool {
    value >> (8 * bytes - 1) & 1 != 0
}

impl Machine<'_> {
    fn execute(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        match i.mnemonic() {
            _ if crate::code::is_newer(&i) => Err(Trap::IllegalInstruction),
            _ if is_atomic(&i) => self.atomic(),
            Div | Idiv => self.divide(),
            Cpuid => {
                self.identify();
                Ok(())
            }
            Rdtsc | Rdtscp => {
                self.read_clock();
                Ok(())
            }
            Pushfq | Pushf | Popfq | Popf | Lahf | Sahf => self.move_flags(),
            Pop => self.pop_operand(),
            Push => {
                let value = self.read(0)?;
                self.push(value, -i.stack_pointer_increment() as usize)
            }
            Rcl | Rcr => self.rotate_through_carry(),
            Shld | Shrd => self.double_shift(),
            Bsf | Bsr => self.scan(),
            Cmpxchg if i.op0_kind() == OpKind::Register => self.compare_exchange(),
            Xlatb => {
                let address = self.address();
                let value = self.load(address, 1)?;
                self.set_register(Register::AL, value);
                Ok(())
            }
            Enter => self.enter(),
            Leave => self.leave(),
            Mov => self.move_special(),
            Movsb | Movsw | Movsq | Stosb | Stosw | Stosd | Stosq | Lodsb | Lodsw | Lodsd | Lodsq | Scasb
            | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsq => self.string(),
            Movsd | Cmpsd if i.is_string_instruction() => self.string(),
            Ldmxcsr | Stmxcsr | Vldmxcsr | Vstmxcsr | Fxsave | Fxsave64 | Fxrstor | Fxrstor64 => {
                self.move_control()
            }
            Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec | Xsavec64 | Xrstor | Xrstor64 | Xgetbv => {
                self.extended_state()
            }
            Bextr | Pdep | Pext => self.pick_bits(),
            Crc32 => self.checksum(),
            Rdfsbase | Rdgsbase | Wrfsbase | Wrgsbase => self.segment_bases(),
            Rdrand | Rdseed => self.draw(),
            _ if x87::is_x87(&i) => x87::execute(self),
            _ if exceptions::is_forbidden(&i) => Err(exceptions::protection()),
            _ => {
                let result = self.mmx().or_else(|| self.vectors());
                result.unwrap_or(Err(Trap::IllegalInstruction))
            }
        }
    }

    fn pop_operand(&mut self) -> Done {
        let bytes = self.instruction.memory_size().size().max(2);
        let value = self.pop(bytes)?;
        // An address relative to RSP uses the incremented RSP.
        let stored = self.write(0, value);
        if stored.is_err() {
            self.add(STACK_POINTER, -(bytes as i64));
        }
        stored
    }

    /// CMPXCHG of registers.
    fn compare_exchange(&mut self) -> Done {
        let i = self.instruction;
        let bytes = i.op0_register().size();
        let registers = [Register::AL, Register::AX, Register::EAX, Register::RAX];
        let accumulator = registers[bytes.trailing_zeros() as usize];
        let (expected, actual) = (self.register(accumulator), self.register(i.op0_register()));
        self.compare(expected, actual, bytes);
        if expected == actual {
            self.write(0, self.register(i.op1_register()))
        } else {
            self.set_register(accumulator, actual);
            Ok(())
        }
    }

    /// LDMXCSR, STMXCSR, FXSAVE and FXRSTOR.
    fn move_control(&mut self) -> Done {
        use Mnemonic::*;
        match self.instruction.mnemonic() {
            Ldmxcsr | Vldmxcsr => {
                let value = self.read(0)? as u32;
                if value & !CONTROL_BITS != 0 {
                    return Err(protection());
                }
                set_control(self.state, value);
                Ok(())
            }
            Stmxcsr | Vstmxcsr => {
                let value = control(self.state);
                self.write(0, value.into())
            }
            Fxsave | Fxsave64 => {
                let bytes = frame::save_floats(self.state);
                let address = self.aligned_address(16)?;
                self.store_bytes(address, &bytes)
            }
            _ => {
                let address = self.aligned_address(16)?;
                let mut bytes = [0; frame::FLOAT_BYTES];
                self.load_bytes(address, &mut bytes)?;
                if word(&bytes, 24) as u32 & !CONTROL_BITS != 0 {
                    return Err(protection());
                }
                frame::restore_floats(self.state, &bytes);
                Ok(())
            }
        }
    }

    /// The address of the memory operand, which must be a multiple of `bytes`.
    fn aligned_address(&self, bytes: u64) -> Result<u64, Trap> {
        let address = self.address();
        if address.is_multiple_of(bytes) { Ok(address) } else { Err(protection()) }
    }

    pub fn register(&self, register: Register) -> u64 {
        let value = self.state.r(general(register));
        match register.size() {
            8 => value,
            4 => value & mask(4),
            2 => value & mask(2),
            _ if is_high(register) => value >> 8 & 0xff,
            _ => value & 0xff,
        }
    }

    pub fn set_register(&mut self, register: Register, value: u64) {
        let number = general(register);
        let old = self.state.r(number);
        let value = match register.size() {
            8 => value,
            4 => value & mask(4),
            2 => old & !mask(2) | value & mask(2),
            _ if is_high(register) => old & !0xff00 | (value & 0xff) << 8,
            _ => old & !0xff | value & 0xff,
        };
        self.state.set_r(number, value);
    }

    fn add(&mut self, number: u8, value: i64) {
        let sum = self.state.r(number).wrapping_add_signed(value);
        self.state.set_r(number, sum);
    }

    /// The address of the memory operand.
    pub fn address(&self) -> u64 {
        let i = &self.instruction;
        let base = i.memory_base();
        let mut sum = i.memory_displacement64();
        if base != Register::None && !base.is_ip() {
            sum = sum.wrapping_add(self.state.r(general(base)));
        }
        let index = i.memory_index();
        if index != Register::None && index.is_gpr() {
            let scaled = self.state.r(general(index)).wrapping_mul(i.memory_index_scale().into());
            sum = sum.wrapping_add(scaled);
        }
        if i.mnemonic() == Mnemonic::Xlatb {
            sum = self.state.r(RBX).wrapping_add(self.state.r(RAX) & 0xff);
        }
        if base.size() == 4 || index.size() == 4 {
            sum &= mask(4);
        }
        sum.wrapping_add(self.segment_base())
    }

    /// The base of the memory operand's segment.
    pub fn segment_base(&self) -> u64 {
        match self.instruction.memory_segment() {
            Register::FS => self.state.r(THREAD_POINTER),
            Register::GS => self.state.lbt.scratch[usize::from(GS_BASE)],
            _ => 0,
        }
    }

    /// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE.
    fn segment_bases(&mut self) -> Done {
        use Mnemonic::*;
        let register = self.instruction.op0_register();
        let value = self.register(register);
        match self.instruction.mnemonic() {
            Rdfsbase => self.set_register(register, self.state.r(THREAD_POINTER)),
            Rdgsbase => self.set_register(register, self.state.lbt.scratch[usize::from(GS_BASE)]),
            _ if !is_canonical(value) => return Err(exceptions::protection()),
            Wrfsbase => self.state.set_r(THREAD_POINTER, value),
            _ => self.state.lbt.scratch[usize::from(GS_BASE)] = value,
        }
        Ok(())
    }

    /// RDRAND and RDSEED, which always succeed.
    fn draw(&mut self) -> Done {
        let value = self.memory.random();
        self.set_register(self.instruction.op0_register(), value);
        let flags = flags_of(self.state) & !(CF | PF | AF | ZF | SF | OF);
        set_flags_of(self.state, flags | CF);
        Ok(())
    }

    pub fn load_bytes(&self, address: u64, bytes: &mut [u8]) -> Done {
        let fault = Fault { address, access: Access::Read, cause: FaultCause::Unmapped };
        if self.memory.read(address, bytes) { Ok(()) } else { Err(Trap::Memory(fault)) }
    }

    pub fn store_bytes(&self, address: u64, bytes: &[u8]) -> Done {
        let fault = Fault { address, access: Access::Write, cause: FaultCause::Unmapped };
        if self.memory.write(address, bytes) { Ok(()) } else { Err(Trap::Memory(fault)) }
    }

    pub fn load(&self, address: u64, bytes: usize) -> Result<u64, Trap> {
        let mut bytes_read = [0; 8];
        self.load_bytes(address, &mut bytes_read[..bytes])?;
        Ok(u64::from_le_bytes(bytes_read))
    }

    pub fn store(&self, address: u64, value: u64, bytes: usize) -> Done {
        self.store_bytes(address, &value.to_le_bytes()[..bytes])
    }

    fn bytes_of(&self, operand: u32) -> usize {
        let i = &self.instruction;
        match i.op_kind(operand) {
            OpKind::Register => i.op_register(operand).size(),
            _ => i.memory_size().size(),
        }
    }

    fn read(&self, operand: u32) -> Result<u64, Trap> {
        let i = &self.instruction;
        match i.op_kind(operand) {
            OpKind::Register if i.op_register(operand).is_segment_register() => Ok(0),
            OpKind::Register => Ok(self.register(i.op_register(operand))),
            OpKind::Memory => self.load(self.address(), i.memory_size().size()),
            _ => Ok(i.immediate(operand)),
        }
    }

    fn write(&mut self, operand: u32, value: u64) -> Done {
        let i = self.instruction;
        match i.op_kind(operand) {
            OpKind::Register => {
                self.set_register(i.op_register(operand), value);
                Ok(())
            }
            _ => self.store(self.address(), value, i.memory_size().size()),
        }
    }

    fn push(&mut self, value: u64, bytes: usize) -> Done {
        let address = self.state.r(STACK_POINTER).wrapping_sub(bytes as u64);
        self.store(address, value, bytes)?;
        self.state.set_r(STACK_POINTER, address);
        Ok(())
    }

    fn pop(&mut self, bytes: usize) -> Result<u64, Trap> {
        let value = self.load(self.state.r(STACK_POINTER), bytes)?;
        self.add(STACK_POINTER, bytes as i64);
        Ok(value)
    }

    /// MOV of segment registers.
    fn move_special(&mut self) -> Done {
        let i = self.instruction;
        let segment = |register: Register| match register {
            Register::CS => 0x33,
            Register::SS => 0x2b,
            _ => 0,
        };
        match (i.op0_kind(), i.op1_kind()) {
            (_, OpKind::Register) if i.op1_register().is_segment_register() => {
                self.write(0, segment(i.op1_register()))
            }
            (OpKind::Register, _) if i.op0_register().is_segment_register() => Ok(()),
            _ => Err(exceptions::protection()),
        }
    }

    fn divide(&mut self) -> Done {
        let signed = self.instruction.mnemonic() == Mnemonic::Idiv;
        let bytes = self.bytes_of(0);
        let divisor = self.read(0)?;
        let bits = 8 * bytes as u32;
        let trap = Err(Trap::Break(DIVISION));
        let dividend = if bytes == 1 {
            u128::from(self.register(Register::AX))
        } else {
            let (low, high) = (self.state.r(RAX) & mask(bytes), self.state.r(RDX) & mask(bytes));
            u128::from(high) << bits | u128::from(low)
        };
        if divisor == 0 {
            return trap;
        }
        let (quotient, rest) = if signed {
            let unused = 128 - 2 * bits;
            let dividend = (dividend << unused) as i128 >> unused;
            let divisor = i128::from((divisor << (64 - bits)) as i64 >> (64 - bits));
            let Some(quotient) = dividend.checked_div(divisor) else { return trap };
            let half = 1i128 << (bits - 1);
            if quotient >= half || quotient < -half {
                return trap;
            }
            (quotient as u64, dividend.wrapping_rem(divisor) as u64)
        } else {
            let quotient = dividend / u128::from(divisor);
            if quotient > u128::from(mask(bytes)) {
                return trap;
            }
            (quotient as u64, (dividend % u128::from(divisor)) as u64)
        };
        let (low, high) = match bytes {
            1 => (Register::AL, Register::AH),
            2 => (Register::AX, Register::DX),
            4 => (Register::EAX, Register::EDX),
            _ => (Register::RAX, Register::RDX),
        };
        self.set_register(low, quotient);
        self.set_register(high, rest);
        Ok(())
    }

    fn set_flag(&mut self, flag: u64, value: bool) {
        let flags = flags_of(self.state);
        set_flags_of(self.state, if value { flags | flag } else { flags & !flag });
    }

    fn rotate_through_carry(&mut self) -> Done {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let bits = 8 * bytes as u32;
        let count = match i.op1_kind() {
            OpKind::Register => self.register(Register::CL) as u32,
            _ => u32::from(i.immediate8()),
        };
        let count = (count & if bytes == 8 { 63 } else { 31 }) % (bits + 1);
        let old = self.read(0)?;
        let carry = flags_of(self.state) & CF;
        let (width, with_carry) = (bits + 1, u128::from(carry) << bits | u128::from(old));
        let left = if i.mnemonic() == Mnemonic::Rcl { count } else { (width - count) % width };
        let rotated = if left == 0 { with_carry } else { with_carry << left | with_carry >> (width - left) };
        let new = rotated as u64 & mask(bytes);
        let carry = rotated >> bits & 1 != 0;
        self.write(0, new)?;
        if count != 0 {
            let overflow = if i.mnemonic() == Mnemonic::Rcl {
                sign(new, bytes) != carry
            } else {
                sign(new, bytes) != (new >> (bits - 2) & 1 != 0)
            };
            self.set_flag(CF, carry);
            self.set_flag(OF, overflow);
        }
        Ok(())
    }

    fn double_shift(&mut self) -> Done {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let bits = 8 * bytes as u32;
        let count = match i.op2_kind() {
            OpKind::Register => self.register(Register::CL) as u32,
            _ => u32::from(i.immediate8()),
        } & if bytes == 8 { 63 } else { 31 };
        let (a, b) = (self.read(0)?, self.register(i.op1_register()));
        if count == 0 {
            return self.write(0, a);
        }
        let (a128, b128) = (u128::from(a), u128::from(b));
        // Shifts beyond the width are undefined in the manual. Here, the operand is repeated.
        let (new, carry) = if i.mnemonic() == Mnemonic::Shld {
            let concatenated = a128 << bits | b128;
            let concatenated =
                if count > bits { concatenated << (count - bits).min(127) } else { concatenated };
            let count = count.min(bits);
            ((concatenated << count >> bits) as u64 & mask(bytes), concatenated >> (2 * bits - count) & 1)
        } else {
            let concatenated = b128 << bits | a128;
            ((concatenated >> count) as u64 & mask(bytes), concatenated >> (count - 1) & 1)
        };
        self.write(0, new)?;
        self.set_flag(CF, carry != 0);
        self.set_flag(OF, sign(new, bytes) != sign(a, bytes));
        self.set_result_flags(new, bytes);
        Ok(())
    }

    /// Sets ZF, SF and PF.
    fn set_result_flags(&mut self, value: u64, bytes: usize) {
        self.set_flag(ZF, value & mask(bytes) == 0);
        self.set_flag(SF, sign(value, bytes));
        self.set_flag(PF, (value as u8).count_ones().is_multiple_of(2));
    }

    /// BEXTR, PDEP and PEXT.
    fn pick_bits(&mut self) -> Done {
        let i = self.instruction;
        let (bytes, a, b) = (self.bytes_of(0), self.read(1)?, self.read(2)?);
        let selected = (0..64).filter(|bit| b >> bit & 1 != 0).zip(0..);
        let result = match i.mnemonic() {
            Mnemonic::Bextr => {
                let (start, length) = (b as u8, (b >> 8) as u8);
                let shifted = a.checked_shr(start.into()).unwrap_or(0);
                if length < 64 { shifted & ((1 << length) - 1) } else { shifted }
            }
            Mnemonic::Pdep => selected.fold(0, |sum, (bit, from)| sum | (a >> from & 1) << bit),
            _ => selected.fold(0, |sum, (bit, to)| sum | (a >> bit & 1) << to),
        };
        self.write(0, result)?;
        if i.mnemonic() == Mnemonic::Bextr {
            self.set_result_flags(result, bytes);
            self.set_flag(CF, false);
            self.set_flag(OF, false);
        }
        Ok(())
    }

    /// BSF and BSR of 16 bits.
    fn scan(&mut self) -> Done {
        let i = self.instruction;
        let value = self.read(1)?;
        if value != 0 {
            let forward = i.mnemonic() == Mnemonic::Bsf;
            let at = if forward { value.trailing_zeros() } else { 63 - value.leading_zeros() };
            self.write(0, at.into())?;
        }
        self.set_flag(ZF, value == 0);
        Ok(())
    }

    fn string(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let bytes: usize = match i.mnemonic() {
            Movsb | Stosb | Lodsb | Scasb | Cmpsb => 1,
            Movsw | Stosw | Lodsw | Scasw | Cmpsw => 2,
            Movsd | Stosd | Lodsd | Scasd | Cmpsd => 4,
            _ => 8,
        };
        let backward = self.state.lbt.scratch[usize::from(DIRECTION)] & 1 != 0;
        let step = if backward { -(bytes as i64) } else { bytes as i64 };
        let compares = matches!(i.mnemonic(), Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsd | Cmpsq);
        let repeats = i.has_rep_prefix() || i.has_repne_prefix();
        let segment = self.segment_base();
        let is_stepping = kept_flags(self.state) & TF != 0;
        let (mut rounds, max_rounds) = (0, if is_stepping { 1 } else { MAX_ROUNDS });
        while !repeats || self.state.r(RCX) != 0 {
            if rounds == max_rounds {
                self.is_interrupted = true;
                break;
            }
            rounds += 1;
            self.string_step(bytes, step, segment)?;
            if !repeats {
                break;
            }
            self.add(RCX, -1);
            let equal = self.state.r(NOT_ZERO) == 0;
            if compares && equal == i.has_repne_prefix() {
                break;
            }
        }
        Ok(())
    }

    fn string_step(&mut self, bytes: usize, step: i64, segment: u64) -> Done {
        use Mnemonic::*;
        let (source, target) = (self.state.r(RSI).wrapping_add(segment), self.state.r(RDI));
        let accumulator = self.state.r(RAX) & mask(bytes);
        let (moves_source, moves_target) = match self.instruction.mnemonic() {
            Stosb | Stosw | Stosd | Stosq => {
                self.store(target, accumulator, bytes)?;
                (false, true)
            }
            Lodsb | Lodsw | Lodsd | Lodsq => {
                let value = self.load(source, bytes)?;
                let register = [Register::AL, Register::AX, Register::EAX, Register::RAX];
                self.set_register(register[bytes.trailing_zeros() as usize], value);
                (true, false)
            }
            Scasb | Scasw | Scasd | Scasq => {
                let value = self.load(target, bytes)?;
                self.compare(accumulator, value, bytes);
                (false, true)
            }
            Cmpsb | Cmpsw | Cmpsd | Cmpsq => {
                let (a, b) = (self.load(source, bytes)?, self.load(target, bytes)?);
                self.compare(a, b, bytes);
                (true, true)
            }
            _ => {
                let value = self.load(source, bytes)?;
                self.store(target, value, bytes)?;
                (true, true)
            }
        };
        if moves_source {
            self.add(RSI, step);
        }
        if moves_target {
            self.add(RDI, step);
        }
        Ok(())
    }

    fn compare(&mut self, a: u64, b: u64, bytes: usize) {
        let result = a.wrapping_sub(b) & mask(bytes);
        self.set_flag(CF, a < b);
        self.set_flag(AF, (a ^ b ^ result) & 0x10 != 0);
        self.set_flag(OF, sign((a ^ b) & (a ^ result), bytes));
        self.set_result_flags(result, bytes);
    }

    /// RDTSC and RDTSCP. The counter runs in nanoseconds.
    fn read_clock(&mut self) {
        let nanoseconds = self.memory.clock_ns();
        self.state.set_r(RAX, nanoseconds & mask(4));
        self.state.set_r(RDX, nanoseconds >> 32);
        if self.instruction.mnemonic() == Mnemonic::Rdtscp {
            self.state.set_r(RCX, 0);
        }
    }

    fn checksum(&mut self) -> Done {
        let bytes = self.bytes_of(1);
        let (mut sum, data) = (self.read(0)? as u32, self.read(1)?);
        for byte in &data.to_le_bytes()[..bytes] {
            sum ^= u32::from(*byte);
            for _ in 0..8 {
                sum = sum >> 1 ^ if sum & 1 != 0 { 0x82f6_3b78 } else { 0 };
            }
        }
        self.write(0, sum.into())
    }
}
