//! Vector loads and stores. Source: the LSX and LASX definitions of the unofficial LoongArch intrinsics guide, tested
//! there on hardware.

use super::{half::splat, read_halves, write_halves};
use crate::{Access, Environment, Fault, Instruction, Op, Scalar, State, Trap, semantics::Semantics};

/// The semantics of `op`; `None` if it is not a vector load or store.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::Vld => |s, i, e| load::<E, 1>(s, i, e, immediate_address(s, i)),
        Op::Xvld => |s, i, e| load::<E, 2>(s, i, e, immediate_address(s, i)),
        Op::Vldx => |s, i, e| load::<E, 1>(s, i, e, indexed_address(s, i)),
        Op::Xvldx => |s, i, e| load::<E, 2>(s, i, e, indexed_address(s, i)),
        Op::Vst => |s, i, e| store_low(s, i, e, immediate_address(s, i)),
        Op::Xvst => |s, i, e| store_both(s, i, e, immediate_address(s, i)),
        Op::Vstx => |s, i, e| store_low(s, i, e, indexed_address(s, i)),
        Op::Xvstx => |s, i, e| store_both(s, i, e, indexed_address(s, i)),
        Op::VldreplB => load_replicated::<E, u8, 1>,
        Op::VldreplH => load_replicated::<E, u16, 1>,
        Op::VldreplW => load_replicated::<E, u32, 1>,
        Op::VldreplD => load_replicated::<E, u64, 1>,
        Op::XvldreplB => load_replicated::<E, u8, 2>,
        Op::XvldreplH => load_replicated::<E, u16, 2>,
        Op::XvldreplW => load_replicated::<E, u32, 2>,
        Op::XvldreplD => load_replicated::<E, u64, 2>,
        Op::VstelmB | Op::XvstelmB => store_lane::<E, u8>,
        Op::VstelmH | Op::XvstelmH => store_lane::<E, u16>,
        Op::VstelmW | Op::XvstelmW => store_lane::<E, u32>,
        Op::VstelmD | Op::XvstelmD => store_lane::<E, u64>,
        _ => return None,
    })
}

/// The smallest possible page. An access within one page cannot fail partway.
const PAGE_BYTES: u64 = 4096;
const HALF_BYTES: u64 = 16;

fn immediate_address(state: &State, instruction: &Instruction) -> u64 {
    state.r(instruction.j).wrapping_add_signed(instruction.imm.into())
}

fn indexed_address(state: &State, instruction: &Instruction) -> u64 {
    state.r(instruction.j).wrapping_add(state.r(instruction.k))
}

fn load<E: Environment, const HALVES: usize>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
    address: u64,
) -> Result<(), Trap> {
    let low = environment.load(address)?;
    let high = if HALVES == 2 { environment.load(address.wrapping_add(HALF_BYTES))? } else { 0 };
    write_halves::<HALVES>(state, instruction.d, [low, high]);
    Ok(())
}

fn store_low<E: Environment>(
    state: &State,
    instruction: &Instruction,
    environment: &E,
    address: u64,
) -> Result<(), Trap> {
    Ok(environment.store(address, read_halves(state, instruction.d)[0])?)
}

fn store_both<E: Environment>(
    state: &State,
    instruction: &Instruction,
    environment: &E,
    address: u64,
) -> Result<(), Trap> {
    let [low, high] = read_halves(state, instruction.d);
    let last = address.wrapping_add(2 * HALF_BYTES - 1);
    if address / PAGE_BYTES != last / PAGE_BYTES {
        // Memory is accessed 128 bits at a time, and a refused store must leave memory unchanged.
        probe_store(environment, address)?;
        let page = last & !(PAGE_BYTES - 1);
        probe_store(environment, last).map_err(|fault| Fault { address: page, ..fault })?;
    }
    environment.store(address, low)?;
    Ok(environment.store(address.wrapping_add(HALF_BYTES), high)?)
}

/// Fails like a store to the byte, but does not change it: a compare-exchange of 0 with 0.
fn probe_store<E: Environment>(environment: &E, address: u64) -> Result<(), Fault> {
    let probed = environment.compare_exchange(address, 0u8, 0);
    probed.map(drop).map_err(|fault| Fault { access: Access::Write, ..fault })
}

fn load_replicated<E: Environment, T: Scalar + super::half::Element, const HALVES: usize>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
) -> Result<(), Trap> {
    let value: T = environment.load(immediate_address(state, instruction))?;
    write_halves::<HALVES>(state, instruction.d, [splat(value); 2]);
    Ok(())
}

/// Stores the lane that the second immediate selects.
fn store_lane<E: Environment, T: Scalar + super::half::Element>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
) -> Result<(), Trap> {
    let halves = read_halves(state, instruction.d);
    let index = instruction.imm2 as usize;
    let value = T::lane(halves[index / T::LANES], index % T::LANES);
    Ok(environment.store(immediate_address(state, instruction), value)?)
}
