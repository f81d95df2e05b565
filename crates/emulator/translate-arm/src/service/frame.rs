//! Builds the AArch64 signal frame below the process's LoongArch frame, and copies changes back when the handler
//! returns. The return itself uses the LoongArch frame. Source: Linux arch/arm64/kernel/signal.c (struct rt_sigframe,
//! setup_rt_frame), arch/arm64/include/uapi/asm/{sigcontext,ucontext}.h.

use longma_loongarch::State;

use super::{control, set_control, set_status, status};
use crate::registers::*;
use longma_translate::front_end::UserMemory;
use longma_translate::process_frame::{ProcessFrame, put_word, word};

// The AArch64 frame: siginfo, then ucontext, whose mcontext is 16-byte aligned, followed by the context records.
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
/// The offset of `struct fpsimd_context`.
const FLOATS: usize = RECORDS;
const FLOATS_MAGIC: u32 = 0x4650_8001;
const FLOATS_BYTES: usize = 528;
const VECTORS: usize = FLOATS + 16;
/// The offset of `struct esr_context`.
const SYNDROME: usize = FLOATS + FLOATS_BYTES;
const SYNDROME_MAGIC: u32 = 0x4553_5201;
/// Exception classes in ESR_EL1, with the bit of 32-bit instructions.
const INSTRUCTION_ABORT: u64 = 0x20 << 26 | 1 << 25;
const PC_ALIGNMENT: u64 = 0x22 << 26 | 1 << 25;
const DATA_ABORT: u64 = 0x24 << 26 | 1 << 25;
/// The kinds of faults at level 3: no translation, no permission.
const TRANSLATION: u64 = 7;
const PERMISSION: u64 = 0xf;
const ABORT_WROTE: u64 = 1 << 6;
/// The offset of `si_code`, and its values for an address without permission and for a misaligned one.
const CODE: usize = 8;
const SEGV_ACCERR: u32 = 2;
const BUS_ADRALN: u32 = 1;
/// The offset of `struct frame_record`: x29 and x30 of the interrupted code. The address of the LoongArch frame
/// follows.
const RECORD: usize = RECORDS + RECORDS_BYTES;
const LINK: usize = RECORD + 16;
const BYTES: usize = LINK + 16;

fn put_half(frame: &mut [u8], at: usize, value: u32) {
    frame[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get_half(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// ESR_EL1 after a fault. Linux maps pages that the program may not read without a translation.
fn syndrome(process: &ProcessFrame, memory: &dyn UserMemory) -> u64 {
    let (pc, address) = (process.pc(), process.fault_address());
    if pc & 3 != 0 {
        return PC_ALIGNMENT;
    }
    let is_present = process.code() == SEGV_ACCERR && memory.read(address, &mut [0]);
    let kind = if is_present { PERMISSION } else { TRANSLATION };
    match (pc == address, process.is_write()) {
        (true, _) => INSTRUCTION_ABORT | kind,
        (_, true) => DATA_ABORT | ABORT_WROTE | kind,
        _ => DATA_ABORT | kind,
    }
}

/// Builds the AArch64 frame for a thread that is at the first instruction of a handler, with the LoongArch frame at its
/// stack pointer. `return_address` is the return trampoline for handlers. Returns false if the stack is not writable.
pub fn enter(state: &mut State, return_address: u64, memory: &dyn UserMemory) -> bool {
    let Some(process) = ProcessFrame::read(state.r(STACK_POINTER), memory) else { return false };
    let address = process.address().wrapping_sub(BYTES as u64) & !15;
    let signal = state.r(4);
    let mut frame = [0; BYTES];
    frame[..128].copy_from_slice(&process.info());
    for (number, value) in process.stack().into_iter().enumerate() {
        put_word(&mut frame, CONTEXT_STACK + 8 * number, value);
    }
    put_word(&mut frame, MASK, process.mask());
    for number in 0..31u8 {
        let value = match place(number) {
            Location::Register(register) => process.register(register),
            _ => read(state, number, memory),
        };
        put_word(&mut frame, REGISTERS + 8 * usize::from(number), value);
    }
    put_word(&mut frame, STACK, process.register(STACK_POINTER));
    put_word(&mut frame, PC, process.pc());
    put_word(&mut frame, STATUS, flags(state));
    put_floats(&mut frame, state, memory);
    // Fault signals report the address.
    if matches!(signal, 4 | 5 | 7 | 8 | 11) {
        put_word(&mut frame, FAULT, process.fault_address());
    }
    if matches!(signal, 7 | 11) {
        let syndrome = syndrome(&process, memory);
        put_half(&mut frame, SYNDROME, SYNDROME_MAGIC);
        put_half(&mut frame, SYNDROME + 4, 16);
        put_word(&mut frame, SYNDROME + 8, syndrome);
        if syndrome == PC_ALIGNMENT {
            put_half(&mut frame, CODE, BUS_ADRALN);
        }
    }
    frame.copy_within(REGISTERS + 8 * 29..REGISTERS + 8 * 31, RECORD);
    put_word(&mut frame, LINK, process.address());
    if !memory.write(address, &frame) {
        return false;
    }
    let arguments = [signal, address, address + CONTEXT as u64];
    for (number, value) in (0..).zip(arguments) {
        write(state, number, value, memory);
    }
    write(state, 29, address + RECORD as u64, memory);
    write(state, 30, return_address, memory);
    state.set_r(SCRATCH, 0);
    state.set_r(STACK_POINTER, address);
    true
}

fn put_floats(frame: &mut [u8], state: &State, memory: &dyn UserMemory) {
    put_half(frame, FLOATS, FLOATS_MAGIC);
    put_half(frame, FLOATS + 4, FLOATS_BYTES as u32);
    put_half(frame, FLOATS + 8, status(state, memory));
    put_half(frame, FLOATS + 12, control(state, memory));
    for (number, vector) in state.v.iter().enumerate() {
        put_word(frame, VECTORS + 16 * number, vector.0[0]);
        put_word(frame, VECTORS + 16 * number + 8, vector.0[1]);
    }
}

/// Copies the handler's changes to the LoongArch frame, and points the stack pointer to it. Returns the address of the
/// AArch64 frame.
pub fn leave(state: &mut State, memory: &dyn UserMemory) -> Option<u64> {
    let address = state.r(STACK_POINTER);
    let mut frame = [0; BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let mut process = ProcessFrame::read(word(&frame, LINK), memory)?;
    for number in 0..31u8 {
        if let Location::Register(register) = place(number) {
            process.set_register(register, word(&frame, REGISTERS + 8 * usize::from(number)));
        }
    }
    process.set_register(STACK_POINTER, word(&frame, STACK));
    process.set_pc(word(&frame, PC));
    process.set_mask(word(&frame, MASK));
    state.set_r(STACK_POINTER, process.address());
    process.write(memory).then_some(address)
}

/// Restores the state that the LoongArch frame does not cover. The caller calls this after restoring from the LoongArch
/// frame.
pub fn after(state: &mut State, at: u64, memory: &dyn UserMemory) {
    let mut frame = [0; BYTES];
    if !memory.read(at, &mut frame) {
        return;
    }
    for number in (0..31).filter(|number| !matches!(place(*number), Location::Register(_))) {
        write(state, number, word(&frame, REGISTERS + 8 * usize::from(number)), memory);
    }
    set_flags(state, word(&frame, STATUS));
    if get_half(&frame, FLOATS) == FLOATS_MAGIC {
        for (number, vector) in state.v.iter_mut().enumerate() {
            vector.0[0] = word(&frame, VECTORS + 16 * number);
            vector.0[1] = word(&frame, VECTORS + 16 * number + 8);
        }
        set_status(state, get_half(&frame, FLOATS + 8), memory);
        set_control(state, get_half(&frame, FLOATS + 12), memory);
    }
}
