//! The x86-64 signal frame, built below the LoongArch frame. The LoongArch frame is used to return from the handler.
//! Source: Linux arch/x86/include/asm/sigframe.h, arch/x86/include/uapi/asm/{sigcontext,ucontext}.h,
//! arch/x86/kernel/signal_64.c; Intel SDM, volume 2 (FXSAVE).

use iced_x86::{InstructionInfoFactory, OpAccess};
use longma_loongarch::State;

use super::area::{self, AREA_BYTES};
use super::x87;
use super::{TF, control, set_control};
use crate::code::reading::decode_at;
use crate::features::has_avx;
use crate::registers::*;
use longma_translate::front_end::UserMemory;
use longma_translate::process_frame::{ProcessFrame, put_word, word};

// Offsets in the x86-64 frame: return address, ucontext, siginfo.
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
/// The offset, after the frame, of the LoongArch frame's address.
const LINK: usize = INFO + 128;
const BYTES: usize = LINK + 8;

/// The size of the FXSAVE area.
pub(crate) const FLOAT_BYTES: usize = 512;
/// The offset of the software-reserved bytes of the FXSAVE area: FP_XSTATE_MAGIC1, sizes, components. FP_XSTATE_MAGIC2
/// follows the whole area.
const SOFTWARE: usize = 464;
const MARK: u32 = 0x4650_5853;
const END_MARK: u32 = 0x4650_5845;
const END_BYTES: usize = 4;
/// The bit of `uc_flags` that is set if the frame has an XSAVE area.
const UC_FP_XSTATE: u64 = 1;

/// The encoding numbers of the general registers in the order of the frame: R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX,
/// RCX, RSP.
const ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 3, 2, 0, 1, 4];
/// CS and SS in user mode.
const SELECTORS: u64 = 0x33 | 0x2b << 48;
/// The initial value of MXCSR.
pub(super) const INITIAL_CONTROL: u32 = 0x1f80;
/// The first address that user memory cannot have (TASK_SIZE_MAX).
const USER_END: u64 = (1 << 47) - 4096;
/// The vector number of #PF. #DE is 0, #DB 1, #BP 3, #UD 6, #GP 13.
const PAGE_FAULT: u64 = 14;
/// `si_code` of INT1, of single steps, and of exceptions without an address.
const TRAP_BRKPT: u32 = 1;
const TRAP_TRACE: u32 = 2;
const SI_KERNEL: u32 = 0x80;

/// The vector number of the exception that caused a signal with this `si_code`.
fn trap_number(signal: u64, code: u32) -> u64 {
    match (signal, code) {
        (4, _) => 6,
        (5, TRAP_BRKPT | TRAP_TRACE) => 1,
        (5, _) => 3,
        (11, SI_KERNEL) => 13,
        (7 | 11, _) => PAGE_FAULT,
        _ => 0,
    }
}

/// The error code of a page fault. Bits: 0 the page is present, 1 a store, 2 in user mode, 4 an instruction fetch. On a
/// processor, presence depends on earlier accesses; here, every page that the program may read is present. So are
/// kernel addresses, as Linux reports them (`sanitize_error_code` in arch/x86/mm/fault.c).
fn page_fault_error(process: &ProcessFrame, memory: &dyn UserMemory) -> u64 {
    const SEGV_ACCERR: u32 = 2;
    let address = process.fault_address();
    let is_present = process.code() == SEGV_ACCERR && memory.read(address, &mut [0]) || address >= USER_END;
    let is_fetch = process.pc() == address;
    let is_write = !is_fetch && (process.is_write() || modifies_memory(process.pc(), memory));
    u64::from(is_present) | u64::from(is_write) << 1 | 4 | u64::from(is_fetch) << 4
}

/// Whether the instruction at `pc` reads an operand in memory and writes it back. If its load faults, processors report
/// the fault of a store.
fn modifies_memory(pc: u64, memory: &dyn UserMemory) -> bool {
    let fetch = |address| {
        let mut word = [0; 4];
        memory.read(address, &mut word).then(|| u32::from_le_bytes(word))
    };
    decode_at(pc, &fetch).is_some_and(|instruction| {
        let mut factory = InstructionInfoFactory::new();
        let used = factory.info(&instruction).used_memory();
        used.iter().any(|memory| matches!(memory.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite))
    })
}

/// Builds the x86-64 frame below the LoongArch frame at the stack pointer. The thread is at the first instruction of
/// its handler, which returns to `return_address`. Returns false if the stack is not writable.
pub fn enter(state: &mut State, return_address: u64, memory: &dyn UserMemory) -> bool {
    let Some(process) = ProcessFrame::read(state.r(STACK_POINTER), memory) else { return false };
    let floats = saved(state);
    let floats_at = process.address().wrapping_sub(floats.len() as u64) & !63;
    let address = (floats_at.wrapping_sub(BYTES as u64 + 8) & !15).wrapping_sub(8);
    let signal = state.r(4);
    let mut frame = [0; BYTES];
    put_word(&mut frame, 0, return_address);
    put_word(&mut frame, CONTEXT, if has_avx() { UC_FP_XSTATE } else { 0 });
    for (number, value) in process.stack().into_iter().enumerate() {
        put_word(&mut frame, CONTEXT_STACK + 8 * number, value);
    }
    let x: [u64; 32] = std::array::from_fn(|number| process.register(number as u8));
    for (at, number) in ORDER.into_iter().enumerate() {
        put_word(&mut frame, REGISTERS + 8 * at, x[usize::from(GENERAL[number])]);
    }
    put_word(&mut frame, RIP, process.pc());
    let rflags = flags(&x, state.lbt.scratch[usize::from(DIRECTION)]) | x87::kept_flags(state);
    put_word(&mut frame, RFLAGS, rflags);
    put_word(&mut frame, SEGMENTS, SELECTORS);
    let trap = trap_number(signal, process.code());
    put_word(&mut frame, TRAP, trap);
    if trap == PAGE_FAULT {
        put_word(&mut frame, ERROR, page_fault_error(&process, memory));
        put_word(&mut frame, CR2, process.fault_address());
    }
    put_word(&mut frame, FLOATS, floats_at);
    put_word(&mut frame, MASK, process.mask());
    frame[INFO..INFO + 128].copy_from_slice(&process.info());
    put_word(&mut frame, LINK, process.address());
    if !memory.write(address, &frame) || !memory.write(floats_at, &floats) {
        return false;
    }
    let handler = state.pc;
    state.lbt.scratch[usize::from(DIRECTION)] = 0;
    x87::keep_flags(state, rflags & !TF);
    x87::initialise(state);
    set_control(state, INITIAL_CONTROL);
    state.set_r(RDI, signal);
    state.set_r(RSI, address + INFO as u64);
    state.set_r(RDX, address + CONTEXT as u64);
    state.set_r(RAX, 0);
    state.set_r(SCRATCH, 0);
    state.set_r(STACK_POINTER, address);
    state.pc = handler;
    true
}

/// Copies the handler's changes to the LoongArch frame, and points the stack pointer to it. Returns the address of the
/// x86-64 frame.
pub fn leave(state: &mut State, memory: &dyn UserMemory) -> Option<u64> {
    // `ret` has popped the return address.
    let address = state.r(STACK_POINTER).wrapping_sub(8);
    let mut frame = [0; BYTES];
    if !memory.read(address, &mut frame) {
        return None;
    }
    let mut process = ProcessFrame::read(word(&frame, LINK), memory)?;
    let mut x: [u64; 32] = std::array::from_fn(|number| process.register(number as u8));
    for (at, number) in ORDER.into_iter().enumerate() {
        x[usize::from(GENERAL[number])] = word(&frame, REGISTERS + 8 * at);
    }
    let _ = set_flags(&mut x, word(&frame, RFLAGS));
    for (number, value) in (0..).zip(x).skip(1) {
        process.set_register(number, value);
    }
    process.set_pc(word(&frame, RIP));
    process.set_mask(word(&frame, MASK));
    state.set_r(STACK_POINTER, process.address());
    process.write(memory).then_some(address)
}

/// Restores the state that the LoongArch frame has no fields for. Call it after the LoongArch frame was restored.
pub fn after(state: &mut State, at: u64, memory: &dyn UserMemory) {
    let mut frame = [0; BYTES];
    if !memory.read(at, &mut frame) {
        return;
    }
    state.lbt.scratch[usize::from(DIRECTION)] = word(&frame, RFLAGS) >> 10 & 1;
    x87::keep_flags(state, word(&frame, RFLAGS));
    let at = word(&frame, FLOATS);
    if at != 0 {
        restore_saved(state, at, memory);
    } else {
        // The LoongArch frame does not contain FCSR's private rules.
        set_control(state, control(state));
    }
}

/// The floating-point state in a frame: the FXSAVE area or, if XSAVE is announced, the XSAVE area with both magic
/// numbers.
fn saved(state: &State) -> Vec<u8> {
    if !has_avx() {
        return save_floats(state).to_vec();
    }
    let mut bytes = area::save(state).to_vec();
    put_word(&mut bytes, SOFTWARE, u64::from(MARK) | ((AREA_BYTES + END_BYTES) as u64) << 32);
    put_word(&mut bytes, SOFTWARE + 8, area::COMPONENTS);
    put_word(&mut bytes, SOFTWARE + 16, AREA_BYTES as u64);
    bytes.extend(END_MARK.to_le_bytes());
    bytes
}

/// Restores the floating-point state: the XSAVE area if both magic numbers are present, otherwise the FXSAVE area, as
/// Linux does.
fn restore_saved(state: &mut State, at: u64, memory: &dyn UserMemory) {
    let mut all = [0; AREA_BYTES + END_BYTES];
    let is_whole = has_avx() && memory.read(at, &mut all) && {
        let end = u32::from_le_bytes(std::array::from_fn(|byte| all[AREA_BYTES + byte]));
        word(&all, SOFTWARE) as u32 == MARK && end == END_MARK
    };
    if is_whole {
        let area = all.first_chunk().expect("the buffer starts with the area");
        return area::restore(state, area, area::COMPONENTS);
    }
    let mut floats = [0; FLOAT_BYTES];
    if memory.read(at, &mut floats) {
        restore_floats(state, &floats);
        if has_avx() {
            (0..16).for_each(|n| set_upper(state, n, [0; 2]));
        }
    }
}

/// The FXSAVE area.
pub(crate) fn save_floats(state: &State) -> [u8; FLOAT_BYTES] {
    let mut area = [0; FLOAT_BYTES];
    let words = x87::words(state);
    area[0..2].copy_from_slice(&words.control.to_le_bytes());
    area[2..4].copy_from_slice(&words.status.to_le_bytes());
    area[4] = !words.empty;
    area[24..28].copy_from_slice(&control(state).to_le_bytes());
    area[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
    for number in 0..8u8 {
        let (mantissa, exponent) = x87::bits(state, number);
        let at = 32 + 16 * usize::from(number);
        put_word(&mut area, at, mantissa);
        area[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
    }
    for number in 0..16usize {
        let vector = state.v[16 + number].0;
        put_word(&mut area, 160 + 16 * number, vector[0]);
        put_word(&mut area, 168 + 16 * number, vector[1]);
    }
    area
}

/// Restores the FXSAVE area.
pub(super) fn restore_floats(state: &mut State, from: &[u8; FLOAT_BYTES]) {
    restore_x87(state, from);
    set_control(state, word(from, 24) as u32);
    restore_vectors(state, from);
}

/// Restores the x87 part of the FXSAVE area.
pub(crate) fn restore_x87(state: &mut State, from: &[u8; FLOAT_BYTES]) {
    let half = |at: usize| u16::from_le_bytes([from[at], from[at + 1]]);
    x87::set_words(state, x87::Words { control: half(0), status: half(2), empty: !from[4] });
    for number in 0..8u8 {
        let at = 32 + 16 * usize::from(number);
        x87::set_bits(state, number, (word(from, at), half(at + 8)));
    }
}

/// Restores the XMM registers from the FXSAVE area.
pub(super) fn restore_vectors(state: &mut State, from: &[u8; FLOAT_BYTES]) {
    for number in 0..16usize {
        let vector = &mut state.v[16 + number].0;
        vector[0] = word(from, 160 + 16 * number);
        vector[1] = word(from, 168 + 16 * number);
    }
    state.v[usize::from(ZERO_VECTOR)].0 = [0; 4];
}
