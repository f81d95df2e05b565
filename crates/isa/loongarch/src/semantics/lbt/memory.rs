//! Unaligned loads and stores in two halves, as MIPS has them.
//! Not needed for LoongArch's own unaligned accesses, which the ordinary loads and stores do.
//! Source: MIPS64 Architecture, volume II (LWL, LWR, LDL, LDR, SWL, SWR, SDL, SDR), little endian. Loongson has published no text;
//! what is known is that they are MIPS's, that the size accessed depends on the alignment, and that the word forms give a
//! sign-extended word (lat-opensource/lat, its IR's range analysis).

use crate::{Environment, Fault, Instruction, Op, State, Trap, semantics::Semantics};

/// What a left or right access touches: `bytes` bytes of memory from `address`, which are the register's bytes from number
/// `shift` up.
struct Part {
    address: u64,
    bytes: u32,
    shift: u32,
}

impl Part {
    /// The bytes of the aligned unit of `size` bytes up to and with `address`: the register's high bytes.
    fn left(address: u64, size: u32) -> Self {
        let offset = address as u32 & (size - 1);
        Self { address: address - u64::from(offset), bytes: offset + 1, shift: size - 1 - offset }
    }

    /// The bytes of the aligned unit of `size` bytes from `address` on: the register's low bytes.
    fn right(address: u64, size: u32) -> Self {
        Self { address, bytes: size - (address as u32 & (size - 1)), shift: 0 }
    }

    /// The register bits that take part.
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
    // All bytes lie in one aligned unit and so in one page: if the first is permitted, all are, and a refused access has
    // stored nothing.
    for byte in 0..part.bytes {
        let stored = environment.store(part.address + u64::from(byte), (value >> (8 * byte)) as u8);
        stored.map_err(|fault| Fault { address, ..fault })?;
    }
    Ok(())
}

/// The semantics of `op`, or `None` if it is not of this file.
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
