//! Aligned accesses, and rounding that is never inexact.

#[path = "../qemu_oracle/array.rs"]
#[allow(dead_code)]
mod array;

use array::Array;
use longma_loongarch::{
    Access, Class, Environment, Fault, FaultCause, Fcsr, Instruction, Location, Op, Operand, RegisterKind,
    Scalar, State, Trap, semantics::execute,
};

use super::{Code, all};

const BASE: u64 = 0x1000;

/// An array that translated code accesses.
struct Translated<'a>(Array<'a>);

impl Environment for Translated<'_> {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        self.0.load(address)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        self.0.store(address, value)
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        self.0.compare_exchange(address, expected, new)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.0.fetch(address)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }

    fn permits_private(&self) -> bool {
        true
    }
}

/// The instruction without the suffix `.aligned`.
fn plain(op: Op) -> Option<Op> {
    let name = op.mnemonic().strip_suffix(".aligned")?;
    Op::all().find(|op| op.mnemonic() == name)
}

fn bytes_of(op: Op) -> u64 {
    let row = op.row();
    let bytes = row.reads.iter().chain(row.writes).find_map(|location| match location {
        Location::Memory(bytes) => Some(u64::from(*bytes)),
        _ => None,
    });
    bytes.expect("an access")
}

/// The memory and the state after an access at `address`.
fn access(op: Op, address: u64) -> (Result<(), Trap>, State, Vec<u8>) {
    let memory = Translated(Array::new(BASE, (0..128).collect(), 0, &[]));
    let mut state = State::default();
    state.v[4].0 = [0x1111_2222_3333_4444, 5, 6, 7];
    state.x[4] = 0x8877_6655_4433_2211;
    (state.x[5], state.x[6]) = (address, 16);
    let is_indexed = op.row().operands.get(2) == Some(&Operand::Register(RegisterKind::General, 10));
    if is_indexed {
        state.x[5] -= 16;
    }
    let instruction = Instruction { d: 4, j: 5, k: 6, ..Instruction::new(op) };
    let result = execute(&mut state, &instruction, &memory);
    (result, state, memory.0.data.take())
}

/// Checks all instructions of this file, and returns them.
pub fn tested() -> Vec<Op> {
    let mut tested = Vec::new();
    for op in all() {
        let Some(plain) = plain(op) else { continue };
        assert_eq!(access(op, BASE + 32), access(plain, BASE + 32), "{}", op.mnemonic());
        let kind = if op.row().class == Class::Load { Access::Read } else { Access::Write };
        for offset in [1, bytes_of(op) / 2] {
            let address = BASE + 32 + offset;
            let fault = Fault { address, access: kind, cause: FaultCause::Misaligned };
            let (result, state, data) = access(op, address);
            assert_eq!(result, Err(Trap::Memory(fault)), "{}", op.mnemonic());
            assert_eq!(state.x[4], 0x8877_6655_4433_2211);
            assert_eq!(data, (0..128).collect::<Vec<u8>>());
        }
        tested.push(op);
    }
    tested.extend(rounded());
    tested
}

/// Rounds in each direction and compares with the ordinary instructions.
fn rounded() -> [Op; 4] {
    let singles = [1.5f32, -2.5, 0.3, f32::NAN].map(f32::to_bits);
    let doubles = [2.5f64, -0.7].map(f64::to_bits);
    let word = |at: usize| u64::from(singles[at]) | u64::from(singles[at + 1]) << 32;
    let inputs = [[word(0), word(2), word(2), word(0)], [doubles[0], doubles[1], doubles[1], 1]];
    let directions = ["rne", "rz", "rp", "rm", ""];
    for (input, format) in inputs.into_iter().zip(["s", "d"]) {
        for prefix in ["", "x"] {
            for (imm, direction) in (0..).zip(directions) {
                let find = |name: String| Op::all().find(|op| op.mnemonic() == name).expect("an instruction");
                let exact = find(format!("{prefix}vfrint.{format}.exact"));
                let usual = find(format!("{prefix}vfrint{direction}.{format}"));
                let run = |op, imm| {
                    let mut state = State { fcsr: Fcsr(2 << 8), ..State::default() };
                    state.v[5].0 = input;
                    let i = Instruction { d: 4, j: 5, imm, ..Instruction::new(op) };
                    execute(&mut state, &i, &Code { is_translated: true }).expect("it completes");
                    (state.v[4], state.fcsr.0 & Fcsr::FLAGS)
                };
                let ((value, flags), (expected, raised)) = (run(exact, imm), run(usual, 0));
                assert_eq!((value, flags), (expected, 0), "{} {imm}", exact.mnemonic());
                assert_ne!(raised, 0, "it is inexact");
            }
        }
    }
    [Op::VfrintSExact, Op::VfrintDExact, Op::XvfrintSExact, Op::XvfrintDExact]
}
