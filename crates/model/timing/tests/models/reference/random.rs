//! Random programs and random cores.

use longma_loongarch::Instruction;
use longma_memory::translation::Side;
use longma_trace::BlockNumber;
use proptest::prelude::*;

use super::{
    Access, BRANCH, Executed, File, Loads, MACHINE_UNITS, OPERATIONS, PIPELINED, Sizes, memory::Translated,
};
use crate::program::{Program, core, op, units_of_the_file};

/// Address of the first block.
const START: u64 = 0x1_0000;

/// An operation with its registers and its address.
type RandomInstruction = (usize, u8, u8, u8, u64);

/// Blocks, the branch targets of some of them, and the outcome of each executed branch.
#[derive(Clone, Debug)]
pub struct Shape {
    pub blocks: Vec<(Vec<RandomInstruction>, Option<usize>)>,
    pub ways: Vec<bool>,
    /// Cost of the first access to a page, cycles.
    pub refill_cycles: u64,
}

/// Programs of the first `operations` operations of `OPERATIONS`.
pub fn shapes(operations: usize) -> impl Strategy<Value = Shape> {
    // The addresses are few and overlap. Lines differ in latency, and some stores share a list in the store table.
    // Accesses across two lines occupy their unit for two cycles, so they occur only together with operations that are
    // not pipelined.
    let ends: u64 = if operations > PIPELINED { 16 } else { 6 };
    let part = prop_oneof![6 => 0u64..6, 1 => ends - 4..ends];
    let address = (0u64..4, 0u64..3, part)
        .prop_map(|(line, place, part)| 0x10_0000 + 64 * line + 2048 * place + 4 * part);
    let step = (0..operations, 4u8..8, 4u8..8, 4u8..8, address);
    let block = (prop::collection::vec(step, 0..24), prop::option::of(any::<prop::sample::Index>()));
    let refill_cycles = prop_oneof![2 => Just(0u64), 1 => 1u64..30, 1 => 30u64..200];
    (prop::collection::vec(block, 1..6), prop::collection::vec(any::<bool>(), 0..14), refill_cycles).prop_map(
        |(blocks, ways, refill_cycles)| {
            let count = blocks.len();
            let target = |(nth, target): (usize, Option<prop::sample::Index>)| {
                target.map(|target| target.index(count)).filter(|target| *target != nth + 1)
            };
            let numbered = blocks.into_iter().enumerate().map(|(nth, (steps, to))| {
                let target = target((nth, to));
                // A block has at least one instruction.
                let steps = if steps.is_empty() && target.is_none() { vec![(0, 4, 4, 4, 0)] } else { steps };
                (steps, target)
            });
            Shape { blocks: numbered.collect(), ways, refill_cycles }
        },
    )
}

/// Cores with sizes from tiny to huge.
pub fn sizes() -> impl Strategy<Value = Sizes> {
    let entries = || prop_oneof![1u64..6, 6u64..64, Just(2048)];
    let queues = prop::option::of([1u64..24, 1u64..24, 1u64..24]);
    (
        [1u64..9, 1u64..7, 1u64..8, 1u64..7],
        [entries(), entries(), entries()],
        [entries(), entries()],
        queues,
        (
            2u64..20,
            prop_oneof![1 => Just(4u64), 1 => 1u64..20],
            prop_oneof![2 => Just(Loads::Ideal), 1 => Just(Loads::Conservative), 1 => Just(Loads::Blind)],
        ),
    )
        .prop_map(
            |(
                [fetch, decode, issue, retire],
                [rob, loads, stores],
                [int, fp],
                queues,
                (mispredict, load_latency, pass),
            )| Sizes {
                fetch_width: fetch,
                decode_width: decode,
                issue_width: issue,
                retire_width: retire,
                rob_entries: rob,
                load_queue_entries: loads,
                store_queue_entries: stores,
                int_registers: 32 + int,
                fp_registers: 32 + fp,
                issue_queue_entries: queues.unwrap_or([u64::MAX; 3]),
                mispredict,
                load_latency,
                loads: pass,
            },
        )
}

impl Sizes {
    /// The core with these sizes, built from a machine file.
    pub fn core(&self) -> longma_topology::parts::Core {
        let queues = match self.issue_queue_entries {
            [u64::MAX, ..] => String::new(),
            [int, fp, memory] => format!(
                "int_queue_entries = {int}\nfp_queue_entries = {fp}\nmemory_queue_entries = {memory}\n"
            ),
        };
        let units = units_of_the_file();
        let changes = [
            ("fetch_width = 8", format!("fetch_width = {}", self.fetch_width)),
            ("decode_width = 4", format!("decode_width = {}", self.decode_width)),
            ("issue_width = 8", format!("issue_width = {}", self.issue_width)),
            ("retire_width = 4", format!("retire_width = {}", self.retire_width)),
            ("rob_entries = 128", format!("rob_entries = {}", self.rob_entries)),
            ("load_queue_entries = 64", format!("load_queue_entries = {}", self.load_queue_entries)),
            ("store_queue_entries = 48", format!("store_queue_entries = {}", self.store_queue_entries)),
            ("int_registers = 128", format!("int_registers = {}", self.int_registers)),
            ("fp_registers = 128", format!("fp_registers = {}", self.fp_registers)),
            ("instruction_timing = \"la464\"\n", queues),
            ("predictor = \"tage\"", "predictor = \"static\"".to_owned()),
            ("loads = \"ideal\"", format!("loads = \"{:?}\"", self.loads).to_lowercase()),
            (
                "load = { latency = \"4 cycles\"",
                format!("load = {{ latency = \"{} cycles\"", self.load_latency),
            ),
            ("mispredict = \"12 cycles\"", format!("mispredict = \"{} cycles\"", self.mispredict)),
        ];
        let changes = changes.iter().map(|(from, to)| (*from, to.as_str()));
        core(&changes.chain([(units.as_str(), MACHINE_UNITS.trim())]).collect::<Vec<_>>())
    }
}

impl Shape {
    /// The executed instructions, and the same program for the models.
    pub fn run(&self) -> (Vec<Executed>, Program) {
        let length = |(steps, target): &(Vec<RandomInstruction>, Option<usize>)| {
            (steps.len() + usize::from(target.is_some())) as u64
        };
        let starts: Vec<u64> = self
            .blocks
            .iter()
            .scan(START, |start, block| {
                let this = *start;
                *start += 4 * length(block);
                Some(this)
            })
            .collect();
        let mut program = Program::default();
        for (number, (steps, target)) in self.blocks.iter().enumerate() {
            let mut instructions: Vec<Instruction> = steps.iter().map(instruction).collect();
            let branch = |to: &usize| Instruction {
                imm: (starts[*to] as i64 - (starts[number] + 4 * steps.len() as u64) as i64) as i32,
                ..op(BRANCH.op, 4, 5, 0)
            };
            instructions.extend(target.iter().map(branch));
            program.block_at(starts[number], &instructions);
        }
        let (mut executed, mut ways, mut next) = (Vec::<Executed>::new(), self.ways.iter(), 0);
        while let Some((steps, target)) = self.blocks.get(next) {
            let begin = executed.len();
            executed.extend((0..).zip(steps).map(|(number, step)| execute(step, starts[next] + 4 * number)));
            let way = target.map(|target| ways.next().map(|taken| (target, *taken)));
            // The program ends at a branch without a given outcome.
            let taken = way.flatten().filter(|(_, taken)| *taken);
            if let Some(target) = target {
                executed.push(Executed {
                    operation: &BRANCH,
                    pc: starts[next] + 4 * steps.len() as u64,
                    reads: [Some((File::Integer, 4)), Some((File::Integer, 5))],
                    writes: None,
                    address: 0,
                    begins_block: false,
                    branch: Some((starts[*target], taken.is_some())),
                    refill_fetch: 0,
                    refill_access: 0,
                });
            }
            executed[begin].begins_block = true;
            let addresses: Vec<u64> =
                steps.iter().filter(|step| OPERATIONS[step.0].bytes > 0).map(|step| step.4).collect();
            program.run(BlockNumber(next as u32), &addresses);
            if way == Some(None) {
                break;
            }
            next = taken.map_or(next + 1, |(target, _)| target);
        }
        let mut translated = Translated::new(self.refill_cycles);
        for instruction in &mut executed {
            instruction.refill_fetch = translated.refill(Side::Instruction, instruction.pc, 4);
            if instruction.operation.bytes > 0 {
                instruction.refill_access =
                    translated.refill(Side::Data, instruction.address, instruction.operation.bytes);
            }
        }
        (executed, program)
    }
}

fn instruction(&(index, d, j, k, _): &RandomInstruction) -> Instruction {
    match OPERATIONS[index].access {
        Access::Barrier => op(OPERATIONS[index].op, 0, 0, 0),
        Access::Load | Access::Store => op(OPERATIONS[index].op, d, j, 0),
        Access::Nothing | Access::Atomic | Access::AtomicBarrier => op(OPERATIONS[index].op, d, j, k),
    }
}

fn execute(&(index, d, j, k, address): &RandomInstruction, pc: u64) -> Executed {
    let operation = &OPERATIONS[index];
    let (own, integer) =
        (|register| Some((operation.file, register)), |register| Some((File::Integer, register)));
    let (reads, writes) = match operation.access {
        Access::Nothing | Access::Atomic | Access::AtomicBarrier => ([own(j), own(k)], own(d)),
        Access::Load => ([integer(j), None], own(d)),
        Access::Store => ([own(d), integer(j)], None),
        Access::Barrier => ([None; 2], None),
    };
    let address = if operation.bytes > 0 { address } else { 0 };
    let (refill_fetch, refill_access) = (0, 0);
    Executed {
        operation,
        pc,
        reads,
        writes,
        address,
        begins_block: false,
        branch: None,
        refill_fetch,
        refill_access,
    }
}
