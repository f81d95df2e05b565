//! Lane movement across a 256-bit register, and to and from general registers and condition flags. Source: the LSX and
//! LASX definitions of the unofficial LoongArch intrinsics guide, tested there on hardware.

use super::{
    half::{Element, Narrow},
    read_halves, write_halves,
};
use crate::{Instruction, State};

/// An instruction that accesses more than 128 bits or another register file.
pub(super) type WholeFunction = fn(&mut State, &Instruction);

/// A family for both widths; the last argument of the function is the number of halves.
macro_rules! both_widths {
    ($stem:literal $function:ident [$($suffix:literal $type:ty),*]) => {
        &[$(
            (concat!("v", $stem, $suffix), $function::<$type, 1>),
            (concat!("xv", $stem, $suffix), $function::<$type, 2>)
        ),*]
    };
}

/// The families as `(name, function)`. Names that are not in the instruction table are ignored.
pub(super) const FAMILIES: &[&[(&str, WholeFunction)]] = &[
    &[
        ("vinsgr2vr.b", insert_general::<u8, 1>),
        ("vinsgr2vr.h", insert_general::<u16, 1>),
        ("vinsgr2vr.w", insert_general::<u32, 1>),
        ("vinsgr2vr.d", insert_general::<u64, 1>),
        ("xvinsgr2vr.w", insert_general::<u32, 2>),
        ("xvinsgr2vr.d", insert_general::<u64, 2>),
        ("vpickve2gr.b", pick_to_general::<i8>),
        ("vpickve2gr.h", pick_to_general::<i16>),
        ("vpickve2gr.w", pick_to_general::<i32>),
        ("vpickve2gr.d", pick_to_general::<i64>),
        ("xvpickve2gr.w", pick_to_general::<i32>),
        ("xvpickve2gr.d", pick_to_general::<i64>),
        ("vpickve2gr.bu", pick_to_general::<u8>),
        ("vpickve2gr.hu", pick_to_general::<u16>),
        ("vpickve2gr.wu", pick_to_general::<u32>),
        ("vpickve2gr.du", pick_to_general::<u64>),
        ("xvpickve2gr.wu", pick_to_general::<u32>),
        ("xvpickve2gr.du", pick_to_general::<u64>),
        ("xvreplve0.b", replicate_first::<u8>),
        ("xvreplve0.h", replicate_first::<u16>),
        ("xvreplve0.w", replicate_first::<u32>),
        ("xvreplve0.d", replicate_first::<u64>),
        ("xvreplve0.q", replicate_first::<u128>),
        ("xvinsve0.w", insert_first::<u32>),
        ("xvinsve0.d", insert_first::<u64>),
        ("xvpickve.w", pick_to_first::<u32>),
        ("xvpickve.d", pick_to_first::<u64>),
        ("xvperm.w", permute_by_register),
        ("xvpermi.d", permute_doublewords),
        ("xvpermi.q", permute_quadwords),
        ("xvhseli.d", select_doublewords),
        ("vext2xv.h.b", extend::<i8, i16>),
        ("vext2xv.w.b", extend::<i8, i32>),
        ("vext2xv.d.b", extend::<i8, i64>),
        ("vext2xv.w.h", extend::<i16, i32>),
        ("vext2xv.d.h", extend::<i16, i64>),
        ("vext2xv.d.w", extend::<i32, i64>),
        ("vext2xv.hu.bu", extend::<u8, u16>),
        ("vext2xv.wu.bu", extend::<u8, u32>),
        ("vext2xv.du.bu", extend::<u8, u64>),
        ("vext2xv.wu.hu", extend::<u16, u32>),
        ("vext2xv.du.hu", extend::<u16, u64>),
        ("vext2xv.du.wu", extend::<u32, u64>),
        ("vseteqz.v", set_if_zero::<1>),
        ("xvseteqz.v", set_if_zero::<2>),
        ("vsetnez.v", set_if_not_zero::<1>),
        ("xvsetnez.v", set_if_not_zero::<2>),
    ],
    both_widths!("setanyeqz" set_if_any_zero [".b" u8, ".h" u16, ".w" u32, ".d" u64]),
    both_widths!("setallnez" set_if_none_zero [".b" u8, ".h" u16, ".w" u32, ".d" u64]),
];

/// Lane `index` of a 256-bit register.
fn lane<T: Element>(register: [u128; 2], index: usize) -> T {
    T::lane(register[index / T::LANES], index % T::LANES)
}

/// The 256-bit register whose lane `i` is `f(i)`.
fn lanes<T: Element>(f: impl Fn(usize) -> T) -> [u128; 2] {
    [super::half::lanes(&f), super::half::lanes(|i| f(i + T::LANES))]
}

/// Replaces a lane of d with `value`.
fn insert<T: Element>(d: [u128; 2], index: usize, value: T) -> [u128; 2] {
    lanes(|i| if i == index { value } else { lane(d, i) })
}

fn insert_general<T: Element, const HALVES: usize>(state: &mut State, instruction: &Instruction) {
    let value = T::truncate(state.r(instruction.j).into());
    let old = read_halves(state, instruction.d);
    write_halves::<HALVES>(state, instruction.d, insert(old, instruction.imm as usize, value));
}

fn pick_to_general<T: Narrow>(state: &mut State, instruction: &Instruction) {
    let value: T = lane(read_halves(state, instruction.j), instruction.imm as usize);
    state.set_r(instruction.d, extended::<T, u64>(value).bits() as u64);
}

fn replicate_first<T: Element>(state: &mut State, instruction: &Instruction) {
    let first: T = lane(read_halves(state, instruction.j), 0);
    write_halves::<2>(state, instruction.d, lanes(|_| first));
}

fn insert_first<T: Element>(state: &mut State, instruction: &Instruction) {
    let first: T = lane(read_halves(state, instruction.j), 0);
    let old = read_halves(state, instruction.d);
    write_halves::<2>(state, instruction.d, insert(old, instruction.imm as usize, first));
}

fn pick_to_first<T: Element>(state: &mut State, instruction: &Instruction) {
    let picked: T = lane(read_halves(state, instruction.j), instruction.imm as usize);
    write_halves::<2>(state, instruction.d, [picked.bits(), 0]);
}

/// Permutes words. Only the low three bits of each index are used.
fn permute_by_register(state: &mut State, instruction: &Instruction) {
    let (words, indices) = (read_halves(state, instruction.j), read_halves(state, instruction.k));
    let permuted = lanes(|i| lane::<u32>(words, lane::<u32>(indices, i) as usize % 8));
    write_halves::<2>(state, instruction.d, permuted);
}

fn permute_doublewords(state: &mut State, instruction: &Instruction) {
    let from = read_halves(state, instruction.j);
    let permuted = lanes(|i| lane::<u64>(from, (instruction.imm >> (2 * i)) as usize & 3));
    write_halves::<2>(state, instruction.d, permuted);
}

/// Selects each half from the halves of j and d. Unused immediate bits are ignored, as on the 3A6000 and in QEMU.
fn permute_quadwords(state: &mut State, instruction: &Instruction) {
    let (j, d) = (read_halves(state, instruction.j), read_halves(state, instruction.d));
    let quads = [j[0], j[1], d[0], d[1]];
    let imm = instruction.imm as usize;
    write_halves::<2>(state, instruction.d, [quads[imm & 3], quads[imm >> 4 & 3]]);
}

/// Selects each doubleword from the two of its half. The highest immediate bit is ignored. The manual omits this
/// instruction, but assemblers support it.
fn select_doublewords(state: &mut State, instruction: &Instruction) {
    let from = read_halves(state, instruction.j);
    let selected = lanes(|i| lane::<u64>(from, i & 2 | (instruction.imm >> i) as usize & 1));
    write_halves::<2>(state, instruction.d, selected);
}

/// Extends `value` to the width of `W`, with its sign if `T` is signed.
fn extended<T: Narrow, W: Element>(value: T) -> W {
    let low = u32::min(T::BITS, W::BITS);
    let extension = if value < T::default() { u128::MAX.checked_shl(low).unwrap_or(0) } else { 0 };
    W::truncate(value.bits() | extension)
}

fn extend<T: Narrow, W: Element>(state: &mut State, instruction: &Instruction) {
    let from = read_halves(state, instruction.j);
    write_halves::<2>(state, instruction.d, lanes(|i| extended::<T, W>(lane(from, i))));
}

/// Sets condition flag d to `condition` applied to the first `HALVES` halves of the register.
fn set_flag<const HALVES: usize>(
    state: &mut State,
    instruction: &Instruction,
    condition: impl FnOnce(&[u128]) -> bool,
) {
    let halves = read_halves(state, instruction.j);
    state.fcc[usize::from(instruction.d)] = condition(&halves[..HALVES]).into();
}

fn set_if_zero<const HALVES: usize>(state: &mut State, instruction: &Instruction) {
    set_flag::<HALVES>(state, instruction, |halves| halves.iter().all(|&half| half == 0));
}

fn set_if_not_zero<const HALVES: usize>(state: &mut State, instruction: &Instruction) {
    set_flag::<HALVES>(state, instruction, |halves| halves.iter().any(|&half| half != 0));
}

fn any_lane_zero<T: Element>(halves: &[u128]) -> bool {
    halves.iter().any(|&half| (0..T::LANES).any(|i| T::lane(half, i) == T::default()))
}

fn set_if_any_zero<T: Element, const HALVES: usize>(state: &mut State, instruction: &Instruction) {
    set_flag::<HALVES>(state, instruction, any_lane_zero::<T>);
}

fn set_if_none_zero<T: Element, const HALVES: usize>(state: &mut State, instruction: &Instruction) {
    set_flag::<HALVES>(state, instruction, |halves| !any_lane_zero::<T>(halves));
}
