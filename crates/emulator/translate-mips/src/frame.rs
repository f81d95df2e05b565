//! Builds the MIPS n64 signal frame below the process's LoongArch frame, and copies changes back when the handler
//! returns. The return itself uses the LoongArch frame. Source: Linux arch/mips/kernel/signal.c (struct rt_sigframe),
//! arch/mips/include/uapi/asm/{sigcontext,ucontext}.h.

use longma_loongarch::State;

use super::numbers;
use super::registers::{HIGH, LOW, STACK_POINTER, general};
use super::service::{control, set_control};
use super::system::information_to_mips;
use longma_translate::front_end::UserMemory;
use longma_translate::process_frame::{ProcessFrame, put_word, word};

// Offsets in the MIPS frame.
const INFO: usize = 24;
const CONTEXT: usize = 152;
const CONTEXT_STACK: usize = CONTEXT + 16;
const REGISTERS: usize = CONTEXT + 40;
const FLOATS: usize = REGISTERS + 256;
const HIGH_WORD: usize = FLOATS + 256;
const LOW_WORD: usize = HIGH_WORD + 32;
const PC: usize = LOW_WORD + 32;
const CONTROL: usize = PC + 8;
const MASK: usize = PC + 24;
const BYTES: usize = 832;
/// After the frame: the address of the LoongArch frame.
const LINK: usize = BYTES - 16;

/// Builds the MIPS frame for a thread that is at the first instruction of a handler, with the LoongArch frame at its
/// stack pointer. `return_address` is the return trampoline for handlers. Returns false if the stack is not writable.
pub fn enter(state: &mut State, return_address: u64, memory: &dyn UserMemory) -> bool {
    let Some(process) = ProcessFrame::read(state.r(STACK_POINTER), memory) else { return false };
    let address = process.address().wrapping_sub(BYTES as u64) & !15;
    let signal = numbers::signal_to_mips(state.r(4));
    let mut frame = [0; BYTES];
    let mut info = process.info();
    information_to_mips(&mut info);
    frame[INFO..INFO + 128].copy_from_slice(&info);
    let [base, flags, bytes] = process.stack();
    for (number, value) in [base, bytes, flags].into_iter().enumerate() {
        put_word(&mut frame, CONTEXT_STACK + 8 * number, value);
    }
    for number in 1..32u8 {
        let value = if general(number) == 0 { 0 } else { process.register(general(number)) };
        put_word(&mut frame, REGISTERS + 8 * usize::from(number), value);
    }
    for (number, vector) in state.v.iter().enumerate() {
        put_word(&mut frame, FLOATS + 8 * number, vector.0[0]);
    }
    put_word(&mut frame, HIGH_WORD, state.lbt.scratch[usize::from(HIGH)]);
    put_word(&mut frame, LOW_WORD, state.lbt.scratch[usize::from(LOW)]);
    put_word(&mut frame, PC, process.pc());
    put_word(&mut frame, CONTROL, u64::from(control(state)) | 1 << 32);
    put_word(&mut frame, MASK, numbers::set_to_mips(process.mask()));
    put_word(&mut frame, LINK, process.address());
    if !memory.write(address, &frame) {
        return false;
    }
    state.set_r(4, signal);
    state.set_r(5, address + INFO as u64);
    state.set_r(6, address + CONTEXT as u64);
    state.set_r(1, 0);
    state.set_r(25, state.pc);
    state.set_r(31, return_address);
    state.set_r(STACK_POINTER, address);
    true
}

/// Copies the handler's changes to the LoongArch frame, and points the stack pointer to it. Returns the address of the
/// MIPS frame.
pub fn leave(state: &mut State, memory: &dyn UserMemory) -> Option<u64> {
    let address = state.r(STACK_POINTER);
    let mut frame = [0; BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let mut process = ProcessFrame::read(word(&frame, LINK), memory)?;
    for number in (1..32u8).filter(|number| general(*number) != 0) {
        process.set_register(general(number), word(&frame, REGISTERS + 8 * usize::from(number)));
    }
    process.set_pc(word(&frame, PC));
    process.set_mask(numbers::set_from_mips(word(&frame, MASK)));
    state.set_r(STACK_POINTER, process.address());
    process.write(memory).then_some(address)
}

/// Restores the state that the LoongArch frame does not cover. The caller calls this after restoring from the LoongArch
/// frame.
pub fn after(state: &mut State, at: u64, memory: &dyn UserMemory) {
    let mut frame = [0; BYTES];
    if memory.read(at, &mut frame) {
        for (number, vector) in state.v.iter_mut().enumerate() {
            vector.0[0] = word(&frame, FLOATS + 8 * number);
        }
        state.lbt.scratch[usize::from(HIGH)] = word(&frame, HIGH_WORD);
        state.lbt.scratch[usize::from(LOW)] = word(&frame, LOW_WORD);
        set_control(state, word(&frame, CONTROL) as u32 & !(0x1f << 12));
    }
}
