//! The signal frame: the layout of a thread's registers on its stack while a handler runs. Source: Linux
//! arch/loongarch/include/uapi/asm/{sigcontext,ucontext}.h, arch/loongarch/kernel/signal.c.

use longma_guest::host::masks::SignalSet;
use longma_guest::host::reception::SignalInfo;
use longma_guest::words::{put_u32, put_u64, u32_at, u64_at};
use longma_loongarch::{Fcsr, State};

use crate::process::AlternateStack;

// struct rt_sigframe { struct siginfo rs_info; struct ucontext rs_uctx; }, followed by records.
const CONTEXT: usize = 128;
const CONTEXT_STACK: usize = CONTEXT + 16;
const CONTEXT_MASK: usize = CONTEXT + 40;
const MACHINE: usize = CONTEXT + 176;
const MACHINE_PC: usize = MACHINE;
const MACHINE_REGISTERS: usize = MACHINE + 8;
const MACHINE_FLAGS: usize = MACHINE + 264;
const RECORDS: usize = MACHINE + 272;
/// The size of a frame without its records.
pub(crate) const FRAME_BYTES: usize = RECORDS;

const RECORD_HEAD_BYTES: u64 = 16;
/// The kernel writes at most three records and the end. A hostile frame may have more.
const MAX_RECORDS: usize = 16;

/// sc_flags: the frame contains floating-point registers.
const SC_USED_FP: u32 = 1;
/// sc_flags: a failed load caused the signal.
pub(crate) const SC_ADDRERR_RD: u32 = 1 << 30;
/// sc_flags: a failed store caused the signal.
pub(crate) const SC_ADDRERR_WR: u32 = 1 << 31;

/// fcsr: x87 stack mode is on.
const FCSR_STACK_MODE: u32 = 1 << 6;
/// fcsr: the writable bits (enables, rounding mode, flags, causes).
const FCSR_MASK: u32 = 0x1f1f_031f;

/// The kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Float,
    Vector128,
    Vector256,
    Translation,
}

impl Record {
    const fn magic(self) -> u32 {
        match self {
            Self::Float => 0x4650_5501,
            Self::Vector128 => 0x5358_0001,
            Self::Vector256 => 0x4153_5801,
            Self::Translation => 0x4254_0001,
        }
    }

    fn from_magic(magic: u32) -> Option<Self> {
        [Self::Float, Self::Vector128, Self::Vector256, Self::Translation]
            .into_iter()
            .find(|record| record.magic() == magic)
    }

    /// The number of 64-bit words for each register.
    const fn words(self) -> usize {
        match self {
            Self::Float => 1,
            Self::Vector128 => 2,
            Self::Vector256 => 4,
            Self::Translation => 0,
        }
    }

    /// The size of the data after the header.
    const fn bytes(self) -> u64 {
        match self {
            Self::Float => 272,
            Self::Vector128 => 528,
            Self::Vector256 => 1040,
            Self::Translation => 40,
        }
    }

    const fn align(self) -> u64 {
        match self {
            Self::Vector256 => 32,
            _ => 16,
        }
    }

    /// The smallest record that holds all nonzero floating-point and vector register bits.
    fn for_state(state: &State) -> Self {
        let upper = state.v.iter().fold([0; 3], |[a, b, c], v| [a | v.0[1], b | v.0[2], c | v.0[3]]);
        match upper {
            [0, 0, 0] => Self::Float,
            [_, 0, 0] => Self::Vector128,
            _ => Self::Vector256,
        }
    }
}

/// A frame to be written.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The guest address of the frame, which is the handler's stack pointer.
    pub address: u64,
    pub bytes: Vec<u8>,
}

impl Frame {
    /// The guest address of the `siginfo_t`.
    pub(crate) fn info_address(&self) -> u64 {
        self.address
    }

    /// The guest address of the `ucontext_t`.
    pub(crate) fn context_address(&self) -> u64 {
        self.address + CONTEXT as u64
    }
}

/// The thread state in a frame other than its registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    pub info: SignalInfo,
    pub mask: SignalSet,
    pub stack: AlternateStack,
    /// SC_ADDRERR_*.
    pub flags: u32,
}

/// Lays out the frame below `stack_top`; `None` if the address space has no space there.
pub(crate) fn build(state: &State, saved: &Saved, stack_top: u64) -> Option<Frame> {
    let top = stack_top & !15;
    let end = top.checked_sub(RECORD_HEAD_BYTES)?;
    let (float, float_bytes) = place(Record::for_state(state), end)?;
    let translation = (state.lbt != Default::default()).then_some(Record::Translation);
    let (first, translation_bytes) = match translation {
        Some(record) => place(record, float)?,
        None => (float, 0),
    };
    let address = first.checked_sub(FRAME_BYTES as u64)?;
    let mut bytes = vec![0; (top - address) as usize];
    bytes[..saved.info.len()].copy_from_slice(&saved.info);
    bytes[CONTEXT_STACK..][..AlternateStack::BYTES].copy_from_slice(&saved.stack.to_bytes());
    put_u64(&mut bytes, CONTEXT_MASK, saved.mask);
    put_u64(&mut bytes, MACHINE_PC, state.pc);
    for (i, &register) in state.x.iter().enumerate() {
        put_u64(&mut bytes, MACHINE_REGISTERS + 8 * i, register);
    }
    put_u32(&mut bytes, MACHINE_FLAGS, SC_USED_FP | saved.flags);
    if translation.is_some() {
        write_record(&mut bytes[(first - address) as usize..], state, Record::Translation, translation_bytes);
    }
    write_record(&mut bytes[(float - address) as usize..], state, Record::for_state(state), float_bytes);
    Some(Frame { address, bytes })
}

/// The start of a record below `top`, and its size including header and padding.
fn place(record: Record, top: u64) -> Option<(u64, u32)> {
    let data = top.checked_sub(record.bytes())? & !(record.align() - 1);
    let head = data.checked_sub(RECORD_HEAD_BYTES)?;
    Some((head, (top - head) as u32))
}

fn write_record(bytes: &mut [u8], state: &State, record: Record, size: u32) {
    put_u32(bytes, 0, record.magic());
    put_u32(bytes, 4, size);
    let data = &mut bytes[RECORD_HEAD_BYTES as usize..];
    if record == Record::Translation {
        for (i, &scratch) in state.lbt.scratch.iter().enumerate() {
            put_u64(data, 8 * i, scratch);
        }
        put_u32(data, 32, state.lbt.eflags);
        put_u32(data, 36, state.lbt.top.into());
        return;
    }
    let words = record.words();
    for (i, vector) in state.v.iter().enumerate() {
        for (lane, &word) in vector.0[..words].iter().enumerate() {
            put_u64(data, 8 * (words * i + lane), word);
        }
    }
    put_u64(data, 256 * words, u64::from_le_bytes(state.fcc));
    let mode = if state.lbt.stack_mode { FCSR_STACK_MODE } else { 0 };
    put_u32(data, 256 * words + 8, state.fcsr.0 & FCSR_MASK | mode);
}

/// The thread state restored from a frame.
#[derive(Debug)]
pub(crate) struct Restored {
    pub state: State,
    pub mask: SignalSet,
    pub stack: AlternateStack,
}

/// Reads the frame at `address` through `read`. Vector register bits that are in no record become zero, except for the
/// floating-point part.
///
/// # Errors
/// Those of `read`, or `invalid` for a record that the kernel would not have written.
pub(crate) fn restore<E>(
    previous: &State,
    address: u64,
    invalid: E,
    read: impl Fn(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Restored, E> {
    let mut frame = [0; FRAME_BYTES];
    read(address, &mut frame)?;
    let mut state = previous.clone();
    state.pc = u64_at(&frame, MACHINE_PC);
    for i in 1..32 {
        state.x[i] = u64_at(&frame, MACHINE_REGISTERS + 8 * i);
    }
    state.reservation = Default::default();
    let stack = AlternateStack::from_bytes(std::array::from_fn(|i| frame[CONTEXT_STACK + i]));
    let restored = |state| Restored { state, mask: u64_at(&frame, CONTEXT_MASK), stack };
    let mut at = address.wrapping_add(RECORDS as u64);
    for _ in 0..MAX_RECORDS {
        let mut head = [0; RECORD_HEAD_BYTES as usize];
        read(at, &mut head)?;
        let (magic, size) = (u32_at(&head, 0), u32_at(&head, 4));
        if magic == 0 {
            return Ok(restored(state));
        }
        let Some(record) =
            Record::from_magic(magic).filter(|r| u64::from(size) >= r.bytes() + RECORD_HEAD_BYTES)
        else {
            return Err(invalid);
        };
        let mut data = [0; Record::Vector256.bytes() as usize];
        let data = &mut data[..record.bytes() as usize];
        read(at.wrapping_add(RECORD_HEAD_BYTES), data)?;
        read_record(data, &mut state, record);
        at = at.wrapping_add(size.into());
    }
    Err(invalid)
}

fn read_record(data: &[u8], state: &mut State, record: Record) {
    if record == Record::Translation {
        state.lbt.scratch = std::array::from_fn(|i| u64_at(data, 8 * i));
        state.lbt.eflags = u32_at(data, 32);
        state.lbt.top = (u32_at(data, 36) & 7) as u8;
        return;
    }
    let words = record.words();
    for (i, vector) in state.v.iter_mut().enumerate() {
        vector.0 =
            std::array::from_fn(|lane| if lane < words { u64_at(data, 8 * (words * i + lane)) } else { 0 });
    }
    state.fcc = u64_at(data, 256 * words).to_le_bytes().map(|flag| flag & 1);
    let fcsr = u32_at(data, 256 * words + 8);
    state.lbt.stack_mode = fcsr & FCSR_STACK_MODE != 0;
    state.fcsr = Fcsr(fcsr & FCSR_MASK);
}

#[cfg(test)]
mod tests {
    use longma_loongarch::{ExtendedFlags, Vector};
    use proptest::prelude::*;

    use super::*;

    const TOP: u64 = 0x10_0008;

    fn reader(frame: &Frame) -> impl Fn(u64, &mut [u8]) -> Result<(), &'static str> {
        |address, bytes: &mut [u8]| {
            let from = address.checked_sub(frame.address).ok_or("below the frame")? as usize;
            let source = frame.bytes.get(from..from.saturating_add(bytes.len())).ok_or("above the frame")?;
            bytes.copy_from_slice(source);
            Ok(())
        }
    }

    fn saved() -> Saved {
        Saved { info: [7; 128], mask: 0x1234, stack: AlternateStack::default(), flags: 0 }
    }

    fn some_state(seed: u64, lanes: usize, translation: bool) -> State {
        let mut state = State { pc: seed & !3, ..State::default() };
        let mut next = seed | 1;
        let mut random = || {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            next ^ next >> 29
        };
        for register in &mut state.x[1..] {
            *register = random();
        }
        for vector in &mut state.v {
            *vector = Vector(std::array::from_fn(|lane| if lane < lanes { random() } else { 0 }));
        }
        state.fcc = std::array::from_fn(|_| (random() & 1) as u8);
        state.fcsr = Fcsr(random() as u32 & FCSR_MASK);
        if translation {
            state.lbt = ExtendedFlags {
                scratch: std::array::from_fn(|_| random()),
                eflags: random() as u32,
                top: (random() & 7) as u8,
                stack_mode: random() & 1 != 0,
            };
        }
        state
    }

    proptest! {
        #[test]
        fn a_frame_round_trips(seed: u64, lanes in 0usize..=4, translation: bool) {
            let state = some_state(seed, lanes, translation);
            let frame = build(&state, &saved(), TOP).unwrap();
            let restored = restore(&State::default(), frame.address, "invalid", reader(&frame)).unwrap();
            prop_assert_eq!(restored.state, state);
            prop_assert_eq!(restored.mask, 0x1234);
        }

        #[test]
        fn a_damaged_frame_is_an_error_or_a_state_but_never_a_panic(
            seed: u64, at in FRAME_BYTES..FRAME_BYTES + 200, value: u32,
        ) {
            let mut frame = build(&some_state(seed, 4, true), &saved(), TOP).unwrap();
            put_u32(&mut frame.bytes, at, value);
            let _ = restore(&State::default(), frame.address, "invalid", reader(&frame));
        }
    }

    #[test]
    fn the_frame_has_the_kernels_layout() {
        let frame = build(&some_state(5, 1, false), &saved(), TOP).unwrap();
        assert_eq!(frame.address % 16, 0);
        assert_eq!(frame.address + frame.bytes.len() as u64, TOP & !15);
        assert_eq!(u32_at(&frame.bytes, 576), 0x4650_5501);
        assert_eq!(u32_at(&frame.bytes, 580), 16 + 272);
    }

    #[test]
    fn a_256_bit_record_has_its_registers_aligned() {
        for top in [0x10_0000, 0x10_0010] {
            let frame = build(&some_state(5, 4, false), &saved(), top).unwrap();
            assert_eq!(u32_at(&frame.bytes, 576), 0x4153_5801);
            assert_eq!((frame.address + 576 + 16) % 32, 0);
        }
    }

    #[test]
    fn a_signal_frame_does_not_fit_at_the_bottom_of_the_address_space() {
        assert!(build(&State::default(), &saved(), 100).is_none());
    }

    #[test]
    fn an_unknown_record_is_refused() {
        let mut frame = build(&State::default(), &saved(), TOP).unwrap();
        put_u32(&mut frame.bytes, 576, 0xdead);
        assert_eq!(
            restore(&State::default(), frame.address, "invalid", reader(&frame)).unwrap_err(),
            "invalid"
        );
    }
}
