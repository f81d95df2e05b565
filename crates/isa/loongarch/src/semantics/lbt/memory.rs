//! Unaligned loads and stores in two halves, as on MIPS. LoongArch's ordinary loads and stores also support unaligned
//! addresses. Source: MIPS64 Architecture, volume II (LWL, LWR, LDL, LDR, SWL, SWR, SDL, SDR), little endian. Loongson
//! has published no definition. According to the range analysis of the IR of lat-opensource/lat, the instructions are
//! those of MIPS, the access size depends on the alignment, and the word forms sign-extend.

use crate::{Environment, Fault, Instruction, Op, State, Trap, semantics::Semantics};

/// The part of memory that a left or right access touches: `bytes` bytes from `address`, which correspond to the
/// register's bytes from number `shift` upwards.
struct Part {
    address: u64,
    bytes: u32,
    shift: u32,
}

impl Part {
    /// The bytes of the aligned unit of `size` bytes up to and including `address`: the register's high bytes.
    fn left(address: u64, size: u32) -> Self {
        let offset = address as u32 & (size - 1);
        Self { address: address - u64::from(offset), bytes: offset + 1, shift: size - 1 - offset }
    }

    /// The bytes of the aligned unit of `size` bytes from `address` onwards: the register's low bytes.
    fn right(address: u64, size: u32) -> Self {
        Self { address, bytes: size - (address as u32 & (size - 1)), shift: 0 }
    }

    /// The register bits that are accessed.
    fn mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes) << (8 * self.shift)
    }
}

type PartOf = fn(u64, u32) -> Part;

fn address(state: &State, instruction: &Instruction) -> u64 {
    state.r(instruction.j).wrapping_add_signed(i64::from(instruction.imm))
}

fn load<E: Environment>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
    size: u32,
    part_of: PartOf,
) -> Result<(), Trap> {
    let address = address(state, instruction);
    let part = part_of(address, size);
    let mut memory = 0u64;
    for byte in 0..part.bytes {
        let loaded = environment.load::<u8>(part.address + u64::from(byte));
        let loaded = loaded.map_err(|fault| Fault { address, ..fault })?;
        memory |= u64::from(loaded) << (8 * (byte + part.shift));
    }
    let merged = state.r(instruction.d) & !part.mask() | memory;
    state.set_r(instruction.d, if size == 4 { merged as i32 as u64 } else { merged });
    Ok(())
}

fn store<E: Environment>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
    size: u32,
    part_of: PartOf,
) -> Result<(), Trap> {
    let address = address(state, instruction);
    let part = part_of(address, size);
    let value = state.r(instruction.d) >> (8 * part.shift);
    // All bytes are in one aligned unit and so in one page. If the first is permitted, all are, so a refused access
    // leaves memory unchanged.
    for byte in 0..part.bytes {
        let stored = environment.store(part.address + u64::from(byte), (value >> (8 * byte)) as u8);
        stored.map_err(|fault| Fault { address, ..fault })?;
    }
    Ok(())
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::LdlW => |s, i, e| load(s, i, e, 4, Part::left),
        Op::LdrW => |s, i, e| load(s, i, e, 4, Part::right),
        Op::LdlD => |s, i, e| load(s, i, e, 8, Part::left),
        Op::LdrD => |s, i, e| load(s, i, e, 8, Part::right),
        Op::StlW => |s, i, e| store(s, i, e, 4, Part::left),
        Op::StrW => |s, i, e| store(s, i, e, 4, Part::right),
        Op::StlD => |s, i, e| store(s, i, e, 8, Part::left),
        Op::StrD => |s, i, e| store(s, i, e, 8, Part::right),
        _ => return None,
    })
}
