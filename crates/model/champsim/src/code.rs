//! The code of a trace, found in a first pass: the type of the instruction at each address, and the location of its
//! LoongArch instructions.

use std::collections::BTreeMap;

use longma_loongarch::{Instruction as Decoded, Op};

use crate::{
    file::ReadError,
    instruction::{BranchKind, FLAGS, INSTRUCTION_POINTER, Instruction, STACK_POINTER},
};

/// The maximum number of different instruction addresses of a trace.
pub const MAX_SITES: usize = 4 << 20;

/// Where the first instruction is placed.
const BASE: u64 = 0x1_0000;
/// Maximum length of an x86-64 instruction, bytes. If two addresses are further apart, the code in between was not
/// executed.
const MAX_INSTRUCTION_BYTES: u64 = 15;
/// Longer gaps in the code are shortened to this.
const MAX_GAP_BYTES: u64 = 1 << 20;
/// The register that represents all unmapped registers.
const SPARE: u8 = 21;

/// A trace whose code cannot be placed.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There are too many different addresses.
    #[error("the trace has more than {MAX_SITES} different instruction addresses")]
    TooLarge,
    /// No instruction is known.
    #[error("the trace has no instruction")]
    Empty,
}

/// The properties of the instruction at an address, collected from all its executions.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    sources: [u8; 4],
    destinations: [u8; 2],
    /// The largest numbers of loads and stores of an execution.
    pub loads: u8,
    pub stores: u8,
    pub branch: Option<BranchKind>,
    /// Where the branch led when it was first taken.
    target: Option<u64>,
    /// The address of its first LoongArch instruction.
    pub address: u64,
}

impl Site {
    /// The number of its LoongArch instructions.
    pub fn length(&self) -> usize {
        let accesses = usize::from(self.loads) + usize::from(self.stores);
        accesses + usize::from(self.branch.is_some() || accesses == 0)
    }
}

/// The code of a trace.
pub struct Code {
    sites: BTreeMap<u64, Site>,
    instructions: u64,
}

impl Code {
    /// Reads a whole trace and assigns addresses to its code.
    ///
    /// # Errors
    /// The trace cannot be read, is empty or has more than [`MAX_SITES`] addresses.
    pub fn of(trace: impl Iterator<Item = Result<Instruction, ReadError>>) -> Result<Self, CodeError> {
        let mut code = Self { sites: BTreeMap::new(), instructions: 0 };
        let mut taken: Option<u64> = None;
        for instruction in trace {
            let instruction = instruction?;
            if let Some(branch) = taken.take()
                && let Some(site) = code.sites.get_mut(&branch)
            {
                site.target.get_or_insert(instruction.ip);
            }
            code.note(&instruction)?;
            taken = (instruction.is_branch && instruction.is_taken).then_some(instruction.ip);
        }
        if code.sites.is_empty() {
            return Err(CodeError::Empty);
        }
        code.assign_addresses();
        Ok(code)
    }

    /// The number of instructions of the trace.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    fn note(&mut self, instruction: &Instruction) -> Result<(), CodeError> {
        self.instructions += 1;
        if self.sites.len() >= MAX_SITES && !self.sites.contains_key(&instruction.ip) {
            return Err(CodeError::TooLarge);
        }
        let used = |addresses: &[u64]| addresses.iter().filter(|address| **address != 0).count() as u8;
        let (loads, stores) = (used(&instruction.loads), used(&instruction.stores));
        let site = self.sites.entry(instruction.ip).or_insert_with(|| Site {
            sources: instruction.sources,
            destinations: instruction.destinations,
            loads,
            stores,
            branch: instruction.is_branch.then(|| instruction.branch_kind().unwrap_or(BranchKind::Other)),
            target: None,
            address: 0,
        });
        site.loads = site.loads.max(loads);
        site.stores = site.stores.max(stores);
        Ok(())
    }

    /// Assigns an address to each site: in the order of the trace's addresses, and without gaps where one instruction
    /// may follow another.
    fn assign_addresses(&mut self) {
        let (mut next, mut before) = (BASE, None::<u64>);
        for (&ip, site) in &mut self.sites {
            let gap = before.map_or(0, |before| ip - before);
            if gap > MAX_INSTRUCTION_BYTES {
                // The distance since the last site, which includes the site's own instructions.
                next += gap.min(MAX_GAP_BYTES) / 4 * 4;
            }
            site.address = next;
            next += 4 * site.length() as u64;
            before = Some(ip);
        }
    }

    pub(crate) fn site(&self, ip: u64) -> Option<&Site> {
        self.sites.get(&ip)
    }

    /// The LoongArch instructions of a site.
    pub(crate) fn instructions_of(&self, site: &Site, to: &mut Vec<Decoded>) {
        let sources: Vec<u8> = site.sources.iter().copied().filter(is_data).map(register).collect();
        let source = |nth: usize| sources.get(nth).copied().unwrap_or(0);
        let destination = site.destinations.iter().copied().find(is_data).map_or(0, register);
        let loaded = if site.branch.is_some() || site.stores > 0 { SPARE } else { destination };
        for _ in 0..site.loads {
            to.push(Decoded { d: loaded, j: source(0), ..Decoded::new(Op::LdD) });
        }
        let stored = match (site.loads, sources.last()) {
            (0, Some(last)) => *last,
            (0, None) => 0,
            _ => SPARE,
        };
        for _ in 0..site.stores {
            to.push(Decoded { d: stored, j: source(0), ..Decoded::new(Op::StD) });
        }
        if let Some(kind) = site.branch {
            let address = site.address + 4 * (site.length() as u64 - 1);
            let target =
                site.target.and_then(|ip| self.site(ip)).map_or(address + 4, |target| target.address);
            // If the target is more than 2 GiB away, the branch gets a different one and is treated as an interruption.
            let imm = i32::try_from(target.wrapping_sub(address) as i64).unwrap_or(i32::MAX);
            let reads = if site.loads > 0 { SPARE } else { source(0) };
            to.push(branch(kind, (reads, source(1)), imm));
        } else if site.loads + site.stores == 0 {
            to.push(Decoded { d: destination, j: source(0), k: source(1), ..Decoded::new(Op::AddD) });
        }
    }
}

fn branch(kind: BranchKind, (j, d): (u8, u8), imm: i32) -> Decoded {
    let indirect = |d, j| Decoded { d, j, ..Decoded::new(Op::Jirl) };
    // A jump through r1 would be a return.
    let through = if j == 1 { SPARE } else { j };
    match kind {
        BranchKind::Direct => Decoded { imm, ..Decoded::new(Op::B) },
        BranchKind::DirectCall => Decoded { imm, ..Decoded::new(Op::Bl) },
        BranchKind::Conditional => Decoded { j, d, imm, ..Decoded::new(Op::Beq) },
        BranchKind::IndirectCall => indirect(1, through),
        BranchKind::Return => indirect(0, 1),
        BranchKind::Indirect | BranchKind::Other => indirect(0, through),
    }
}

/// Whether a number is that of a data register: neither 0 (no register) nor the instruction pointer.
fn is_data(register: &u8) -> bool {
    ![0, INSTRUCTION_POINTER].contains(register)
}

/// The LoongArch register for one of ChampSim's: r3 for the stack pointer, r4 to r31 without r21 for others.
fn register(number: u8) -> u8 {
    match number {
        STACK_POINTER => 3,
        FLAGS => 31,
        other => match 4 + other % 27 {
            SPARE => 31,
            register => register,
        },
    }
}
