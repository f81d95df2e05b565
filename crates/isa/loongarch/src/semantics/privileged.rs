//! Reference semantics of the privileged instructions. The caller provides CSRs, the TLB and IOCSR space through
//! [`Privileged`]; a program in user mode needs none of this. Source: LoongArch Reference Manual, volume 1, section 4.2
//! (privileged instructions).

use super::{Semantics, sign_extend_word};
use crate::{Environment, Extension, Instruction, Op, State, Trap};

/// An instruction that maintains the TLB by the registers TLBIDX, TLBEHI, TLBELO0, TLBELO1 and ASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbOperation {
    /// TLBSRCH: find the entry of an address.
    Search,
    /// TLBRD: read an entry by its index.
    Read,
    /// TLBWR: write an entry by its index.
    Write,
    /// TLBFILL: write an entry at an index that the processor chooses.
    Fill,
    /// TLBCLR: invalidate entries that are not global, of the current address space.
    Clear,
    /// TLBFLUSH: invalidate entries.
    Flush,
}

/// The environment of privileged instructions, in addition to that of a user program.
///
/// Methods take `&self` like those of [`Environment`]. A method takes the register state if its instruction changes
/// registers that are not among its operands.
pub trait Privileged: Environment {
    /// The current privilege level (PLV), 0 to 3. Privileged instructions need 0.
    fn privilege_level(&self) -> u8;

    /// Reads a CSR; 0 if it does not exist.
    fn read_csr(&self, state: &State, number: u16) -> u64;

    /// Replaces the bits of a CSR that `mask` selects, as far as software may write them, and returns the old value.
    /// A write to a CSR that does not exist has no effect.
    fn exchange_csr(&self, state: &mut State, number: u16, value: u64, mask: u64) -> u64;

    /// Reads `bytes` (1, 2, 4 or 8) bytes of IOCSR space.
    fn read_iocsr(&self, address: u64, bytes: usize) -> u64;

    /// Writes `bytes` (1, 2, 4 or 8) bytes of IOCSR space.
    fn write_iocsr(&self, address: u64, bytes: usize, value: u64);

    /// Executes an instruction that maintains the TLB.
    fn maintain_tlb(&self, operation: TlbOperation);

    /// INVTLB: invalidates the TLB entries that `operation` selects by address space and address.
    ///
    /// # Errors
    /// The operation does not exist.
    fn invalidate_tlb(&self, operation: u32, asid: u64, address: u64) -> Result<(), Trap>;

    /// LDDIR: the entry of the directory at `base` for the address that missed in the TLB. `level` is 1 to 4.
    fn load_directory(&self, base: u64, level: u32) -> u64;

    /// LDPTE: loads the even or the odd entry of the page table at `base` into TLBRELO0 or TLBRELO1.
    fn load_page_entry(&self, base: u64, odd: bool);

    /// ERTN: restores the mode before the exception and sets the program counter.
    fn return_from_exception(&self, state: &mut State);

    /// IDLE: stops the core before the next instruction, until an interrupt.
    fn idle(&self);
}

/// The semantics of `op` in a system: privileged instructions execute at privilege level 0 and trap at others. LVZ
/// instructions are illegal. All others are as in a user program.
pub fn semantics_of<P: Privileged>(op: Op) -> Semantics<P> {
    match op.row().extension {
        Extension::Privileged => lookup(op).unwrap_or(|_, _, _| Err(Trap::IllegalInstruction)),
        Extension::Lvz => |_, _, _| Err(Trap::IllegalInstruction),
        _ => super::semantics_of(op),
    }
}

/// Executes `instruction`, which is at `state.pc`, and updates the program counter.
///
/// # Errors
/// The instruction did not complete; `state.pc` still points to it.
pub fn execute<P: Privileged>(
    state: &mut State,
    instruction: &Instruction,
    environment: &P,
) -> Result<(), Trap> {
    let next = state.pc.wrapping_add(4);
    semantics_of::<P>(instruction.op)(state, instruction, environment)?;
    if !sets_program_counter(instruction.op) {
        state.pc = next;
    }
    Ok(())
}

/// Whether the semantics of `op` set the program counter. After others, the caller advances it.
pub fn sets_program_counter(op: Op) -> bool {
    op.is_control_flow() || op == Op::Ertn
}

/// An effect at privilege level 0, and a trap at other levels.
macro_rules! privileged {
    (|$state:ident, $i:ident, $p:ident| $effect:expr) => {
        |$state, $i, $p| {
            if $p.privilege_level() != 0 {
                return Err(Trap::PrivilegedInstruction);
            }
            $effect;
            Ok(())
        }
    };
}

macro_rules! read_iocsr {
    ($bytes:literal, $extend:expr) => {
        privileged!(|s, i, p| s.set_r(i.d, $extend(p.read_iocsr(s.r(i.j), $bytes))))
    };
}

macro_rules! write_iocsr {
    ($bytes:literal) => {
        privileged!(|s, i, p| p.write_iocsr(s.r(i.j), $bytes, s.r(i.d)))
    };
}

macro_rules! maintain_tlb {
    ($operation:ident) => {
        privileged!(|_s, _i, p| p.maintain_tlb(TlbOperation::$operation))
    };
}

fn lookup<P: Privileged>(op: Op) -> Option<Semantics<P>> {
    Some(match op {
        Op::Csrxchg => privileged!(|s, i, p| access_csr(s, i, p)),
        Op::IocsrrdB => read_iocsr!(1, |value| value as i8 as u64),
        Op::IocsrrdH => read_iocsr!(2, |value| value as i16 as u64),
        Op::IocsrrdW => read_iocsr!(4, sign_extend_word),
        Op::IocsrrdD => read_iocsr!(8, |value| value),
        Op::IocsrwrB => write_iocsr!(1),
        Op::IocsrwrH => write_iocsr!(2),
        Op::IocsrwrW => write_iocsr!(4),
        Op::IocsrwrD => write_iocsr!(8),
        Op::Tlbsrch => maintain_tlb!(Search),
        Op::Tlbrd => maintain_tlb!(Read),
        Op::Tlbwr => maintain_tlb!(Write),
        Op::Tlbfill => maintain_tlb!(Fill),
        Op::Tlbclr => maintain_tlb!(Clear),
        Op::Tlbflush => maintain_tlb!(Flush),
        Op::Invtlb => privileged!(|s, i, p| p.invalidate_tlb(i.imm as u32, s.r(i.j), s.r(i.k))?),
        Op::Lddir => privileged!(|s, i, p| {
            let entry = p.load_directory(s.r(i.j), i.imm as u32);
            s.set_r(i.d, entry);
        }),
        Op::Ldpte => privileged!(|s, i, p| p.load_page_entry(s.r(i.j), i.imm & 1 == 1)),
        Op::Ertn => privileged!(|s, _i, p| p.return_from_exception(s)),
        Op::Idle => privileged!(|_s, _i, p| p.idle()),
        // Caches have no state that software can see, except for their tags.
        Op::Cacop => |_, _, p| match p.privilege_level() {
            0 => Ok(()),
            _ => Err(Trap::PrivilegedInstruction),
        },
        _ => return None,
    })
}

/// CSRRD and CSRWR are CSRXCHG with r0 and r1 as the mask register. The immediate is the number of the CSR.
fn access_csr<P: Privileged>(state: &mut State, i: &Instruction, p: &P) {
    let number = i.imm as u16;
    let old = match i.j {
        0 => p.read_csr(state, number),
        1 => p.exchange_csr(state, number, state.r(i.d), u64::MAX),
        _ => p.exchange_csr(state, number, state.r(i.d), state.r(i.j)),
    };
    state.set_r(i.d, old);
}
