//! The frame of a signal handler as x86-64 has it, laid below the one that the process has made.
//! Not the delivery. What the process knows of the thread stays in its own frame, which is used to come back.
//! Source: Linux arch/x86/include/asm/sigframe.h, arch/x86/include/uapi/asm/{sigcontext,ucontext}.h, arch/x86/kernel/signal_64.c;
//! arch/loongarch/include/uapi/asm/sigcontext.h; Intel SDM, volume 2 (FXSAVE).

use longma_loongarch::State;

use super::x87;
use super::{control, set_control};
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

// The frame of x86-64: the return address, ucontext, siginfo.
const CONTEXT: usize = 8;
const CONTEXT_STACK: usize = CONTEXT + 16;
const REGISTERS: usize = CONTEXT + 40;
const RIP: usize = REGISTERS + 16 * 8;
const RFLAGS: usize = RIP + 8;
const SEGMENTS: usize = RFLAGS + 8;
const ERROR: usize = SEGMENTS + 8;
const TRAP: usize = ERROR + 8;
const CR2: usize = ERROR + 24;
const FLOATS: usize = ERROR + 32;
const MASK: usize = REGISTERS + 256;
const INFO: usize = CONTEXT + 304;
/// Behind the frame: where the other one is.
const LINK: usize = INFO + 128;
const BYTES: usize = LINK + 8;

/// What FXSAVE writes.
pub(super) const FLOAT_BYTES: usize = 512;

/// The general registers by their order in the frame: R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP.
const ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 3, 2, 0, 1, 4];
/// CS and SS of user programs.
const SELECTORS: u64 = 0x33 | 0x2b << 48;
/// Its number; #DE is 0, #DB 1, #BP 3, #UD 6, #GP 13.
const PAGE_FAULT: u64 = 14;
/// Codes of INT1, and of exceptions without an address.
const TRAP_BRKPT: u32 = 1;
const SI_KERNEL: u32 = 0x80;

fn put(frame: &mut [u8], at: usize, value: u64) {
    frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(frame: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// The exception that a signal with such an `si_code` comes from.
fn trap_number(signal: u64, code: u32) -> u64 {
    match (signal, code) {
        (4, _) => 6,
        (5, TRAP_BRKPT) => 1,
        (5, _) => 3,
        (11, SI_KERNEL) => 13,
        (7 | 11, _) => PAGE_FAULT,
        _ => 0,
    }
}

/// The thread is at the first instruction of a handler, with the process's frame at its stack pointer: lays x86's frame below it. `back`
/// is the code that handlers return to. False if the stack cannot take it.
pub fn enter(state: &mut State, back: u64, memory: &dyn Structures) -> bool {
    let outer_at = state.r(STACK_POINTER);
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(outer_at, &mut outer) {
        return false;
    }
    let floats_at = outer_at.wrapping_sub(FLOAT_BYTES as u64) & !63;
    let address = (floats_at.wrapping_sub(BYTES as u64 + 8) & !15).wrapping_sub(8);
    let signal = state.r(4);
    let mut frame = [0; BYTES];
    put(&mut frame, 0, back);
    for (at, word) in [(0, 0), (8, 8), (16, 16)] {
        put(&mut frame, CONTEXT_STACK + at, get(&outer, OUTER_STACK + word));
    }
    let x: [u64; 32] = std::array::from_fn(|number| get(&outer, OUTER_REGISTERS + 8 * number));
    for (at, number) in ORDER.into_iter().enumerate() {
        put(&mut frame, REGISTERS + 8 * at, x[usize::from(GENERAL[number])]);
    }
    put(&mut frame, RIP, get(&outer, OUTER_PC));
    put(&mut frame, RFLAGS, flags(&x, state.lbt.scratch[usize::from(DIRECTION)]));
    put(&mut frame, SEGMENTS, SELECTORS);
    let trap = trap_number(signal, (get(&outer, 8) & 0xffff_ffff) as u32);
    put(&mut frame, TRAP, trap);
    if trap == PAGE_FAULT {
        let wrote = get(&outer, OUTER_FLAGS) as u32 & WROTE != 0;
        put(&mut frame, ERROR, if wrote { 6 } else { 4 });
        put(&mut frame, CR2, get(&outer, 16));
    }
    put(&mut frame, FLOATS, floats_at);
    put(&mut frame, MASK, get(&outer, OUTER_MASK));
    frame[INFO..INFO + 128].copy_from_slice(&outer[..128]);
    put(&mut frame, LINK, outer_at);
    if !memory.write(address, &frame) || !memory.write(floats_at, &save_floats(state)) {
        return false;
    }
    let handler = state.pc;
    state.lbt.scratch[usize::from(DIRECTION)] = 0;
    x87::initialise(state);
    state.set_r(RDI, signal);
    state.set_r(RSI, address + INFO as u64);
    state.set_r(RDX, address + CONTEXT as u64);
    state.set_r(RAX, 0);
    state.set_r(SCRATCH, 0);
    state.set_r(STACK_POINTER, address);
    state.pc = handler;
    true
}

/// The handler has returned: what it has made of the frame goes into the process's own, and the stack pointer to that.
pub fn leave(state: &mut State, memory: &dyn Structures) -> Option<u64> {
    // `ret` has taken the return address.
    let address = state.r(STACK_POINTER).wrapping_sub(8);
    let mut frame = [0; BYTES];
    let mut outer = [0; OUTER_BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let outer_at = get(&frame, LINK);
    if !memory.read(outer_at, &mut outer) {
        return None;
    }
    let mut x: [u64; 32] = std::array::from_fn(|number| get(&outer, OUTER_REGISTERS + 8 * number));
    for (at, number) in ORDER.into_iter().enumerate() {
        x[usize::from(GENERAL[number])] = get(&frame, REGISTERS + 8 * at);
    }
    let _ = set_flags(&mut x, get(&frame, RFLAGS));
    for (number, value) in x.into_iter().enumerate().skip(1) {
        put(&mut outer, OUTER_REGISTERS + 8 * number, value);
    }
    put(&mut outer, OUTER_PC, get(&frame, RIP));
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
    state.lbt.scratch[usize::from(DIRECTION)] = get(&frame, RFLAGS) >> 10 & 1;
    let mut floats = [0; FLOAT_BYTES];
    if get(&frame, FLOATS) != 0 && memory.read(get(&frame, FLOATS), &mut floats) {
        restore_floats(state, &floats);
    }
}

/// What FXSAVE writes.
pub(super) fn save_floats(state: &State) -> [u8; FLOAT_BYTES] {
    let mut out = [0; FLOAT_BYTES];
    let words = x87::words(state);
    out[0..2].copy_from_slice(&words.control.to_le_bytes());
    out[2..4].copy_from_slice(&words.status.to_le_bytes());
    out[4] = !words.empty;
    out[24..28].copy_from_slice(&control(state).to_le_bytes());
    out[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
    for number in 0..8u8 {
        let (mantissa, exponent) = x87::bits(state, number);
        let at = 32 + 16 * usize::from(number);
        put(&mut out, at, mantissa);
        out[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
    }
    for number in 0..16usize {
        let vector = state.v[16 + number].0;
        put(&mut out, 160 + 16 * number, vector[0]);
        put(&mut out, 168 + 16 * number, vector[1]);
    }
    out
}

/// Takes over what FXRSTOR reads.
pub(super) fn restore_floats(state: &mut State, from: &[u8; FLOAT_BYTES]) {
    let half = |at: usize| u16::from_le_bytes([from[at], from[at + 1]]);
    x87::set_words(state, x87::Words { control: half(0), status: half(2), empty: !from[4] });
    set_control(state, get(from, 24) as u32);
    for number in 0..8u8 {
        let at = 32 + 16 * usize::from(number);
        x87::set_bits(state, number, (get(from, at), half(at + 8)));
    }
    for number in 0..16usize {
        let vector = &mut state.v[16 + number].0;
        vector[0] = get(from, 160 + 16 * number);
        vector[1] = get(from, 168 + 16 * number);
    }
    state.v[usize::from(ZERO_VECTOR)].0 = [0; 4];
}
