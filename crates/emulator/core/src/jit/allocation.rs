//! Register allocation: chooses the guest registers that are in host registers throughout one region. One mapping holds
//! for the whole region, so that the location of each guest register is known at every instruction.

use serde::{Deserialize, Serialize};

use longma_loongarch::{Class, Instruction, Operand, RegisterKind};

use super::{
    region::Region,
    registers::{CANONICAL, GENERAL_HOSTS, VECTOR_HOSTS},
};
use crate::block::End;

/// The width in which a region moves vector registers between host registers and memory.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VectorWidth {
    /// Scalar floating point only: the low 64 bits.
    Scalar,
    /// LSX: 128 bits.
    Lsx,
    /// LASX: 256 bits.
    Lasx,
}

/// The register mapping of one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Allocation {
    /// The guest register in each of [`GENERAL_HOSTS`].
    pub general: [u8; GENERAL_HOSTS.len()],
    /// The inverse of `general`: indices of [`GENERAL_HOSTS`].
    pub general_host: [Option<u8>; 32],
    /// A bit set of guest general registers that the region writes.
    pub general_written: u32,
    /// The guest register in each of [`VECTOR_HOSTS`], if the host register is used.
    pub vector: [Option<u8>; VECTOR_HOSTS.len()],
    /// The inverse of `vector`.
    pub vector_host: [Option<u8>; 32],
    /// A bit set of guest vector registers that the region writes.
    pub vector_written: u32,
    /// The vector width that the region uses.
    pub vector_width: VectorWidth,
}

/// The register operands of an instruction: `(kind, number, written)`.
pub(crate) fn registers_of(instruction: &Instruction) -> impl Iterator<Item = (RegisterKind, u8, bool)> + '_ {
    let row = instruction.op.row();
    let writes_first = match row.class {
        Class::Store | Class::Branch | Class::Prefetch | Class::Barrier => is_store_conditional(instruction),
        _ => true,
    };
    let mut first = true;
    row.operands.iter().filter_map(move |operand| match operand {
        Operand::Register(kind, position) => {
            let written = first && writes_first;
            first = false;
            Some((*kind, instruction.register_at(*position), written))
        }
        Operand::Immediate(_) => {
            first = false;
            None
        }
    })
}

fn is_store_conditional(instruction: &Instruction) -> bool {
    use longma_loongarch::Op::*;
    matches!(instruction.op, ScW | ScD | ScQ | ScrelW | ScrelD)
}

impl Allocation {
    /// Whether the mapping and its inverse are consistent and in range. Used to validate imported regions.
    pub fn is_sound(&self) -> bool {
        let is_at = |hosts: &[Option<u8>; 32], guest: u8, index: usize| {
            hosts.get(usize::from(guest)) == Some(&Some(index as u8))
        };
        let general = self.general.iter().enumerate();
        let vector = self.vector.iter().enumerate();
        general.into_iter().all(|(index, guest)| is_at(&self.general_host, *guest, index))
            && vector
                .into_iter()
                .all(|(index, guest)| guest.is_none_or(|guest| is_at(&self.vector_host, guest, index)))
    }

    /// Leaves all vector registers in memory.
    pub fn spill_vectors(&mut self) {
        (self.vector, self.vector_host, self.vector_written) = ([None; VECTOR_HOSTS.len()], [None; 32], 0);
    }

    /// Assigns host registers to the guest registers that the region uses most.
    pub fn choose(region: &Region) -> Self {
        let usage = Usage::count(region);
        let general = choose_general(&usage);
        let mut general_host = [None; 32];
        for (index, guest) in general.into_iter().enumerate() {
            general_host[usize::from(guest)] = Some(index as u8);
        }
        let mut busiest: Vec<u8> = (0..32).filter(|&n| usage.vector[usize::from(n)] > 0).collect();
        busiest.sort_by_key(|&n| std::cmp::Reverse(usage.vector[usize::from(n)]));
        let (mut vector, mut vector_host) = ([None; VECTOR_HOSTS.len()], [None; 32]);
        for (index, guest) in busiest.into_iter().take(VECTOR_HOSTS.len()).enumerate() {
            vector[index] = Some(guest);
            vector_host[usize::from(guest)] = Some(index as u8);
        }
        Self {
            general,
            general_host,
            general_written: usage.general_written,
            vector,
            vector_host,
            vector_written: usage.vector_written,
            vector_width: usage.vector_width,
        }
    }
}

/// Estimated number of uses of each register during execution.
struct Usage {
    general: [u64; 32],
    general_written: u32,
    vector: [u64; 32],
    vector_written: u32,
    vector_width: VectorWidth,
    /// How often the region is entered and left.
    crossings: u64,
}

impl Usage {
    fn count(region: &Region) -> Self {
        let mut usage = Self {
            general: [0; 32],
            general_written: 0,
            vector: [0; 32],
            vector_written: 0,
            vector_width: VectorWidth::Scalar,
            crossings: 1,
        };
        for block in &region.blocks {
            let weight = block.weight;
            if matches!(block.end, End::Call { .. } | End::IndirectCall { .. }) {
                // A call writes the link register, which is not an operand of `bl`.
                usage.record_use(RegisterKind::General, 1, true, weight);
            }
            usage.crossings += match block.end {
                End::Call { .. } | End::IndirectCall { .. } => 2 * weight,
                End::Return | End::Indirect => 2 * weight,
                End::Leave { .. } => weight,
                _ => 0,
            };
            for instruction in &block.instructions {
                for (kind, number, written) in registers_of(instruction) {
                    usage.record_use(kind, number, written, weight);
                }
            }
        }
        usage
    }

    fn record_use(&mut self, kind: RegisterKind, number: u8, written: bool, weight: u64) {
        let bit = u32::from(written) << number;
        match kind {
            RegisterKind::General => {
                self.general[usize::from(number)] += weight;
                self.general_written |= bit & !1;
            }
            RegisterKind::Float | RegisterKind::Vector128 | RegisterKind::Vector256 => {
                self.vector[usize::from(number)] += weight;
                self.vector_written |= bit;
                self.vector_width = self.vector_width.max(match kind {
                    RegisterKind::Vector256 => VectorWidth::Lasx,
                    RegisterKind::Vector128 => VectorWidth::Lsx,
                    _ => VectorWidth::Scalar,
                });
            }
            _ => {}
        }
    }
}

/// Starts from the canonical mapping. Replaces the least used registers with busier ones while this saves more memory
/// accesses than the loads and stores at the region's edges cost.
fn choose_general(usage: &Usage) -> [u8; GENERAL_HOSTS.len()] {
    let mut chosen = CANONICAL;
    let mut candidates: Vec<u8> =
        (1..32).filter(|n| !CANONICAL.contains(n) && usage.general[usize::from(*n)] > 0).collect();
    candidates.sort_by_key(|&n| std::cmp::Reverse(usage.general[usize::from(n)]));
    for candidate in candidates {
        let gain = usage.general[usize::from(candidate)];
        let (slot, _) = chosen
            .iter()
            .enumerate()
            .filter(|(slot, guest)| **guest == CANONICAL[*slot])
            .min_by_key(|(_, guest)| usage.general[usize::from(**guest)])
            .unwrap_or((usize::MAX, &0));
        if slot == usize::MAX {
            break;
        }
        let loss = usage.general[usize::from(chosen[slot])];
        if gain <= loss + 2 * usage.crossings {
            break;
        }
        chosen[slot] = candidate;
    }
    chosen
}
