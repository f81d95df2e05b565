//! Host code to be read: what the translator makes of some guest code, with names for the addresses in it.
//! Not code to be run: it stands nowhere, and where it leads to is made up. Nor its text, which is the reader's.

use std::{collections::BTreeMap, mem::offset_of};

use longma_loongarch::{
    Access, Environment, ExtendedFlags, Fault, FaultCause, Register, Reservation, Scalar, State,
};

use super::{
    assembler::Assembled,
    call_out::execute_call_out,
    code_cache::LINE_BYTES,
    emit::{self, Emitted, Surroundings},
    region::{Profile, Region},
    trampolines::{BASE_BIAS, Trampolines},
};
use crate::{
    block::{Block, Interest},
    counting::Counting,
    cpu::{Cpu, JumpCacheEntry, SignMasks, VectorConstants},
    guest::NoEnvironment,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// Where the shared code is said to stand.
const SHARED: u64 = 0x1000_0000;
/// Where a region's code is said to stand.
const REGION: u64 = 0x1010_0000;

/// What is translated besides the instructions themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Guest address 0 is not host address 0.
    pub based: bool,
    /// Blocks are counted.
    pub counting: bool,
    /// Blocks are traced.
    pub tracing: bool,
}

/// Host code and what its addresses are. The same guest code gives the same on every host, but for the numbers that `names` has names for.
#[derive(Clone, Debug)]
pub struct HostCode {
    /// The host address that the code is written for.
    pub start: u64,
    /// The code.
    pub bytes: Vec<u8>,
    /// `(position, guest address)` of every instruction, ascending by position; the last, with guest address 0, is the end of the blocks.
    pub positions: Vec<(u32, u64)>,
    /// Host addresses with their names: of the shared code, of the exits, of instructions that are handed to the interpreter.
    pub names: BTreeMap<u64, String>,
}

impl HostCode {
    /// The code of the region that begins at guest address `start`, where `words` stand; every block counts as having run once.
    /// `None` if the first word is no instruction.
    pub fn of(start: u64, words: &[u32], extras: Extras) -> Option<Self> {
        let region = Region::form(start, &Once::of(&Words { start, words }));
        region.blocks.first()?;
        let (trampolines, mut names, _) = shared();
        let counting = extras.counting.then(Counting::default);
        let tracing = extras.tracing.then(TracedBlocks::default);
        let emitted = emit::emit(
            &region,
            Surroundings {
                trampolines,
                based: extras.based,
                counting: counting.as_ref(),
                tracing: tracing.as_ref(),
                registers: &RegisterAccesses::default(),
            },
        );
        let Emitted { code, spill, call_out, positions, call_outs, .. } = emitted;
        names.insert(REGION + spill as u64, "leave_region".into());
        names.insert(REGION + call_out as u64, "interpret_one".into());
        for placed in &call_outs {
            let call_out = &*placed.call_out;
            names.insert(std::ptr::from_ref(call_out) as u64, format!("{{{}}}", call_out.instruction));
        }
        Some(Self { start: REGION, bytes: code.at(REGION), positions, names })
    }

    /// The code that all regions share.
    pub fn shared() -> Self {
        let (_, names, bytes) = shared();
        Self { start: SHARED, bytes, positions: Vec::new(), names }
    }
}

/// What stands in memory at the base register of translated code (RBP) plus `displacement`.
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

/// The general registers, each of which has a name of its own.
const GENERAL: &str = "";

/// What translated code reads and writes of a [`Cpu`]: its place, its name, the bytes of one and how many there are.
fn fields() -> Vec<(usize, &'static str, usize, usize)> {
    let state = |offset| offset_of!(Cpu, state) + offset;
    let signs = |offset| offset_of!(Cpu, sign_masks) + offset;
    let vectors = |offset| offset_of!(Cpu, vector_constants) + offset;
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
        (vectors(offset_of!(VectorConstants, word_count)), "word_counts", 32, 1),
        (vectors(offset_of!(VectorConstants, doubleword_count)), "doubleword_counts", 32, 1),
        (offset_of!(Cpu, crc_constants), "crc_constants", 16, 1),
        (jump(offset_of!(JumpCacheEntry, guest)), "jumps.guest", 8, 1),
        (jump(offset_of!(JumpCacheEntry, host)), "jumps.host", 8, 1),
        (offset_of!(Cpu, counters), "counters", 8, 1),
        (offset_of!(Cpu, trace_next), "trace_next", 8, 1),
        (offset_of!(Cpu, trace_limit), "trace_limit", 8, 1),
    ]
}

/// The shared code: where its parts are, by name too, and its bytes.
fn shared() -> (Trampolines, BTreeMap<u64, String>, Vec<u8>) {
    let mut bytes: Vec<u8> = Vec::new();
    let trampolines = Trampolines::write(&mut |code: &Assembled| {
        bytes.resize(bytes.len().next_multiple_of(LINE_BYTES), NOTHING);
        let start = SHARED + bytes.len() as u64;
        bytes.extend(code.at(start));
        start
    });
    let names = [
        (trampolines.enter, "enter"),
        (trampolines.leave_canonical, "leave_canonical"),
        (trampolines.leave, "leave"),
        (trampolines.leave_indirect, "leave_indirect"),
        (trampolines.return_miss, "return_miss"),
        (trampolines.call_out, "call_out"),
        (execute_call_out as *const () as u64, "execute_call_out"),
    ];
    (trampolines, names.map(|(address, name)| (address, name.into())).into(), bytes)
}

/// A host instruction of one byte that does nothing.
const NOTHING: u8 = 0x90;

/// Guest code that stands in no memory.
struct Words<'a> {
    start: u64,
    words: &'a [u32],
}

impl Environment for Words<'_> {
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

/// The profile of a program each of whose blocks has run once.
struct Once(BTreeMap<u64, Block>);

impl Once {
    fn of(program: &Words) -> Self {
        let addresses = (0..program.words.len() as u64).map(|index| program.start + 4 * index);
        let blocks = addresses
            .filter_map(|pc| Some((pc, Block::decode(pc, program, Interest::default(), |_| {}).ok()?)));
        Self(blocks.collect())
    }
}

impl Profile for Once {
    fn block(&self, pc: u64) -> Option<(&Block, u32)> {
        self.0.get(&pc).map(|block| (block, 1))
    }
}
