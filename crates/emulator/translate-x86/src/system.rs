//! Conversion of x86-64 system calls to LoongArch system calls: numbers, arguments and structures. Source: Linux
//! arch/x86/entry/syscalls/syscall_64.tbl, arch/x86/include/uapi/asm; `calls.tsv`.

use std::sync::LazyLock;

use longma_loongarch::State;

use super::registers::{GENERAL, GS_BASE, RAX, THREAD_POINTER};
use longma_translate::calls::{Calls, fetch, store, to_older_directory_entries, word};
use longma_translate::front_end::{self, CallResult, UserMemory};

/// The action that a system call requires.
pub type SyscallAction = front_end::SyscallAction<ResultConversion>;

/// The action for the result of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultConversion {
    /// No conversion.
    Nothing,
    /// Convert `struct stat`, from one address to another.
    Stat(u64, u64),
    /// Convert `struct sigaction`, from one address to another.
    Action(u64, u64),
    /// Convert `struct epoll_event`, from one address to another. The call's result is the number of structures. The
    /// converted ones are packed.
    Events(u64, u64),
    /// Set the machine name in the `struct utsname` at an address.
    Machine(u64),
    /// Invalidate code in this range: start address and length in bytes.
    Mapped(u64, u64),
    /// Invalidate code in the mapping that the call created, with this length in bytes.
    Placed(u64),
    /// Return the remaining seconds in the `struct itimerval` at an address.
    Seconds(u64),
    /// Return this value.
    Replaced(u64),
    /// Convert the directory entries at this address.
    Entries(u64),
    /// Return the seconds of the time at one address, and store them at another.
    Time(u64, u64),
    /// Convert the remaining timeout to microseconds, from one address to another.
    Limit(u64, u64),
}

const EFAULT: u64 = 14;
const EINVAL: u64 = 22;
const ENOSYS: u64 = 38;
const AT_FDCWD: u64 = -100i64 as u64;
const SIGCHLD: u64 = 17;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const F_GETFD: u64 = 1;
const SA_RESTORER: u64 = 0x0400_0000;
const MAP_32BIT: u64 = 0x40;
/// The size of the buffer for structures in bytes.
pub(super) const CALL_BUFFER_BYTES: u64 = 4096;
/// The maximum number of epoll events that fit the buffer.
const MAX_EVENTS: u64 = 256;
/// The size of the packed `struct epoll_event` in bytes.
const EVENT_BYTES: u64 = 12;

static CALLS: LazyLock<Calls> = LazyLock::new(|| Calls::parse(include_str!("calls.tsv"), 0));

/// The name of a system call.
pub fn name(number: u64) -> Option<&'static str> {
    CALLS.find(number).map(|(name, _)| name)
}

fn generic(name: &str) -> u64 {
    CALLS.generic(name).unwrap_or(u64::MAX)
}

/// Decodes system call `number`. Structures may be placed at `buffer`. May set the GS base.
pub fn prepare(
    number: u64,
    arguments: [u64; 6],
    state: &mut State,
    buffer: u64,
    memory: &dyn UserMemory,
) -> SyscallAction {
    let Some((name, generic)) = CALLS.find(number) else {
        return SyscallAction::Done(Err(ENOSYS));
    };
    if name == "arch_prctl" {
        return bases(arguments, state, memory);
    }
    let call = Call { arguments, buffer, memory };
    let converted = call.of_files(name).or_else(|| call.of_memory(name)).or_else(|| call.of_signals(name));
    match (converted.or_else(|| call.of_waiting(name)), generic) {
        (Some(step), _) => step.unwrap_or_else(|error| SyscallAction::Done(Err(error))),
        (None, Some(number)) => SyscallAction::Call(number, arguments, ResultConversion::Nothing),
        (None, None) => SyscallAction::Done(Err(ENOSYS)),
    }
}

/// The page with the oldest form of three system calls, which programs may execute but not read.
const VSYSCALL_PAGE: u64 = 0xffff_ffff_ff60_0000;
/// The distance of the calls in that page: gettimeofday, time and getcpu.
const VSYSCALL_BYTES: u64 = 0x400;

/// The word at `pc` of the vsyscall page. Each call is `mov $number, %rax`, `syscall` and `ret`. Source: Linux
/// arch/x86/entry/vsyscall/vsyscall_emu_64.S.
pub fn vsyscall_code(pc: u64) -> Option<u32> {
    let at = pc.checked_sub(VSYSCALL_PAGE)?;
    let [low, high] = [96u16, 201, 309].get((at / VSYSCALL_BYTES) as usize)?.to_le_bytes();
    let code = [0x48, 0xc7, 0xc0, low, high, 0, 0, 0x0f, 0x05, 0xc3, 0xcc, 0xcc];
    let word = code.chunks_exact(4).nth((at % VSYSCALL_BYTES / 4) as usize)?;
    word.try_into().ok().map(u32::from_le_bytes)
}

/// Whether the system call at `pc` is INT 80h.
pub fn is_interrupt(pc: u64, memory: &dyn UserMemory) -> bool {
    let mut code = [0; 2];
    memory.read(pc, &mut code) && code == [0xcd, 0x80]
}

/// Decodes a 32-bit system call (INT 80h). Those whose structures have another layout do not exist.
pub fn prepare_32_bit(state: &mut State, buffer: u64, memory: &dyn UserMemory) -> SyscallAction {
    /// Added to the numbers of calls that do not exist, for the message.
    const CALLS_OF_32_BITS: u64 = 1 << 32;
    const LSEEK: u64 = 19;
    const WAITPID: u64 = 7;
    let number = state.r(RAX) & 0xffff_ffff;
    // EBX, ECX, EDX, ESI, EDI, EBP.
    let mut arguments = [3, 1, 2, 6, 7, 5].map(|number: usize| state.r(GENERAL[number]) & 0xffff_ffff);
    match number {
        LSEEK => arguments[1] = i64::from(arguments[1] as i32) as u64,
        WAITPID => arguments[3] = 0,
        _ => {}
    }
    match CALLS_32.binary_search_by_key(&number, |(number, _)| *number) {
        Ok(found) => prepare(CALLS_32[found].1, arguments, state, buffer, memory),
        Err(_) => SyscallAction::Call(CALLS_OF_32_BITS + number, arguments, ResultConversion::Nothing),
    }
}

/// The 32-bit system calls whose arguments are numbers, strings and bytes, and the 64-bit calls that do the same. Source:
/// Linux arch/x86/entry/syscalls/syscall_32.tbl.
const CALLS_32: [(u64, u64); 78] = [
    (1, 60),
    (2, 57),
    (3, 0),
    (4, 1),
    (5, 2),
    (6, 3),
    (7, 61),
    (8, 85),
    (9, 86),
    (10, 87),
    (12, 80),
    (15, 90),
    (19, 8),
    (20, 39),
    (27, 37),
    (29, 34),
    (33, 21),
    (36, 162),
    (37, 62),
    (38, 82),
    (39, 83),
    (40, 84),
    (41, 32),
    (42, 22),
    (57, 109),
    (60, 95),
    (61, 161),
    (63, 33),
    (64, 110),
    (65, 111),
    (66, 112),
    (83, 88),
    (85, 89),
    (91, 11),
    (94, 91),
    (96, 140),
    (97, 141),
    (118, 74),
    (122, 63),
    (125, 10),
    (132, 121),
    (133, 81),
    (144, 26),
    (147, 124),
    (148, 75),
    (150, 149),
    (151, 150),
    (158, 24),
    (183, 79),
    (199, 102),
    (200, 104),
    (201, 107),
    (202, 108),
    (219, 28),
    (224, 186),
    (238, 200),
    (252, 231),
    (254, 213),
    (270, 234),
    (291, 253),
    (295, 257),
    (296, 258),
    (301, 263),
    (302, 264),
    (303, 265),
    (304, 266),
    (305, 267),
    (306, 268),
    (307, 269),
    (323, 284),
    (328, 290),
    (329, 291),
    (330, 292),
    (331, 293),
    (355, 318),
    (356, 319),
    (436, 436),
    (439, 439),
];

/// arch_prctl(2).
fn bases([code, address, ..]: [u64; 6], state: &mut State, memory: &dyn UserMemory) -> SyscallAction {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let gs = &mut state.lbt.scratch[usize::from(GS_BASE)];
    match code {
        SET_FS => SyscallAction::ThreadPointer(address),
        SET_GS => {
            *gs = address;
            SyscallAction::Done(Ok(0))
        }
        GET_GS => {
            let value = *gs;
            SyscallAction::Done(store(memory, address, &[value]).map(|()| 0))
        }
        GET_FS => SyscallAction::Done(store(memory, address, &[state.r(THREAD_POINTER)]).map(|()| 0)),
        _ => SyscallAction::Done(Err(EINVAL)),
    }
}

/// A system call that is being decoded.
struct Call<'a> {
    arguments: [u64; 6],
    buffer: u64,
    memory: &'a dyn UserMemory,
}

type Found = Option<Result<SyscallAction, u64>>;

fn call(name: &str, arguments: [u64; 6], conversion: ResultConversion) -> Found {
    Some(Ok(SyscallAction::Call(generic(name), arguments, conversion)))
}

impl Call<'_> {
    fn of_files(&self, name: &str) -> Found {
        let [a, b, c, d, ..] = self.arguments;
        let at = |name: &str, rest: [u64; 5]| {
            let [p, q, r, s, t] = rest;
            call(name, [AT_FDCWD, p, q, r, s, t], ResultConversion::Nothing)
        };
        let stat = |descriptor, path, flags, to| {
            let arguments = [descriptor, path, self.buffer, flags, 0, 0];
            call("newfstatat", arguments, ResultConversion::Stat(self.buffer, to))
        };
        match name {
            "open" => at("openat", [a, b, c, 0, 0]),
            "creat" => at("openat", [a, 0x241, b, 0, 0]),
            "stat" => stat(AT_FDCWD, a, 0, b),
            "lstat" => stat(AT_FDCWD, a, 0x100, b),
            "fstat" => call(name, [a, self.buffer, 0, 0, 0, 0], ResultConversion::Stat(self.buffer, b)),
            "newfstatat" => stat(a, b, d, c),
            "access" => at("faccessat", [a, b, 0, 0, 0]),
            "rename" => call("renameat2", [AT_FDCWD, a, AT_FDCWD, b, 0, 0], ResultConversion::Nothing),
            "renameat" => call("renameat2", [a, b, c, d, 0, 0], ResultConversion::Nothing),
            "mkdir" => at("mkdirat", [a, b, 0, 0, 0]),
            "rmdir" => at("unlinkat", [a, 0x200, 0, 0, 0]),
            "unlink" => at("unlinkat", [a, 0, 0, 0, 0]),
            "link" => call("linkat", [AT_FDCWD, a, AT_FDCWD, b, 0, 0], ResultConversion::Nothing),
            "symlink" => call("symlinkat", [a, AT_FDCWD, b, 0, 0, 0], ResultConversion::Nothing),
            "readlink" => at("readlinkat", [a, b, c, 0, 0]),
            "chmod" => at("fchmodat", [a, b, 0, 0, 0]),
            "chown" => at("fchownat", [a, b, c, 0, 0]),
            "lchown" => at("fchownat", [a, b, c, 0x100, 0]),
            "mknod" => at("mknodat", [a, b, c, 0, 0]),
            "pipe" => call("pipe2", [a, 0, 0, 0, 0, 0], ResultConversion::Nothing),
            "getdents" => call("getdents64", [a, b, c, 0, 0, 0], ResultConversion::Entries(b)),
            "dup2" if a as u32 == b as u32 => {
                call("fcntl", [a, F_GETFD, 0, 0, 0, 0], ResultConversion::Replaced(u64::from(a as u32)))
            }
            "dup2" => call("dup3", [a, b, 0, 0, 0, 0], ResultConversion::Nothing),
            "eventfd" => call("eventfd2", [a, 0, 0, 0, 0, 0], ResultConversion::Nothing),
            "signalfd" => call("signalfd4", [a, b, c, 0, 0, 0], ResultConversion::Nothing),
            "inotify_init" => call("inotify_init1", [0; 6], ResultConversion::Nothing),
            "epoll_create" if a as i32 <= 0 => Some(Err(EINVAL)),
            "epoll_create" => call("epoll_create1", [0; 6], ResultConversion::Nothing),
            "utime" => Some(self.times(AT_FDCWD, a, b, 8)),
            "utimes" => Some(self.times(AT_FDCWD, a, b, 16)),
            "futimesat" => Some(self.times(a, b, c, 16)),
            "uname" => call("uname", self.arguments, ResultConversion::Machine(a)),
            _ => None,
        }
    }

    /// utime(2) and utimes(2), whose two times have `bytes` bytes each.
    fn times(&self, directory: u64, path: u64, from: u64, bytes: usize) -> Result<SyscallAction, u64> {
        if from != 0 {
            let guest_times: [u8; 32] = match bytes {
                8 => {
                    let seconds: [u8; 16] = fetch(self.memory, from)?;
                    let mut guest_times = [0; 32];
                    guest_times[..8].copy_from_slice(&seconds[..8]);
                    guest_times[16..24].copy_from_slice(&seconds[8..]);
                    guest_times
                }
                _ => fetch(self.memory, from)?,
            };
            let nanoseconds = |at| word(&guest_times, at).checked_mul(1000).ok_or(EINVAL);
            let times = [word(&guest_times, 0), nanoseconds(8)?, word(&guest_times, 16), nanoseconds(24)?];
            store(self.memory, self.buffer, &times)?;
        }
        let times = if from == 0 { 0 } else { self.buffer };
        Ok(SyscallAction::Call(
            generic("utimensat"),
            [directory, path, times, 0, 0, 0],
            ResultConversion::Nothing,
        ))
    }

    fn of_memory(&self, name: &str) -> Found {
        let [a, b, c, d, e, f] = self.arguments;
        match name {
            "mmap" => call(name, [a, b, c, d & !MAP_32BIT, e, f], ResultConversion::Placed(b)),
            "munmap" | "mprotect" | "mremap" => call(name, self.arguments, ResultConversion::Mapped(a, b)),
            "getrlimit" => call("prlimit64", [0, a, 0, b, 0, 0], ResultConversion::Nothing),
            "setrlimit" => call("prlimit64", [0, a, b, 0, 0, 0], ResultConversion::Nothing),
            "fork" => call("clone", [SIGCHLD, 0, 0, 0, 0, 0], ResultConversion::Nothing),
            "vfork" => {
                call("clone", [CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0, 0], ResultConversion::Nothing)
            }
            _ => None,
        }
    }

    fn of_signals(&self, name: &str) -> Found {
        match name {
            "rt_sigaction" => Some(self.action()),
            "rt_sigreturn" => Some(Ok(SyscallAction::SignalReturn)),
            "pause" => call("ppoll", [0; 6], ResultConversion::Nothing),
            "getpgrp" => call("getpgid", [0; 6], ResultConversion::Nothing),
            "alarm" => Some(self.alarm()),
            "time" => {
                let conversion = ResultConversion::Time(self.buffer, self.arguments[0]);
                call("clock_gettime", [0, self.buffer, 0, 0, 0, 0], conversion)
            }
            _ => None,
        }
    }

    fn action(&self) -> Result<SyscallAction, u64> {
        let [signal, new, old, size, ..] = self.arguments;
        let (new_action, old_action) = (self.buffer, self.buffer + 32);
        if new != 0 {
            let bytes: [u8; 32] = fetch(self.memory, new)?;
            store(
                self.memory,
                new_action,
                &[word(&bytes, 0), word(&bytes, 8) & !SA_RESTORER, word(&bytes, 24)],
            )?;
        }
        let buffer_or_null = |address, copy| if address == 0 { 0 } else { copy };
        let arguments =
            [signal, buffer_or_null(new, new_action), buffer_or_null(old, old_action), size, 0, 0];
        let conversion =
            if old == 0 { ResultConversion::Nothing } else { ResultConversion::Action(old_action, old) };
        Ok(SyscallAction::Call(generic("rt_sigaction"), arguments, conversion))
    }

    fn alarm(&self) -> Result<SyscallAction, u64> {
        let (new_timer, old_timer) = (self.buffer, self.buffer + 32);
        store(self.memory, new_timer, &[0, 0, self.arguments[0] & 0xffff_ffff, 0])?;
        Ok(SyscallAction::Call(
            generic("setitimer"),
            [0, new_timer, old_timer, 0, 0, 0],
            ResultConversion::Seconds(old_timer),
        ))
    }

    /// Calls with a timeout, and epoll.
    fn of_waiting(&self, name: &str) -> Found {
        let [a, b, c, d, e, f] = self.arguments;
        let call =
            |name: &str, arguments, conversion| Ok(SyscallAction::Call(generic(name), arguments, conversion));
        let events = |name: &str, arguments| {
            let [a, b, c, d, e, f]: [u64; 6] = arguments;
            let max_events = u64::from(c as u32).min(MAX_EVENTS);
            let count = self.memory.writable(b, EVENT_BYTES * max_events) / EVENT_BYTES;
            if (c as i32) <= 0 || count == 0 {
                // Let the call report the error. Events that cannot be written stay pending.
                return call(name, [a, b, c, d, e, f], ResultConversion::Nothing);
            }
            call(name, [a, self.buffer, count, d, e, f], ResultConversion::Events(self.buffer, b))
        };
        Some(match name {
            "poll" => self
                .milliseconds(c)
                .and_then(|limit| call("ppoll", [a, b, limit, 0, 8, 0], ResultConversion::Nothing)),
            "select" => self.select(),
            "epoll_wait" => events("epoll_pwait", [a, b, c, d, 0, 8]),
            "epoll_pwait" | "epoll_pwait2" => events(name, [a, b, c, d, e, f]),
            "epoll_ctl" if d != 0 => fetch::<12>(self.memory, d).and_then(|event| {
                let head = u64::from(u32::from_le_bytes([event[0], event[1], event[2], event[3]]));
                store(self.memory, self.buffer, &[head, word(&event, 4)])?;
                call(name, [a, b, c, self.buffer, 0, 0], ResultConversion::Nothing)
            }),
            _ => return None,
        })
    }

    fn milliseconds(&self, limit: u64) -> Result<u64, u64> {
        let limit = limit as i32;
        if limit < 0 {
            return Ok(0);
        }
        let timeout_address = self.buffer + 512;
        store(self.memory, timeout_address, &[limit as u64 / 1000, limit as u64 % 1000 * 1_000_000])?;
        Ok(timeout_address)
    }

    /// select(2), whose timeout is in microseconds.
    fn select(&self) -> Result<SyscallAction, u64> {
        let [count, read, write, except, limit, _] = self.arguments;
        let timeout_address = self.buffer + 512;
        if limit != 0 {
            let bytes: [u8; 16] = fetch(self.memory, limit)?;
            let microseconds = word(&bytes, 8) as i64;
            let seconds = word(&bytes, 0).wrapping_add((microseconds / 1_000_000) as u64);
            store(self.memory, timeout_address, &[seconds, (microseconds % 1_000_000 * 1000) as u64])?;
        }
        let (timeout, conversion) = if limit == 0 {
            (0, ResultConversion::Nothing)
        } else {
            (timeout_address, ResultConversion::Limit(timeout_address, limit))
        };
        Ok(SyscallAction::Call(generic("pselect6"), [count, read, write, except, timeout, 0], conversion))
    }
}

/// Converts the result of a system call for the program.
///
/// # Errors
/// The error in the source's numbering.
pub fn finish(conversion: ResultConversion, result: u64, memory: &dyn UserMemory) -> CallResult {
    match conversion {
        ResultConversion::Stat(from, to) => write_stat(&fetch(memory, from)?, to, memory)?,
        ResultConversion::Action(from, to) => {
            let bytes: [u8; 24] = fetch(memory, from)?;
            store(memory, to, &[word(&bytes, 0), word(&bytes, 8), 0, word(&bytes, 16)])?;
        }
        ResultConversion::Events(from, to) => {
            for index in 0..result.min(MAX_EVENTS) {
                let event: [u8; 16] = fetch(memory, from + 16 * index)?;
                let mut packed = [0; EVENT_BYTES as usize];
                packed[..4].copy_from_slice(&event[..4]);
                packed[4..].copy_from_slice(&event[8..]);
                if !memory.write(to.wrapping_add(EVENT_BYTES * index), &packed) {
                    return Err(EFAULT);
                }
            }
        }
        ResultConversion::Machine(at) if !memory.write(at.wrapping_add(4 * 65), b"x86_64\0") => {
            return Err(EFAULT);
        }
        ResultConversion::Seconds(from) => {
            let left: [u8; 32] = fetch(memory, from)?;
            let (seconds, microseconds) = (word(&left, 16), word(&left, 24));
            // To the nearest second, but not to 0.
            let rounds_up = microseconds >= 500_000 || seconds == 0 && microseconds != 0;
            return Ok((seconds + u64::from(rounds_up), None));
        }
        ResultConversion::Replaced(value) => return Ok((value, None)),
        ResultConversion::Entries(at) => to_older_directory_entries(memory, at, result)?,
        ResultConversion::Time(from, to) => {
            let time: [u8; 16] = fetch(memory, from)?;
            let seconds = word(&time, 0);
            if to != 0 {
                store(memory, to, &[seconds])?;
            }
            return Ok((seconds, None));
        }
        ResultConversion::Limit(from, to) => {
            let left: [u8; 16] = fetch(memory, from)?;
            store(memory, to, &[word(&left, 0), word(&left, 8) / 1000])?;
        }
        _ => {}
    }
    Ok((result, None))
}

fn write_stat(from: &[u8; 128], to: u64, memory: &dyn UserMemory) -> Result<(), u64> {
    let mut stat = [0; 144];
    // LoongArch offset, x86 offset and length of each field.
    const FIELDS: [(usize, usize, usize); 13] = [
        (0, 0, 8),
        (8, 8, 8),
        (20, 16, 4),
        (16, 24, 4),
        (24, 28, 4),
        (28, 32, 4),
        (32, 40, 8),
        (48, 48, 8),
        (56, 56, 4),
        (64, 64, 8),
        (72, 72, 16),
        (88, 88, 16),
        (104, 104, 16),
    ];
    for (source, target, bytes) in FIELDS {
        stat[target..target + bytes].copy_from_slice(&from[source..source + bytes]);
    }
    if memory.write(to, &stat) { Ok(()) } else { Err(EFAULT) }
}
