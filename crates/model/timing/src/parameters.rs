//! Resolves the timing parameters of a core from its machine file, with a documented default for each missing one. The
//! topology crate checks the machine file as a whole.

use longma_topology::parts::{self, Operation};

use crate::{
    branch::{Direction, IndirectTargets},
    calendar::QUEUES,
    measured,
    model_error::ModelError,
};

/// Four instructions per cycle: the width of all but one of the cores whose machine file states a width.
const DEFAULT_WIDTH: u32 = 4;
/// Estimate: between Nehalem's 128 and Zen 3's 256 entries (Fog, The microarchitecture of Intel, AMD and VIA CPUs,
/// 2023).
const DEFAULT_ROB_ENTRIES: u32 = 192;
/// Estimate: cores of the last two decades have 0.25 to 0.45 load queue entries per reorder buffer entry (Sandy Bridge
/// 64 of 168, Zen 72 of 192, GS464EV 64 of 128).
const LOAD_QUEUE_OF_ROB: (u32, u32) = (3, 8);
/// Estimate, as above: Sandy Bridge 36 of 168, Zen 44 of 192, GS464EV 48 of 128.
const STORE_QUEUE_OF_ROB: (u32, u32) = (1, 4);
/// Estimate: 12 to 20 cycles on cores since 2010 (Fog, 2023).
const DEFAULT_MISPREDICT_CYCLES: u64 = 15;
/// Predictor of a core whose machine file names none: the kind of most cores since about 2015.
const DEFAULT_PREDICTOR: parts::Predictor = parts::Predictor::Tage;
/// Estimate: an in-order core's store buffer (Cortex-A53 has about this many).
const DEFAULT_IN_ORDER_STORES: u32 = 8;
/// Estimate: loads in flight of an in-order core before it stalls, bounded by its few miss registers (Cortex-A53: 3 to
/// 8).
const DEFAULT_IN_ORDER_LOADS: u32 = 8;
/// Units of a core whose machine file lists none: four integer units, two vector units and two memory units, as in most
/// four-issue cores.
const DEFAULT_UNITS: [(u32, &[Operation]); 3] = [
    (4, &[Operation::Integer, Operation::IntegerMultiply, Operation::IntegerDivide, Operation::Branch]),
    (
        2,
        &[
            Operation::FloatAdd,
            Operation::FloatMultiply,
            Operation::FloatFma,
            Operation::FloatDivide,
            Operation::FloatConvert,
            Operation::VectorInteger,
            Operation::VectorFloat,
        ],
    ),
    (2, &[Operation::Load, Operation::Store]),
];
/// Maximum number of units, the width of the calendar's mask.
const MAX_UNITS: u32 = 32;
/// Maximum pipeline depth or latency in a machine file. Larger values are assumed to be mistakes.
const MAX_CYCLES: u64 = 10_000;
/// Maximum number of queue entries, for the same reason.
const MAX_ENTRIES: u32 = 1 << 16;
/// Maximum width of a core.
const MAX_WIDTH: u32 = 64;

/// Default latency and interval of each class of operations: typical of cores since 2010 (Fog, Instruction tables,
/// 2023: Sandy Bridge to Zen 3).
const DEFAULT_TIMING: [(Operation, u64, u64); 13] = [
    (Operation::Integer, 1, 1),
    (Operation::IntegerMultiply, 3, 1),
    (Operation::IntegerDivide, 20, 12),
    (Operation::Branch, 1, 1),
    (Operation::Load, 4, 1),
    (Operation::Store, 1, 1),
    (Operation::FloatAdd, 4, 1),
    (Operation::FloatMultiply, 4, 1),
    (Operation::FloatFma, 5, 1),
    (Operation::FloatDivide, 14, 8),
    (Operation::FloatConvert, 4, 1),
    (Operation::VectorInteger, 1, 1),
    (Operation::VectorFloat, 4, 1),
];

/// Timing and units of a class of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassTiming {
    /// Cycles from issue to the issue of a dependent operation.
    pub latency_cycles: u32,
    /// Cycles between two operations on one unit.
    pub interval_cycles: u32,
    /// Units that execute it, one bit each.
    pub units: u32,
    /// Its issue queue: 0 integer, 1 floating point, 2 memory.
    pub queue: u8,
    /// Width of the widest of its units, bits; 0 if unknown.
    pub width_bits: u32,
}

impl ClassTiming {
    /// Number of passes through a unit for an operation on `bits` bits.
    pub fn passes(&self, bits: u32) -> u32 {
        if self.width_bits == 0 { 1 } else { bits.div_ceil(self.width_bits).max(1) }
    }
}

/// Every parameter of a core's timing, resolved.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub fetch_width: u64,
    pub dispatch_width: u64,
    pub issue_width: u8,
    pub retire_width: u64,
    pub rob_entries: u32,
    /// Maximum number of instructions that an in-order core has issued but not completed: the reorder buffer, which an
    /// in-order core has only if its machine file states one.
    pub completion_entries: u32,
    /// Entries of the issue queues; `u32::MAX` if only the reorder buffer limits them.
    pub issue_queue_entries: [u32; QUEUES],
    /// Maximum number of loads in flight.
    pub load_entries: u32,
    /// Maximum number of stores in flight.
    pub store_entries: u32,
    /// Whether loads and stores share `load_entries`.
    pub joint_load_store_queue: bool,
    /// Registers of each file in addition to the 32 architectural ones.
    pub rename_registers: [u32; 2],
    /// Penalty of a misprediction: from the fetch of a wrong-path instruction to the fetch of the right one.
    pub mispredict_cycles: u64,
    pub btb_entries: u32,
    pub ras_entries: u32,
    pub classes: [ClassTiming; Operation::WORDS.len()],
    /// Measured timing by instruction, if the machine file names a table.
    pub measured: Option<Vec<Option<measured::Measurement>>>,
}

impl Parameters {
    /// Resolves the parameters of `core`.
    ///
    /// # Errors
    /// If no unit executes a class of operations, or if a value is out of range.
    pub fn resolve(core: &parts::Core) -> Result<Self, ModelError> {
        let width = core.decode_width.or(core.retire_width).or(core.fetch_width).unwrap_or(DEFAULT_WIDTH);
        let rob_entries = core.rob_entries.unwrap_or(DEFAULT_ROB_ENTRIES);
        let of_rob = |(part, whole): (u32, u32)| (rob_entries.saturating_mul(part) / whole).max(1);
        let joint = core
            .memory_queue_entries
            .filter(|_| core.load_queue_entries.is_none() && core.store_queue_entries.is_none());
        let (loads, stores) = if core.out_of_order {
            (of_rob(LOAD_QUEUE_OF_ROB), of_rob(STORE_QUEUE_OF_ROB))
        } else {
            (DEFAULT_IN_ORDER_LOADS, DEFAULT_IN_ORDER_STORES)
        };
        let (classes, units) = classes(core)?;
        let branch = core.branch.as_ref();
        let resolved = Self {
            fetch_width: narrow("fetch_width", core.fetch_width.unwrap_or(width))?.into(),
            dispatch_width: narrow("decode_width", width)?.into(),
            issue_width: narrow("issue_width", core.issue_width.unwrap_or(units).min(units))?,
            retire_width: narrow("retire_width", core.retire_width.unwrap_or(width))?.into(),
            rob_entries: entries("rob_entries", Some(rob_entries), rob_entries)?,
            completion_entries: if core.out_of_order {
                rob_entries
            } else {
                core.rob_entries.unwrap_or(u32::MAX)
            }
            .max(1),
            issue_queue_entries: issue_queues(core, joint.is_some()),
            load_entries: entries("load_queue_entries", core.load_queue_entries.or(joint), loads)?,
            store_entries: entries("store_queue_entries", core.store_queue_entries.or(joint), stores)?,
            joint_load_store_queue: joint.is_some(),
            rename_registers: [
                rename(core.int_registers, rob_entries),
                rename(core.fp_registers, rob_entries),
            ],
            mispredict_cycles: mispredict_cycles(core)?,
            btb_entries: entries("btb_entries", branch.and_then(|b| b.btb_entries), 4096)?,
            ras_entries: entries("ras_entries", branch.and_then(|b| b.ras_entries), 16)?,
            classes,
            measured: core.instruction_timing.map(measured::table),
        };
        Ok(resolved)
    }

    /// Timing of a class.
    pub fn class(&self, operation: Operation) -> ClassTiming {
        self.classes[operation as usize]
    }
}

fn narrow(key: &'static str, width: u32) -> Result<u8, ModelError> {
    match width {
        1..=MAX_WIDTH => Ok(width as u8),
        _ => Err(ModelError::OutOfRange { key, value: width.into(), max: MAX_WIDTH.into() }),
    }
}

fn entries(key: &'static str, stated: Option<u32>, default: u32) -> Result<u32, ModelError> {
    match stated.unwrap_or(default) {
        value @ 1..=MAX_ENTRIES => Ok(value),
        value => Err(ModelError::OutOfRange { key, value: value.into(), max: MAX_ENTRIES.into() }),
    }
}

/// The direction predictor of `core`.
///
/// # Errors
/// Same as [`Direction::new`].
pub(crate) fn direction(core: &parts::Core) -> Result<Direction, ModelError> {
    let branch = core.branch.as_ref();
    Direction::new(
        branch.map_or(DEFAULT_PREDICTOR, |b| b.predictor),
        branch.and_then(|b| b.predictor_module.as_ref()),
        branch.and_then(|b| b.table_entries),
        branch.and_then(|b| b.history_bits),
    )
}

/// The predictor of indirect targets of `core`.
///
/// # Errors
/// Same as [`IndirectTargets::new`].
pub(crate) fn indirect(core: &parts::Core) -> Result<IndirectTargets, ModelError> {
    let branch = core.branch.as_ref();
    IndirectTargets::new(
        branch.map_or(parts::IndirectPredictor::TargetCache, |b| b.indirect),
        branch.and_then(|b| b.indirect_module.as_ref()),
        branch.and_then(|b| b.indirect_entries),
        branch.and_then(|b| b.indirect_history),
    )
}

/// Number of rename registers: those in addition to the architectural ones, or, if the machine file states none, as
/// many as the reorder buffer has entries.
fn rename(registers: Option<u32>, rob_entries: u32) -> u32 {
    registers.map_or(rob_entries, |n| n.saturating_sub(32).max(1))
}

/// Sizes of the issue queues for integer operations, floating point and memory. A queue that the machine file does not
/// name is unlimited: only the reorder buffer limits the operations that wait in it. If the file names the integer
/// queue, [`classes`] sends the operations of an unnamed one there instead.
fn issue_queues(core: &parts::Core, joint: bool) -> [u32; QUEUES] {
    let memory = if joint { None } else { core.memory_queue_entries };
    [core.int_queue_entries, core.fp_queue_entries, memory].map(|n| n.unwrap_or(u32::MAX).max(1))
}

fn mispredict_cycles(core: &parts::Core) -> Result<u64, ModelError> {
    let stated = core.branch.as_ref().and_then(|b| b.mispredict);
    bounded("mispredict", stated.map_or(DEFAULT_MISPREDICT_CYCLES, |latency| latency.cycles(core.clock)))
}

fn bounded(key: &'static str, cycles: u64) -> Result<u64, ModelError> {
    if cycles > MAX_CYCLES {
        return Err(ModelError::OutOfRange { key, value: cycles, max: MAX_CYCLES });
    }
    Ok(cycles)
}

/// The timing and units of every class, and the total number of units.
fn classes(core: &parts::Core) -> Result<([ClassTiming; Operation::WORDS.len()], u32), ModelError> {
    let mut classes = [ClassTiming::default(); Operation::WORDS.len()];
    let mut first = 0u32;
    let vector = core.vector_width.map_or(0, |width| width.bits().min(u32::MAX.into()) as u32);
    let mut group = |count: u32, operations: &[Operation], width: u32| {
        let end = first.saturating_add(count);
        if count == 0 || end > MAX_UNITS {
            return Err(ModelError::OutOfRange { key: "units", value: end.into(), max: MAX_UNITS.into() });
        }
        let mask = (((1u64 << count) - 1) << first) as u32;
        for class in operations.iter().map(|o| *o as usize) {
            classes[class].units |= mask;
            classes[class].width_bits = classes[class].width_bits.max(width);
        }
        first = end;
        Ok(())
    };
    if core.units.is_empty() {
        let widest = core.decode_width.unwrap_or(DEFAULT_WIDTH).clamp(1, MAX_UNITS / 2);
        for (count, operations) in DEFAULT_UNITS {
            group(count.min(widest), operations, vector)?;
        }
    }
    for unit in &core.units {
        let width = unit.width.map_or(vector, |width| width.bits().min(u32::MAX.into()) as u32);
        // A unit is no wider than a register.
        group(unit.count, &unit.operations, if vector == 0 { width } else { width.min(vector) })?;
    }
    for (operation, latency, interval) in DEFAULT_TIMING {
        let class = &mut classes[operation as usize];
        if class.units == 0 {
            return Err(ModelError::NoUnit { operation: operation.word() });
        }
        let stated = core.operations.get(operation.word());
        class.latency_cycles = bounded("latency", stated.map_or(latency, |t| t.latency.count()))? as u32;
        class.interval_cycles =
            bounded("interval", stated.map_or(interval, |t| t.interval.count()))?.max(1) as u32;
        class.queue = match operation {
            Operation::Load | Operation::Store => 2,
            Operation::Integer
            | Operation::IntegerMultiply
            | Operation::IntegerDivide
            | Operation::Branch => 0,
            _ => 1,
        };
    }
    if core.fp_queue_entries.is_none() && core.int_queue_entries.is_some() {
        classes.iter_mut().filter(|c| c.queue == 1).for_each(|c| c.queue = 0);
    }
    if core.memory_queue_entries.is_none() && core.int_queue_entries.is_some() {
        classes.iter_mut().filter(|c| c.queue == 2).for_each(|c| c.queue = 0);
    }
    Ok((classes, first))
}
