//! The frame of a signal handler as AArch64 has it, laid below the one that the process has made.
//! Not the delivery. What the process knows of the thread stays in its own frame, which is used to come back.
//! Source: Linux arch/arm64/kernel/signal.c (struct rt_sigframe, setup_rt_frame), arch/arm64/include/uapi/asm/{sigcontext,ucontext}.h;
//! arch/loongarch/include/uapi/asm/sigcontext.h.

use longma_loongarch::State;

use super::{control, set_control, set_status, status};
use crate::registers::*;
use longma_translate::front_end::Structures;

// The frame of LoongArch: siginfo, then ucontext with its mask, program counter, registers and flags.
const OUTER_STACK: usize = 144;
const OUTER_MASK: usize = 168;
const OUTER_PC: usize = 304;
const OUTER_REGISTERS: usize = 312;
const OUTER_FLAGS: usize = 568;
const OUTER_BYTES: usize = 576;
/// SC_ADDRERR_WR.
const WROTE: u32 = 1 << 31;

// The frame of AArch64: siginfo, ucontext with its machine's part at a multiple of 16, the records behind.
const CONTEXT: usize = 128;
const CONTEXT_STACK: usize = CONTEXT + 16;
const MASK: usize = CONTEXT + 40;
const FAULT: usize = 304;
const REGISTERS: usize = FAULT + 8;
const STACK: usize = REGISTERS + 31 * 8;
const PC: usize = STACK + 8;
const STATUS: usize = PC + 8;
const RECORDS: usize = 592;
const RECORDS_BYTES: usize = 4096;
/// struct fpsimd_context.
const FLOATS: usize = RECORDS;
const FLOATS_MAGIC: u32 = 0x4650_8001;
const FLOATS_BYTES: usize = 528;
const VECTORS: usize = FLOATS + 16;
/// struct esr_context.
const SYNDROME: usize = FLOATS + FLOATS_BYTES;
const SYNDROME_MAGIC: u32 = 0x4553_5201;
/// A data abort from a lower level, by a translation fault of the third level.
const DATA_ABORT: u64 = 0x24 << 26 | 1 << 25 | 7;
const ABORT_WROTE: u64 = 1 << 6;
/// struct frame_record: x29 and x30 of who was interrupted. Behind it: where the other frame is.
const RECORD: usize = RECORDS + RECORDS_BYTES;
const LINK: usize = RECORD + 16;
const BYTES: usize = LINK + 16;

fn put(frame: &mut [u8], at: usize, value: u64) {
    frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_half(frame: &mut [u8], at: usize, value: u32) {
    frame[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(frame: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

fn get_half(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// The thread is at the first instruction of a handler, with the process's frame at its stack pointer: lays AArch64's frame below it. `back`
/// is the code that handlers return to. False if the stack cannot take it.
pub fn enter(state: &mut State, back: u64, memory: &dyn Structures) -> bool {
    let outer_at = state.r(STACK_POINTER);
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(outer_at, &mut outer) {
        return false;
    }
    let address = outer_at.wrapping_sub(BYTES as u64) & !15;
    let signal = state.r(4);
    let mut frame = [0; BYTES];
    frame[..128].copy_from_slice(&outer[..128]);
    frame[CONTEXT_STACK..CONTEXT_STACK + 24].copy_from_slice(&outer[OUTER_STACK..OUTER_STACK + 24]);
    put(&mut frame, MASK, get(&outer, OUTER_MASK));
    let own = |register: u8| get(&outer, OUTER_REGISTERS + 8 * usize::from(register));
    for number in 0..31u8 {
        let value = match place(number) {
            Place::Register(register) => own(register),
            _ => read(state, number, memory),
        };
        put(&mut frame, REGISTERS + 8 * usize::from(number), value);
    }
    put(&mut frame, STACK, own(STACK_POINTER));
    put(&mut frame, PC, get(&outer, OUTER_PC));
    put(&mut frame, STATUS, flags(state));
    put_floats(&mut frame, state);
    // Signals of faults tell where.
    if matches!(signal, 4 | 5 | 7 | 8 | 11) {
        put(&mut frame, FAULT, get(&outer, 16));
    }
    if matches!(signal, 7 | 11) {
        let wrote = get_half(&outer, OUTER_FLAGS) & WROTE != 0;
        put_half(&mut frame, SYNDROME, SYNDROME_MAGIC);
        put_half(&mut frame, SYNDROME + 4, 16);
        put(&mut frame, SYNDROME + 8, DATA_ABORT | if wrote { ABORT_WROTE } else { 0 });
    }
    frame.copy_within(REGISTERS + 8 * 29..REGISTERS + 8 * 31, RECORD);
    put(&mut frame, LINK, outer_at);
    if !memory.write(address, &frame) {
        return false;
    }
    let arguments = [signal, address, address + CONTEXT as u64];
    for (number, value) in (0..).zip(arguments) {
        write(state, number, value, memory);
    }
    write(state, 29, address + RECORD as u64, memory);
    write(state, 30, back, memory);
    state.set_r(SCRATCH, 0);
    state.set_r(STACK_POINTER, address);
    true
}

fn put_floats(frame: &mut [u8], state: &State) {
    put_half(frame, FLOATS, FLOATS_MAGIC);
    put_half(frame, FLOATS + 4, FLOATS_BYTES as u32);
    put_half(frame, FLOATS + 8, status(state));
    put_half(frame, FLOATS + 12, control(state));
    for (number, vector) in state.v.iter().enumerate() {
        put(frame, VECTORS + 16 * number, vector.0[0]);
        put(frame, VECTORS + 16 * number + 8, vector.0[1]);
    }
}

/// The handler has returned: what it has made of the frame goes into the process's own, and the stack pointer to that.
pub fn leave(state: &mut State, memory: &dyn Structures) -> Option<u64> {
    let address = state.r(STACK_POINTER);
    let mut frame = [0; BYTES];
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let outer_at = get(&frame, LINK);
    if !memory.read(outer_at, &mut outer) {
        return None;
    }
    for number in 0..31u8 {
        if let Place::Register(register) = place(number) {
            let value = get(&frame, REGISTERS + 8 * usize::from(number));
            put(&mut outer, OUTER_REGISTERS + 8 * usize::from(register), value);
        }
    }
    put(&mut outer, OUTER_REGISTERS + 8 * usize::from(STACK_POINTER), get(&frame, STACK));
    put(&mut outer, OUTER_PC, get(&frame, PC));
    put(&mut outer, OUTER_MASK, get(&frame, MASK));
    state.set_r(STACK_POINTER, outer_at);
    memory.write(outer_at, &outer).then_some(address)
}

/// What the process's own frame does not bring back of the handler's changes: call it when that has been done.
pub fn after(state: &mut State, at: u64, memory: &dyn Structures) {
    let mut frame = [0; BYTES];
    if !memory.read(at, &mut frame) {
        return;
    }
    for number in (0..31).filter(|number| !matches!(place(*number), Place::Register(_))) {
        write(state, number, get(&frame, REGISTERS + 8 * usize::from(number)), memory);
    }
    set_flags(state, get(&frame, STATUS));
    if get_half(&frame, FLOATS) == FLOATS_MAGIC {
        for (number, vector) in state.v.iter_mut().enumerate() {
            vector.0[0] = get(&frame, VECTORS + 16 * number);
            vector.0[1] = get(&frame, VECTORS + 16 * number + 8);
        }
        set_status(state, get_half(&frame, FLOATS + 8));
        set_control(state, get_half(&frame, FLOATS + 12));
    }
}
