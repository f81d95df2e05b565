//! The frame of a signal handler as MIPS n64 has it, laid below the one that the process has made.
//! Not the delivery. What the process knows of the thread stays in its own frame, which is used to come back.
//! Source: Linux arch/mips/kernel/signal.c (struct rt_sigframe), arch/mips/include/uapi/asm/{sigcontext,ucontext}.h;
//! arch/loongarch/include/uapi/asm/sigcontext.h.

use longma_loongarch::State;

use super::numbers;
use super::registers::{HIGH, LOW, STACK_POINTER, general};
use super::service::{control, set_control};
use super::system::information_to_mips;
use longma_translate::front_end::Structures;

// The frame of LoongArch: siginfo, then ucontext with its mask, program counter and registers.
const OUTER_MASK: usize = 168;
const OUTER_STACK: usize = 144;
const OUTER_PC: usize = 304;
const OUTER_REGISTERS: usize = 312;
const OUTER_BYTES: usize = 576;

// The frame of MIPS.
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
/// Behind the frame: where the other one is.
const LINK: usize = BYTES - 16;

fn put(frame: &mut [u8], at: usize, value: u64) {
    frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(frame: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// The thread is at the first instruction of a handler, with the process's frame at its stack pointer: lays MIPS's frame below it. `back`
/// is the code that handlers return to. False if the stack cannot take it.
pub fn enter(state: &mut State, back: u64, memory: &dyn Structures) -> bool {
    let outer_at = state.r(STACK_POINTER);
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(outer_at, &mut outer) {
        return false;
    }
    let address = outer_at.wrapping_sub(BYTES as u64) & !15;
    let signal = numbers::signal_to_mips(state.r(4));
    let mut frame = [0; BYTES];
    let mut info: [u8; 128] = std::array::from_fn(|byte| outer[byte]);
    information_to_mips(&mut info);
    frame[INFO..INFO + 128].copy_from_slice(&info);
    for (at, from) in [(0, 0), (8, 16), (16, 8)] {
        put(&mut frame, CONTEXT_STACK + at, get(&outer, OUTER_STACK + from));
    }
    for number in 1..32u8 {
        let register = usize::from(general(number));
        let value = if register == 0 { 0 } else { get(&outer, OUTER_REGISTERS + 8 * register) };
        put(&mut frame, REGISTERS + 8 * usize::from(number), value);
    }
    for (number, vector) in state.v.iter().enumerate() {
        put(&mut frame, FLOATS + 8 * number, vector.0[0]);
    }
    put(&mut frame, HIGH_WORD, state.lbt.scratch[usize::from(HIGH)]);
    put(&mut frame, LOW_WORD, state.lbt.scratch[usize::from(LOW)]);
    put(&mut frame, PC, get(&outer, OUTER_PC));
    put(&mut frame, CONTROL, u64::from(control(state)) | 1 << 32);
    put(&mut frame, MASK, numbers::set_to_mips(get(&outer, OUTER_MASK)));
    put(&mut frame, LINK, outer_at);
    if !memory.write(address, &frame) {
        return false;
    }
    state.set_r(4, signal);
    state.set_r(5, address + INFO as u64);
    state.set_r(6, address + CONTEXT as u64);
    state.set_r(1, 0);
    state.set_r(25, state.pc);
    state.set_r(31, back);
    state.set_r(STACK_POINTER, address);
    true
}

/// The handler has returned: what it has made of the frame goes into the process's own, and the stack pointer to that.
pub fn leave(state: &mut State, memory: &dyn Structures) -> Option<u64> {
    let address = state.r(STACK_POINTER);
    let mut frame = [0; BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let outer_at = get(&frame, LINK);
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(outer_at, &mut outer) {
        return None;
    }
    for number in (1..32u8).filter(|number| general(*number) != 0) {
        put(
            &mut outer,
            OUTER_REGISTERS + 8 * usize::from(general(number)),
            get(&frame, REGISTERS + 8 * usize::from(number)),
        );
    }
    put(&mut outer, OUTER_PC, get(&frame, PC));
    put(&mut outer, OUTER_MASK, numbers::set_from_mips(get(&frame, MASK)));
    state.set_r(STACK_POINTER, outer_at);
    memory.write(outer_at, &outer).then_some(address)
}

/// What the process's own frame does not bring back of the handler's changes: call it when that has been done.
pub fn after(state: &mut State, at: u64, memory: &dyn Structures) {
    let mut frame = [0; BYTES];
    if memory.read(at, &mut frame) {
        for (number, vector) in state.v.iter_mut().enumerate() {
            vector.0[0] = get(&frame, FLOATS + 8 * number);
        }
        state.lbt.scratch[usize::from(HIGH)] = get(&frame, HIGH_WORD);
        state.lbt.scratch[usize::from(LOW)] = get(&frame, LOW_WORD);
        set_control(state, get(&frame, CONTROL) as u32 & !(0x1f << 12));
    }
}
