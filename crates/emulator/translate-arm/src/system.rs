//! Converts AArch64 system calls to LoongArch's. Both use the numbers and nearly all structures of asm-generic. Source:
//! Linux include/uapi/asm-generic/unistd.h, arch/arm64/include/uapi/asm, arch/arm64/Kconfig (CLONE_BACKWARDS);
//! `calls.tsv`.

use std::sync::LazyLock;

use super::numbers;
use longma_translate::calls::{Calls, fetch, store, word};
use longma_translate::front_end::{self, CallResult, UserMemory};

/// The engine's action for a system call.
pub type SyscallAction = front_end::SyscallAction<ResultConversion>;

/// How to convert the result of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultConversion {
    /// No conversion.
    Nothing,
    /// Copy `struct sigaction` from the first address to the second.
    Action(u64, u64),
    /// Set the machine name in the `struct utsname` at this address.
    Machine(u64),
    /// Convert the open flags in the result.
    Flags,
    /// Code in this range (address, length) may have changed.
    Mapped(u64, u64),
    /// Code may have changed in the range of this length that starts at the result.
    Placed(u64),
}

const EFAULT: u64 = 14;
const EINVAL: u64 = 22;
const ENOSYS: u64 = 38;
const SA_RESTORER: u64 = 0x0400_0000;
const F_GETFL: u64 = 3;
const F_SETFL: u64 = 4;
/// Offset of the machine name in `struct utsname`.
const MACHINE: u64 = 4 * 65;
/// Scratch space for converted structures, in bytes.
pub(super) const CALL_BUFFER_BYTES: u64 = 1024;

static CALLS: LazyLock<Calls> = LazyLock::new(|| Calls::parse(include_str!("calls.tsv"), 0));

/// The name of a system call, if the number is defined.
pub fn name(number: u64) -> Option<&'static str> {
    CALLS.find(number).map(|(name, _)| name)
}

fn generic(name: &str) -> u64 {
    CALLS.generic(name).unwrap_or(u64::MAX)
}

/// Converts AArch64 system call `number`. Converted structures are placed at `buffer`.
pub fn prepare(number: u64, arguments: [u64; 6], buffer: u64, memory: &dyn UserMemory) -> SyscallAction {
    let Some((name, generic)) = CALLS.find(number) else { return SyscallAction::Done(Err(ENOSYS)) };
    let converted = special(name, arguments, buffer, memory);
    match (converted, generic) {
        (Some(step), _) => step.unwrap_or_else(|error| SyscallAction::Done(Err(error))),
        (None, Some(number)) => SyscallAction::Call(number, arguments, ResultConversion::Nothing),
        (None, None) => SyscallAction::Done(Err(ENOSYS)),
    }
}

/// Handles system calls that differ from LoongArch's.
fn special(
    name: &str,
    arguments: [u64; 6],
    buffer: u64,
    memory: &dyn UserMemory,
) -> Option<Result<SyscallAction, u64>> {
    let [a, b, c, d, e, f] = arguments;
    let call = |name: &str, arguments, conversion| {
        Some(Ok(SyscallAction::Call(generic(name), arguments, conversion)))
    };
    match name {
        "openat" => call(name, [a, b, numbers::open_flags(c), d, e, f], ResultConversion::Nothing),
        "openat2" => Some(open_how(arguments, buffer, memory)),
        "open_by_handle_at" => call(name, [a, b, numbers::open_flags(c), d, e, f], ResultConversion::Nothing),
        "pipe2" => call(name, [a, numbers::open_flags(b), c, d, e, f], ResultConversion::Nothing),
        "fcntl" if b as u32 == F_SETFL as u32 => {
            call(name, [a, b, numbers::open_flags(c), d, e, f], ResultConversion::Nothing)
        }
        "fcntl" if b as u32 == F_GETFL as u32 => call(name, arguments, ResultConversion::Flags),
        "renameat" => call("renameat2", [a, b, c, d, 0, 0], ResultConversion::Nothing),
        "getrlimit" => call("prlimit64", [0, a, 0, b, 0, 0], ResultConversion::Nothing),
        "setrlimit" => call("prlimit64", [0, a, b, 0, 0, 0], ResultConversion::Nothing),
        "uname" => call(name, arguments, ResultConversion::Machine(a)),
        "mmap" => call(name, arguments, ResultConversion::Placed(b)),
        "munmap" | "mprotect" | "mremap" => call(name, arguments, ResultConversion::Mapped(a, b)),
        // AArch64 passes the thread pointer before the child's ID.
        "clone" => call(name, [a, b, c, e, d, f], ResultConversion::Nothing),
        "rt_sigaction" => Some(action(arguments, buffer, memory)),
        "rt_sigreturn" => Some(Ok(SyscallAction::SignalReturn)),
        _ => None,
    }
}

/// openat2(2) passes its flags in a structure.
fn open_how(
    [a, b, how, size, ..]: [u64; 6],
    buffer: u64,
    memory: &dyn UserMemory,
) -> Result<SyscallAction, u64> {
    if size != 24 {
        return Err(EINVAL);
    }
    let bytes: [u8; 24] = fetch(memory, how)?;
    store(memory, buffer, &[numbers::open_flags(word(&bytes, 0)), word(&bytes, 8), word(&bytes, 16)])?;
    Ok(SyscallAction::Call(generic("openat2"), [a, b, buffer, size, 0, 0], ResultConversion::Nothing))
}

/// rt_sigaction(2): AArch64's structure includes the restorer. Handlers return through the process's own restorer
/// instead.
fn action(
    [signal, new, old, size, ..]: [u64; 6],
    buffer: u64,
    memory: &dyn UserMemory,
) -> Result<SyscallAction, u64> {
    let (new_action, old_action) = (buffer, buffer + 32);
    if new != 0 {
        let bytes: [u8; 32] = fetch(memory, new)?;
        store(memory, new_action, &[word(&bytes, 0), word(&bytes, 8) & !SA_RESTORER, word(&bytes, 24)])?;
    }
    let buffer_or_null = |address, copy| if address == 0 { 0 } else { copy };
    let arguments = [signal, buffer_or_null(new, new_action), buffer_or_null(old, old_action), size, 0, 0];
    let conversion =
        if old == 0 { ResultConversion::Nothing } else { ResultConversion::Action(old_action, old) };
    Ok(SyscallAction::Call(generic("rt_sigaction"), arguments, conversion))
}

/// Converts the result of a system call.
///
/// # Errors
/// Returns the error number if a structure in guest memory is not accessible.
pub fn finish(conversion: ResultConversion, result: u64, memory: &dyn UserMemory) -> CallResult {
    match conversion {
        ResultConversion::Action(from, to) => {
            let bytes: [u8; 24] = fetch(memory, from)?;
            store(memory, to, &[word(&bytes, 0), word(&bytes, 8), 0, word(&bytes, 16)])?;
        }
        ResultConversion::Machine(at) if !memory.write(at.wrapping_add(MACHINE), b"aarch64\0") => {
            return Err(EFAULT);
        }
        ResultConversion::Flags => return Ok((numbers::open_flags_to_arm(result), None)),
        _ => {}
    }
    Ok((result, None))
}
