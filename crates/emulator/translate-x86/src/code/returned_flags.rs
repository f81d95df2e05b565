//! Finds calls whose callee returns a result in flags. Compilers of C never do that; SBCL and Erlang return the results
//! of comparisons in flags.

use iced_x86::{FlowControl, Instruction, Mnemonic};

use super::reading::{MAX_INSTRUCTION_BYTES, decode_at, note_page};
use super::unit::{ARITHMETIC, PAGE, is_system_call};

/// The instructions after a direct call that are searched for a read of flags.
const READ_AFTER_CALL: usize = 3;
/// The instructions of a callee that are searched for a result in flags.
const CALLEE_INSTRUCTIONS: usize = 64;
/// The instructions before a return that may follow the comparison: they restore registers.
const BEFORE_RETURN: usize = 4;

/// Whether `call` is a call after which the code reads flags that the callee returns.
///
/// If a call never returns, the code after it is reached from elsewhere, and may read flags that were set there.
/// Therefore, the callee of a direct call must compare and return. The callee of an indirect call is unknown; the first
/// instruction after such a call must read flags.
pub(crate) fn reads_returned_flags(call: &Instruction, fetch: &dyn Fn(u64) -> Option<u32>) -> bool {
    if call.is_call_near_indirect() {
        return reads_flags(call.next_ip(), 1, fetch);
    }
    call.is_call_near()
        && reads_flags(call.next_ip(), READ_AFTER_CALL, fetch)
        && compares_and_returns(call.near_branch_target(), fetch)
}

/// Whether code after `call` reads flags that the callee may have preserved. A cold translation reads only the
/// listed pages; others are added.
pub(super) fn is_read_after(
    call: &Instruction,
    is_cold: bool,
    pages: &mut Vec<u64>,
    fetch: &dyn Fn(u64) -> Option<u32>,
) -> bool {
    let first = call.next_ip();
    let ends = [first, first.wrapping_add((READ_AFTER_CALL * MAX_INSTRUCTION_BYTES) as u64)];
    if is_cold && !ends.iter().all(|at| pages.contains(&(at / PAGE))) {
        return true;
    }
    ends.iter().for_each(|at| note_page(pages, *at));
    reads_flags(first, READ_AFTER_CALL, fetch)
}

/// Whether one of the `count` instructions at `pc` reads flags that none of them has set.
fn reads_flags(mut pc: u64, count: usize, fetch: &dyn Fn(u64) -> Option<u32>) -> bool {
    for _ in 0..count {
        let Some(i) = decode_at(pc, fetch).filter(|i| !i.is_invalid()) else { return false };
        // A processor saves the flags in R11, where no program looks for them.
        if is_system_call(&i) {
            return false;
        }
        if i.rflags_read() & ARITHMETIC != 0 {
            return true;
        }
        if i.rflags_modified() & ARITHMETIC != 0 || i.flow_control() != FlowControl::Next {
            return false;
        }
        pc = i.next_ip();
    }
    false
}

/// Whether the function at `start` has a return shortly after an instruction that does nothing but set flags.
fn compares_and_returns(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> bool {
    let (mut work_list, mut seen) = (vec![start], Vec::new());
    while let Some(mut pc) = work_list.pop() {
        // Instructions since the last one that set flags, if that one does nothing else.
        let mut since = None;
        while seen.len() < CALLEE_INSTRUCTIONS && !seen.contains(&pc) {
            seen.push(pc);
            let Some(i) = decode_at(pc, fetch).filter(|i| !i.is_invalid()) else { break };
            if i.rflags_modified() & ARITHMETIC != 0 {
                since = only_sets_flags(&i).then_some(0);
            } else {
                since = since.map(|count: usize| count + 1);
            }
            pc = match i.flow_control() {
                FlowControl::Return => {
                    if since.is_some_and(|count| count <= BEFORE_RETURN) {
                        return true;
                    }
                    break;
                }
                FlowControl::UnconditionalBranch => i.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    work_list.push(i.near_branch_target());
                    i.next_ip()
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    since = None;
                    i.next_ip()
                }
                FlowControl::Next => i.next_ip(),
                _ => break,
            };
        }
    }
    false
}

fn only_sets_flags(i: &Instruction) -> bool {
    use Mnemonic::*;
    let compares = matches!(
        i.mnemonic(),
        Cmp | Test
            | Bt
            | Comiss
            | Comisd
            | Ucomiss
            | Ucomisd
            | Vcomiss
            | Vcomisd
            | Vucomiss
            | Vucomisd
            | Ptest
    );
    compares
        || matches!(i.mnemonic(), Stc | Clc | Cmc | Sahf | Popf | Popfq | Fcomi | Fcomip | Fucomi | Fucomip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `next` reads the flags that a call of `cmp eax, eax; ret` returns.
    fn is_read(next: &[u8]) -> bool {
        // call 0x20
        let mut code = [&[0xe8, 0x1b, 0, 0, 0], next].concat();
        code.resize(0x20, 0x90);
        code.extend([0x39, 0xc0, 0xc3, 0x90]);
        let fetch = |at: u64| Some(u32::from_le_bytes(*code.get(at as usize..)?.first_chunk()?));
        let call = decode_at(0, &fetch).unwrap();
        reads_returned_flags(&call, &fetch)
    }

    #[test]
    fn a_condition_after_a_call_reads_flags_and_a_system_call_does_not() {
        // mov eax, 57; setb al
        assert!(is_read(&[0xb8, 57, 0, 0, 0, 0x0f, 0x92, 0xc0]));
        // mov eax, 57; syscall, as the C library's fork does after it has called functions that compare
        assert!(!is_read(&[0xb8, 57, 0, 0, 0, 0x0f, 0x05]));
    }
}
