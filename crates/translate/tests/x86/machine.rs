//! Instructions executed by their translation, in memory of a few parts.

use std::cell::RefCell;

use iced_x86::Mnemonic;
use longma_loongarch::{
    Access, Environment, Fault, FaultCause, Scalar, State, Trap, decode as decode_word, semantics,
};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, Memory, Served, Structures};
use longma_translate_x86::X86_64;
use longma_translate_x86::registers::{GENERAL, TABLE, flags_of, set_flags_of};

use crate::host::Registers;
use crate::random::Random;

pub const SOURCE: u64 = 0x1_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 1 << 20;
const TABLE_AT: u64 = 0x2000_0000;
const SOURCE_BYTES: usize = 1024;
/// The top of the stack has room below it and a little above.
const STACK: u64 = 0x3000_0000;
pub const STACK_TOP: u64 = STACK + 2048;
pub const DATA_BYTES: usize = 256;
/// Where the memory operand may be, from the start of the data.
pub const MIDDLE: u64 = 96;

/// Memory in parts.
struct Parts(Vec<(u64, RefCell<Vec<u8>>)>);

impl Parts {
    fn part(&self, address: u64, bytes: usize, access: Access) -> Result<(&RefCell<Vec<u8>>, usize), Fault> {
        let fits = |start: u64, length: usize| {
            address >= start && address.saturating_add(bytes as u64) <= start + length as u64
        };
        let found = self.0.iter().find(|(start, part)| fits(*start, part.borrow().len()));
        let fault = Fault { address, access, cause: FaultCause::Unmapped };
        found.map(|(start, part)| (part, (address - start) as usize)).ok_or(fault)
    }
}

impl Environment for Parts {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Read)?;
        // SAFETY: so many bytes lie there, and every pattern of them is a number.
        Ok(unsafe { part.borrow()[at..].as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Write)?;
        // SAFETY: so many bytes lie there.
        unsafe { part.borrow_mut()[at..].as_mut_ptr().cast::<T>().write_unaligned(value) };
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let found = self.load(address)?;
        if found == expected {
            self.store(address, new)?;
        }
        Ok(found)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

impl Memory for Parts {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn place(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        words.iter().try_for_each(|(address, word)| self.store(*address, *word))
    }

    fn replace(&self, address: u64, word: u32) -> Result<(), Fault> {
        self.store(address, word)
    }
}

impl Structures for Parts {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Read) else { return false };
        bytes.copy_from_slice(&part.borrow()[at..at + bytes.len()]);
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Write) else { return false };
        part.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn writable(&self, address: u64, bytes: u64) -> u64 {
        if self.part(address, bytes as usize, Access::Write).is_ok() { bytes } else { 0 }
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}

/// Executes instructions by their translation. Gives the LoongArch instructions executed. With `interruptions`, the program is now and then
/// interrupted where it can be, and goes on from what a handler of signals would see.
pub fn translated(
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    mut interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    // Behind them, one that is none.
    let mut source = vec![0; SOURCE_BYTES];
    source[..instructions.len()].copy_from_slice(instructions);
    source[instructions.len()..][..2].copy_from_slice(&[0x0f, 0x0b]);
    let memory = Parts(vec![
        (SOURCE, source.into()),
        (CODE, vec![0; CODE_BYTES as usize].into()),
        (TABLE_AT + 4 * SOURCE, vec![0; 4096].into()),
        (data_at, std::mem::take(data).into()),
        (STACK, vec![0; 4096].into()),
    ]);
    let layout =
        Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: SOURCE + SOURCE_BYTES as u64 };
    let mut engine = Engine::<X86_64>::new(layout);
    let mut state = State::default();
    X86_64::begin(&mut state, SOURCE);
    state.set_r(TABLE, TABLE_AT);
    for (number, value) in registers.general.iter().enumerate() {
        state.set_r(GENERAL[number], *value);
    }
    set_flags_of(&mut state, registers.flags);
    for (number, value) in registers.vectors.iter().enumerate() {
        state.v[16 + number].0 = [*value as u64, (value >> 64) as u64, 0, 0];
    }
    state.pc = engine.code_of(SOURCE, &memory).map_err(|refusal| format!("{refusal:?}"))?;
    let mut executed = 0;
    loop {
        if interruptions.as_mut().is_some_and(|random| random.below(6) == 0)
            && let Some(position) = engine.position(state.pc).filter(|position| position.is_boundary)
        {
            if let Some(pending) = position.pending {
                X86_64::settle(pending, &mut state);
            }
            state.set_r(1, 0);
            state.pc = engine.code_of(position.pc, &memory).map_err(|refusal| format!("{refusal:?}"))?;
        }
        let word = Environment::fetch(&memory, state.pc).map_err(|fault| format!("{fault}"))?;
        let instruction = decode_word(word).ok_or(format!("{word:#010x} is no instruction"))?;
        executed += 1;
        if executed > 10_000 {
            return Err("it does not end".into());
        }
        let Err(trap) = semantics::execute(&mut state, &instruction, &memory) else { continue };
        match (trap, engine.exit_at(state.pc)) {
            (Trap::Break(_), Some(Exit::Service(found))) if found.mnemonic() == Mnemonic::Ud2 => break,
            (Trap::Break(_), Some(Exit::To(pc))) => {
                state.pc = engine.code_of(pc, &memory).map_err(|refusal| format!("{refusal:?}"))?;
            }
            (Trap::Break(_), Some(Exit::Service(found))) => match X86_64::serve(found, &mut state, &memory) {
                Served::Done => state.pc += 4,
                other => return Err(format!("{other:?}")),
            },
            (trap, exit) => return Err(format!("{trap:?} at {exit:?}")),
        }
    }
    for (number, value) in registers.general.iter_mut().enumerate() {
        *value = state.r(GENERAL[number]);
    }
    registers.flags = flags_of(&state);
    for (number, value) in registers.vectors.iter_mut().enumerate() {
        *value = u128::from(state.v[16 + number].0[0]) | u128::from(state.v[16 + number].0[1]) << 64;
    }
    *data = memory.0.into_iter().nth(3).expect("four parts").1.into_inner();
    Ok(executed - 1)
}
