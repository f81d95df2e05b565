//! Translates guest code for inspection, at fixed addresses, and names the addresses that the host code refers to. The
//! code is not executable.

use std::{collections::BTreeMap, mem::offset_of};

use longma_loongarch::{
    Access, Environment, ExtendedFlags, Fault, FaultCause, Register, Reservation, Scalar, State,
};

use super::{
    assembler::Assembled,
    code_cache::LINE_BYTES,
    emit::{self, EmitContext, Emitted, origin::OriginSupport},
    interpreter_call::execute_interpreter_call,
    region::{Profile, Region},
    trampolines::{BASE_BIAS, Trampolines},
};
use crate::{
    block::{Block, BlockEnds},
    counting::Counting,
    cpu::{Cpu, JumpCacheEntry, ShiftCountMasks, SignMasks},
    guest::NoEnvironment,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// The fictitious address of the trampolines.
const TRAMPOLINES_ADDRESS: u64 = 0x1000_0000;
/// The fictitious address of a region's code.
const REGION_ADDRESS: u64 = 0x1010_0000;

/// Options that add code around the translated instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instrumentation {
    /// Guest address 0 differs from host address 0.
    pub based: bool,
    /// Count blocks.
    pub counting: bool,
    /// Trace blocks.
    pub tracing: bool,
}

/// Host code and names for its addresses. The output is the same on all hosts, except for the addresses in `names`.
#[derive(Clone, Debug)]
pub struct HostCode {
    /// The host address for which the code is written.
    pub start: u64,
    /// The code.
    pub bytes: Vec<u8>,
    /// `(position, guest address)` of each instruction, ascending by position. The last entry, with guest address 0, is
    /// the end of the blocks.
    pub positions: Vec<(u32, u64)>,
    /// Names of host addresses: trampolines, exits, and instructions executed by the interpreter.
    pub names: BTreeMap<u64, String>,
}

impl HostCode {
    /// Translates the region that starts at guest address `start` and consists of `words`, with an execution count of
    /// 1 for each block. Returns `None` if the first word is not an instruction.
    pub fn of(start: u64, words: &[u32], extras: Instrumentation) -> Option<Self> {
        let region = Region::form(start, &SingleRunProfile::of(&CodeSlice { start, words }), |_| 0);
        region.blocks.first()?;
        let (trampolines, mut names, _) = write_trampolines();
        let counting = extras.counting.then(Counting::default);
        let tracing = extras.tracing.then(TracedBlocks::default);
        let emitted = emit::emit(
            &region,
            EmitContext {
                trampolines,
                based: extras.based,
                counting: counting.as_ref(),
                metered: false,
                tracing: tracing.as_ref(),
                registers: &RegisterAccesses::default(),
                system: None,
                origin: OriginSupport::ALL,
            },
        );
        let Emitted { code, spill, interpreter_call, positions, interpreter_calls, .. } = emitted;
        names.insert(REGION_ADDRESS + spill as u64, "leave_region".into());
        names.insert(REGION_ADDRESS + interpreter_call as u64, "interpret_one".into());
        for placed in &interpreter_calls {
            let interpreter_call = &*placed.interpreter_call;
            names.insert(
                std::ptr::from_ref(interpreter_call) as u64,
                format!("{{{}}}", interpreter_call.instruction),
            );
        }
        Some(Self { start: REGION_ADDRESS, bytes: code.at(REGION_ADDRESS), positions, names })
    }

    /// The trampolines.
    pub fn trampolines() -> Self {
        let (_, names, bytes) = write_trampolines();
        Self { start: TRAMPOLINES_ADDRESS, bytes, positions: Vec::new(), names }
    }
}

/// The name of the field at `displacement` from the base register of translated code (RBP).
pub fn field_name(displacement: i64) -> Option<String> {
    let offset = usize::try_from(displacement + BASE_BIAS).ok()?;
    let mut fields = fields();
    fields.sort_by_key(|field| field.0);
    let (start, name, bytes, count) = *fields.iter().rev().find(|field| field.0 <= offset)?;
    let (index, inside) = ((offset - start) / bytes, (offset - start) % bytes);
    if index >= count {
        return None;
    }
    let name = match (name, count) {
        (GENERAL, _) => Register::general(index as u8).to_string(),
        (_, 1) => name.into(),
        _ => format!("{name}{index}"),
    };
    let inside = if inside > 0 { format!(".{inside}") } else { String::new() };
    Some(name + &inside)
}

/// Marks the general registers, which have individual names.
const GENERAL: &str = "";

/// The fields of a [`Cpu`] that translated code accesses: offset, name, element size in bytes, and number of elements.
fn fields() -> Vec<(usize, &'static str, usize, usize)> {
    let state = |offset| offset_of!(Cpu, state) + offset;
    let signs = |offset| offset_of!(Cpu, sign_masks) + offset;
    let counts = |offset| offset_of!(Cpu, shift_count_masks) + offset;
    let reservation = |offset| state(offset_of!(State, reservation)) + offset;
    let jump = |offset| offset_of!(Cpu, jump_cache) + offset;
    let scratch = state(offset_of!(State, lbt)) + offset_of!(ExtendedFlags, scratch);
    vec![
        (state(offset_of!(State, x)), GENERAL, 8, 32),
        (state(offset_of!(State, v)), "$xr", 32, 32),
        (state(offset_of!(State, pc)), "pc", 8, 1),
        (state(offset_of!(State, fcc)), "$fcc", 1, 8),
        (state(offset_of!(State, fcsr)), "fcsr", 4, 1),
        (reservation(offset_of!(Reservation, address)), "reservation.address", 8, 1),
        (reservation(offset_of!(Reservation, value)), "reservation.value", 8, 1),
        (reservation(offset_of!(Reservation, neighbour)), "reservation.neighbour", 8, 1),
        (scratch, "$scr", 8, 4),
        (offset_of!(Cpu, attention), "attention", 4, 1),
        (offset_of!(Cpu, limit), "limit", 8, 1),
        (offset_of!(Cpu, guest_mxcsr), "guest_mxcsr", 4, 1),
        (offset_of!(Cpu, host_mxcsr), "host_mxcsr", 4, 1),
        (offset_of!(Cpu, host_stack), "host_stack", 8, 1),
        (offset_of!(Cpu, return_stack), "return_stack", 8, 1),
        (offset_of!(Cpu, return_stack_top), "return_stack_top", 8, 1),
        (signs(offset_of!(SignMasks, double)), "sign_double", 16, 1),
        (signs(offset_of!(SignMasks, single)), "sign_single", 16, 1),
        (signs(offset_of!(SignMasks, one_double)), "one_double", 16, 1),
        (signs(offset_of!(SignMasks, one_single)), "one_single", 16, 1),
        (counts(offset_of!(ShiftCountMasks, word)), "word_counts", 32, 1),
        (counts(offset_of!(ShiftCountMasks, doubleword)), "doubleword_counts", 32, 1),
        (offset_of!(Cpu, crc_constants), "crc_constants", 16, 1),
        (jump(offset_of!(JumpCacheEntry, guest)), "jumps.guest", 8, 1),
        (jump(offset_of!(JumpCacheEntry, host)), "jumps.host", 8, 1),
        (offset_of!(Cpu, counters), "counters", 8, 1),
        (offset_of!(Cpu, trace_next), "trace_next", 8, 1),
        (offset_of!(Cpu, trace_limit), "trace_limit", 8, 1),
    ]
}

/// The trampolines: their addresses, their names and their bytes.
fn write_trampolines() -> (Trampolines, BTreeMap<u64, String>, Vec<u8>) {
    let mut bytes: Vec<u8> = Vec::new();
    let trampolines = Trampolines::write(&mut |code: &Assembled| {
        bytes.resize(bytes.len().next_multiple_of(LINE_BYTES), NOP);
        let start = TRAMPOLINES_ADDRESS + bytes.len() as u64;
        bytes.extend(code.at(start));
        start
    });
    let names = [
        (trampolines.enter, "enter"),
        (trampolines.leave_canonical, "leave_canonical"),
        (trampolines.leave, "leave"),
        (trampolines.leave_indirect, "leave_indirect"),
        (trampolines.return_miss, "return_miss"),
        (trampolines.interpreter_call, "interpreter_call"),
        (execute_interpreter_call as *const () as u64, "execute_interpreter_call"),
    ];
    (trampolines, names.map(|(address, name)| (address, name.into())).into(), bytes)
}

/// A one-byte no-op.
const NOP: u8 = 0x90;

/// Guest code that is not in guest memory.
pub(crate) struct CodeSlice<'a> {
    pub start: u64,
    pub words: &'a [u32],
}

impl Environment for CodeSlice<'_> {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        NoEnvironment.load(address)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        NoEnvironment.store(address, value)
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        NoEnvironment.compare_exchange(address, expected, new)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let index = usize::try_from(address.wrapping_sub(self.start) / 4).ok();
        let fault = Fault { address, access: Access::Execute, cause: FaultCause::Unmapped };
        index.and_then(|index| self.words.get(index)).copied().ok_or(fault)
    }

    fn stable_counter(&self) -> u64 {
        NoEnvironment.stable_counter()
    }

    fn cpucfg(&self, index: u32) -> u32 {
        NoEnvironment.cpucfg(index)
    }
}

/// A profile in which each block has run once.
pub(crate) struct SingleRunProfile(pub BTreeMap<u64, Block>);

impl SingleRunProfile {
    fn of(program: &CodeSlice) -> Self {
        let addresses = (0..program.words.len() as u64).map(|index| program.start + 4 * index);
        let blocks = addresses
            .filter_map(|pc| Some((pc, Block::decode(pc, program, BlockEnds::default(), |_| {}).ok()?)));
        Self(blocks.collect())
    }
}

impl Profile for SingleRunProfile {
    fn block(&self, pc: u64) -> Option<(&Block, u32)> {
        self.0.get(&pc).map(|block| (block, 1))
    }
}
