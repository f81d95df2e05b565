//! Converts MIPS n64 system calls to LoongArch's: numbers, arguments, structures. Source: Linux
//! arch/mips/kernel/syscalls/syscall_n64.tbl, arch/mips/include/uapi/asm; `calls.tsv`.

use std::sync::LazyLock;

use super::numbers;
use longma_translate::calls::{Calls, fetch, store, to_older_directory_entries, word};
use longma_translate::front_end::{self, UserMemory};

/// The engine's action for a system call.
pub type SyscallAction = front_end::SyscallAction<ResultConversion>;

/// How to convert the result of a system call. Variants for structures with two addresses convert from the first to the
/// second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultConversion {
    /// No conversion.
    Nothing,
    /// Convert `struct stat`.
    Stat(u64, u64),
    /// Convert the `struct statfs` at this address.
    FileSystem(u64),
    /// Convert `struct sigaction`.
    Action(u64, u64),
    /// Convert a signal set.
    Set(u64, u64),
    /// Convert `stack_t`.
    Stack(u64, u64),
    /// Convert the child status at this address.
    Status(u64),
    /// Convert the open flags in the result.
    Flags,
    /// Return this value.
    Replaced(u64),
    /// Convert the remaining time of select(2).
    Limit(u64, u64),
    /// Convert the directory entries at this address.
    Entries(u64),
    /// Return the two descriptors at this address as two results.
    Pair(u64),
    /// Set the machine name in the `struct utsname` at this address.
    Machine(u64),
    /// Code in this range (address, length) may have changed.
    Mapped(u64, u64),
    /// Code may have changed in the range of this length that starts at the result.
    Placed(u64),
    /// Convert the signal number in the result.
    Signal,
    /// Convert the socket type at this address.
    SocketType(u64),
    /// Convert `siginfo_t`.
    Information(u64, u64),
    /// Convert `siginfo_t` and the signal number in the result.
    Waited(u64, u64),
}

const EFAULT: u64 = 14;
const EINVAL: u64 = 22;
const ENOTTY: u64 = 25;
const ENOSYS: u64 = 38;
const AT_FDCWD: u64 = -100i64 as u64;
const F_GETFD: u64 = 1;
const SIGCHLD: u64 = 17;
const FIRST: u64 = 5000;
/// MIPS real-time signals without a generic counterpart.
const MIPS_ONLY_SIGNALS: std::ops::RangeInclusive<u64> = 65..=128;
/// Scratch space for converted structures, in bytes.
pub(super) const CALL_BUFFER_BYTES: u64 = 1024;

static CALLS: LazyLock<Calls> = LazyLock::new(|| Calls::parse(include_str!("calls.tsv"), FIRST));

/// The name of a system call, if the number is defined.
pub fn name(number: u64) -> Option<&'static str> {
    CALLS.find(number).map(|(name, _)| name)
}

/// The generic number of newfstatat. `calls.tsv` does not map the MIPS call to it because `struct stat` differs.
const NEWFSTATAT: u64 = 79;

fn generic(name: &str) -> u64 {
    CALLS.generic(name).unwrap_or(u64::MAX)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Converts MIPS system call `number`. Converted structures are placed at `buffer`.
pub fn prepare(number: u64, arguments: [u64; 6], buffer: u64, memory: &dyn UserMemory) -> SyscallAction {
    let Some((name, generic)) = CALLS.find(number) else { return SyscallAction::Done(Err(ENOSYS)) };
    let call = Call { arguments, buffer, memory };
    let converted = call.of_files(name).or_else(|| call.of_memory(name)).or_else(|| call.of_signals(name));
    let converted = converted.or_else(|| call.of_sockets(name)).or_else(|| call.of_waiting(name));
    match (converted, generic) {
        (Some(step), _) => step.unwrap_or_else(|error| SyscallAction::Done(Err(error))),
        (None, Some(number)) => SyscallAction::Call(number, arguments, ResultConversion::Nothing),
        (None, None) => SyscallAction::Done(Err(ENOSYS)),
    }
}

/// A system call under conversion.
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
        let [a, b, c, d, e, f] = self.arguments;
        let at = |name: &str, rest: [u64; 5]| {
            let [p, q, r, s, t] = rest;
            call(name, [AT_FDCWD, p, q, r, s, t], ResultConversion::Nothing)
        };
        let stat = |descriptor, path, flags| {
            Some(Ok(SyscallAction::Call(
                NEWFSTATAT,
                [descriptor, path, self.buffer, flags, 0, 0],
                ResultConversion::Stat(self.buffer, b),
            )))
        };
        match name {
            "open" => at("openat", [a, numbers::open_flags(b), c, 0, 0]),
            "creat" => at("openat", [a, 0x241, b, 0, 0]),
            "openat" => call(name, [a, b, numbers::open_flags(c), d, e, f], ResultConversion::Nothing),
            "stat" => stat(AT_FDCWD, a, 0),
            "lstat" => stat(AT_FDCWD, a, 0x100),
            "fstat" => call(name, [a, self.buffer, 0, 0, 0, 0], ResultConversion::Stat(self.buffer, b)),
            "newfstatat" => Some(Ok(SyscallAction::Call(
                NEWFSTATAT,
                [a, b, self.buffer, d, 0, 0],
                ResultConversion::Stat(self.buffer, c),
            ))),
            "statfs" | "fstatfs" => call(name, self.arguments, ResultConversion::FileSystem(b)),
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
            "pipe" => call("pipe2", [self.buffer, 0, 0, 0, 0, 0], ResultConversion::Pair(self.buffer)),
            "pipe2" => call(name, [a, numbers::open_flags(b), 0, 0, 0, 0], ResultConversion::Nothing),
            "getdents" => call("getdents64", [a, b, c, 0, 0, 0], ResultConversion::Entries(b)),
            "dup2" if a as u32 == b as u32 => {
                call("fcntl", [a, F_GETFD, 0, 0, 0, 0], ResultConversion::Replaced(u64::from(a as u32)))
            }
            "dup2" => call("dup3", [a, b, 0, 0, 0, 0], ResultConversion::Nothing),
            "dup3" => call(name, [a, b, numbers::open_flags(c), 0, 0, 0], ResultConversion::Nothing),
            "fcntl" => self.control(),
            "ioctl" => match numbers::request(b) {
                Some(request) => call(name, [a, request, c, 0, 0, 0], ResultConversion::Nothing),
                None => Some(Err(ENOTTY)),
            },
            "eventfd" => call("eventfd2", [a, 0, 0, 0, 0, 0], ResultConversion::Nothing),
            "eventfd2" | "timerfd_create" => {
                call(name, [a, numbers::open_flags(b), 0, 0, 0, 0], ResultConversion::Nothing)
            }
            "inotify_init" => call("inotify_init1", [0; 6], ResultConversion::Nothing),
            "inotify_init1" => call(name, [numbers::open_flags(a), 0, 0, 0, 0, 0], ResultConversion::Nothing),
            "epoll_create" if a as i32 <= 0 => Some(Err(EINVAL)),
            "epoll_create" => call("epoll_create1", [0; 6], ResultConversion::Nothing),
            "newuname" | "uname" => call("uname", self.arguments, ResultConversion::Machine(a)),
            _ => None,
        }
    }

    fn control(&self) -> Found {
        let [a, b, c, ..] = self.arguments;
        const TO_OTHERS: [(u64, u64); 5] = [(14, 5), (6, 6), (7, 7), (24, 8), (23, 9)];
        let command = TO_OTHERS.iter().find(|(mips, _)| *mips == b).map_or(b, |(_, other)| *other);
        let (argument, conversion) = match b {
            3 => (c, ResultConversion::Flags),
            4 => (numbers::open_flags(c), ResultConversion::Nothing),
            10 => (numbers::signal_from_mips(c), ResultConversion::Nothing),
            11 => (c, ResultConversion::Signal),
            _ => (c, ResultConversion::Nothing),
        };
        call("fcntl", [a, command, argument, 0, 0, 0], conversion)
    }

    fn of_memory(&self, name: &str) -> Found {
        let [a, b, c, d, e, f] = self.arguments;
        match name {
            "mmap" => call(name, [a, b, c, numbers::map_flags(d), e, f], ResultConversion::Placed(b)),
            "munmap" | "mprotect" => call(name, self.arguments, ResultConversion::Mapped(a, b)),
            "mremap" => call(name, self.arguments, ResultConversion::Mapped(a, b)),
            "cacheflush" => Some(Ok(SyscallAction::Flush(a, b))),
            "cachectl" => Some(Ok(SyscallAction::Done(Ok(0)))),
            "set_thread_area" => Some(Ok(SyscallAction::ThreadPointer(a))),
            "getrlimit" => {
                call("prlimit64", [0, numbers::resource(a), 0, b, 0, 0], ResultConversion::Nothing)
            }
            "setrlimit" => {
                call("prlimit64", [0, numbers::resource(a), b, 0, 0, 0], ResultConversion::Nothing)
            }
            "prlimit64" => call(name, [a, numbers::resource(b), c, d, 0, 0], ResultConversion::Nothing),
            "clone" => {
                let flags = a & !0xff | numbers::signal_from_mips(a & 0xff) & 0xff;
                // MIPS passes the thread pointer before the child's ID.
                call(name, [flags, b, c, e, d, 0], ResultConversion::Nothing)
            }
            // Its structure contains the child's exit signal. C libraries fall back to clone.
            "clone3" => Some(Err(ENOSYS)),
            "fork" => call("clone", [SIGCHLD, 0, 0, 0, 0, 0], ResultConversion::Nothing),
            _ => None,
        }
    }

    fn of_signals(&self, name: &str) -> Found {
        let [a, b, c, d, e, _] = self.arguments;
        let signal = numbers::signal_from_mips;
        match name {
            "rt_sigaction" => Some(self.action()),
            "rt_sigprocmask" => Some(self.mask_change()),
            "rt_sigpending" => {
                call(name, [self.buffer, 8, 0, 0, 0, 0], ResultConversion::Set(self.buffer, a))
            }
            "rt_sigsuspend" => Some(self.set(a).map(|set| {
                SyscallAction::Call(generic(name), [set, 8, 0, 0, 0, 0], ResultConversion::Nothing)
            })),
            "rt_sigtimedwait" => {
                let info = if b == 0 { 0 } else { self.buffer };
                let conversion =
                    if b == 0 { ResultConversion::Signal } else { ResultConversion::Waited(self.buffer, b) };
                Some(
                    self.set(a)
                        .map(|set| SyscallAction::Call(generic(name), [set, info, c, 8, 0, 0], conversion)),
                )
            }
            "rt_sigreturn" => Some(Ok(SyscallAction::SignalReturn)),
            "sigaltstack" => Some(self.alternate_stack()),
            "kill" | "tkill" => call(name, [a, signal(b), 0, 0, 0, 0], ResultConversion::Nothing),
            "tgkill" => call(name, [a, b, signal(c), 0, 0, 0], ResultConversion::Nothing),
            "rt_sigqueueinfo" => Some(self.queued(b, c).map(|info| {
                SyscallAction::Call(generic(name), [a, signal(b), info, 0, 0, 0], ResultConversion::Nothing)
            })),
            "rt_tgsigqueueinfo" => Some(self.queued(c, d).map(|info| {
                SyscallAction::Call(generic(name), [a, b, signal(c), info, 0, 0], ResultConversion::Nothing)
            })),
            "waitid" => {
                let info = if c == 0 { 0 } else { self.buffer };
                let conversion = if c == 0 {
                    ResultConversion::Nothing
                } else {
                    ResultConversion::Information(self.buffer, c)
                };
                call(name, [a, b, info, d, e, 0], conversion)
            }
            "timer_create" if b != 0 => Some(self.event(b).map(|event| {
                SyscallAction::Call(generic(name), [a, event, c, 0, 0, 0], ResultConversion::Nothing)
            })),
            "wait4" => call(name, self.arguments, ResultConversion::Status(b)),
            "pause" => call("ppoll", [0; 6], ResultConversion::Nothing),
            _ => None,
        }
    }

    /// Converts the signal set at `address` and stores it in the scratch space.
    fn set(&self, address: u64) -> Result<u64, u64> {
        let set = u64::from_le_bytes(fetch(self.memory, address)?);
        let copy_address = self.buffer + 256;
        store(self.memory, copy_address, &[numbers::set_from_mips(set)])?;
        Ok(copy_address)
    }

    /// Converts the `siginfo_t` at `address` and stores it in the scratch space. The offsets of si_errno and si_code
    /// differ.
    fn queued(&self, signal: u64, address: u64) -> Result<u64, u64> {
        let mut info: [u8; 128] = fetch(self.memory, address)?;
        info[..4].copy_from_slice(&(signal as u32).to_le_bytes());
        information_from_mips(&mut info);
        if self.memory.write(self.buffer, &info) { Ok(self.buffer) } else { Err(EFAULT) }
    }

    /// Converts the `struct sigevent` at `address` and stores it in the scratch space.
    fn event(&self, address: u64) -> Result<u64, u64> {
        let mut event: [u8; 64] = fetch(self.memory, address)?;
        let signal = numbers::signal_from_mips(half(&event, 8).into());
        event[8..12].copy_from_slice(&(signal as u32).to_le_bytes());
        if self.memory.write(self.buffer, &event) { Ok(self.buffer) } else { Err(EFAULT) }
    }

    fn action(&self) -> Result<SyscallAction, u64> {
        let [signal, new, old, size, ..] = self.arguments;
        if size != 16 {
            return Err(EINVAL);
        }
        if MIPS_ONLY_SIGNALS.contains(&signal) {
            // These signals never arrive, so the action is ignored.
            if new != 0 {
                fetch::<32>(self.memory, new)?;
            }
            if old != 0 {
                store(self.memory, old, &[0; 4])?;
            }
            return Ok(SyscallAction::Done(Ok(0)));
        }
        let (new_action, old_action) = (self.buffer, self.buffer + 32);
        if new != 0 {
            let bytes: [u8; 32] = fetch(self.memory, new)?;
            let flags = action_flags(half(&bytes, 0).into(), false);
            store(
                self.memory,
                new_action,
                &[word(&bytes, 8), flags, numbers::set_from_mips(word(&bytes, 16))],
            )?;
        }
        let buffer_or_null = |address, copy| if address == 0 { 0 } else { copy };
        let arguments = [
            numbers::signal_from_mips(signal),
            buffer_or_null(new, new_action),
            buffer_or_null(old, old_action),
            8,
            0,
            0,
        ];
        let conversion =
            if old == 0 { ResultConversion::Nothing } else { ResultConversion::Action(old_action, old) };
        Ok(SyscallAction::Call(generic("rt_sigaction"), arguments, conversion))
    }

    fn mask_change(&self) -> Result<SyscallAction, u64> {
        let [how, new, old, size, ..] = self.arguments;
        if size != 16 {
            return Err(EINVAL);
        }
        let set = if new == 0 { 0 } else { self.set(new)? };
        let old_mask = if old == 0 { 0 } else { self.buffer };
        let conversion =
            if old == 0 { ResultConversion::Nothing } else { ResultConversion::Set(self.buffer, old) };
        // On MIPS, the values start with SIG_BLOCK = 1.
        let how = if new == 0 { 0 } else { how.wrapping_sub(1) };
        Ok(SyscallAction::Call(generic("rt_sigprocmask"), [how, set, old_mask, 8, 0, 0], conversion))
    }

    fn alternate_stack(&self) -> Result<SyscallAction, u64> {
        let [new, old, ..] = self.arguments;
        if new != 0 {
            let bytes: [u8; 24] = fetch(self.memory, new)?;
            let (size, flags) = (word(&bytes, 8), half(&bytes, 16));
            store(self.memory, self.buffer, &[word(&bytes, 0), flags.into(), size])?;
        }
        let (new_stack, old_stack) = (self.buffer, self.buffer + 32);
        let buffer_or_null = |address, copy| if address == 0 { 0 } else { copy };
        let conversion =
            if old == 0 { ResultConversion::Nothing } else { ResultConversion::Stack(old_stack, old) };
        Ok(SyscallAction::Call(
            generic("sigaltstack"),
            [buffer_or_null(new, new_stack), buffer_or_null(old, old_stack), 0, 0, 0, 0],
            conversion,
        ))
    }

    fn of_sockets(&self, name: &str) -> Found {
        let [a, b, c, d, e, _] = self.arguments;
        match name {
            "socket" => call(name, [a, numbers::socket_type(b), c, 0, 0, 0], ResultConversion::Nothing),
            "socketpair" => call(name, [a, numbers::socket_type(b), c, d, 0, 0], ResultConversion::Nothing),
            "accept4" => call(name, [a, b, c, numbers::open_flags(d), 0, 0], ResultConversion::Nothing),
            "setsockopt" | "getsockopt" => {
                let (level, option) = numbers::socket_option(b, c);
                let is_type = name == "getsockopt" && (level, option) == (1, 3);
                let conversion =
                    if is_type { ResultConversion::SocketType(d) } else { ResultConversion::Nothing };
                call(name, [a, level, option, d, e, 0], conversion)
            }
            _ => None,
        }
    }

    /// Converts system calls with a timeout or a signal set.
    fn of_waiting(&self, name: &str) -> Found {
        let [a, b, c, d, e, f] = self.arguments;
        let milliseconds = |limit: u64| {
            let limit = limit as i32;
            if limit < 0 {
                return Ok(0);
            }
            let timeout_address = self.buffer + 512;
            store(self.memory, timeout_address, &[limit as u64 / 1000, limit as u64 % 1000 * 1_000_000])?;
            Ok(timeout_address)
        };
        let step = |name: &str, arguments| {
            Ok(SyscallAction::Call(generic(name), arguments, ResultConversion::Nothing))
        };
        let mask = |address: u64| if address == 0 { Ok(0) } else { self.set(address) };
        Some(match name {
            "poll" => milliseconds(c).and_then(|limit| step("ppoll", [a, b, limit, 0, 8, 0])),
            "ppoll" => mask(d).and_then(|mask| step(name, [a, b, c, mask, 8, 0])),
            "epoll_wait" => step("epoll_pwait", [a, b, c, d, 0, 8]),
            "epoll_pwait" => mask(e).and_then(|mask| step(name, [a, b, c, d, mask, 8])),
            "_newselect" => self.select(),
            "pselect6" if f != 0 => fetch::<16>(self.memory, f).and_then(|bytes| {
                let set = mask(word(&bytes, 0))?;
                store(self.memory, self.buffer, &[set, 8])?;
                step(name, [a, b, c, d, e, self.buffer])
            }),
            "signalfd4" => mask(b).and_then(|set| step(name, [a, set, 8, numbers::open_flags(d), 0, 0])),
            "alarm" => Err(ENOSYS),
            "getpgrp" => step("getpgid", [0; 6]),
            _ => return None,
        })
    }

    /// select(2), whose timeout is in microseconds.
    fn select(&self) -> Result<SyscallAction, u64> {
        let [count, read, write, except, limit, _] = self.arguments;
        let timeout_address = self.buffer + 512;
        if limit != 0 {
            let bytes: [u8; 16] = fetch(self.memory, limit)?;
            // More than a million microseconds are seconds, too.
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

/// Converts `sa_flags`: SA_NOCLDWAIT and SA_SIGINFO have different values.
fn action_flags(flags: u64, to_mips: bool) -> u64 {
    const PAIRS: [(u64, u64); 2] = [(0x1_0000, 2), (8, 4)];
    let rest = flags & !(0x1_0000 | 2 | 8 | 4);
    let pair = |(mips, other)| if to_mips { (other, mips) } else { (mips, other) };
    PAIRS
        .iter()
        .map(|entry| pair(*entry))
        .fold(rest, |sum, (from, to)| if flags & from != 0 { sum | to } else { sum })
}

/// si_code values that differ: the MIPS value and the generic value of SI_TIMER, SI_MESGQ and SI_ASYNCIO.
const CODES: [(u32, u32); 3] =
    [(-3i32 as u32, -2i32 as u32), (-4i32 as u32, -3i32 as u32), (-2i32 as u32, -4i32 as u32)];
/// SIGCHLD, generic number.
const CHILD: u32 = SIGCHLD as u32;
/// CLD_KILLED to CLD_STOPPED: si_status is a signal.
const ENDED_BY_SIGNAL: std::ops::RangeInclusive<u32> = 2..=5;

fn put_half(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Converts a `siginfo_t` to MIPS. si_errno and si_code are swapped; some codes and the signal numbers differ.
pub(super) fn information_to_mips(info: &mut [u8; 128]) {
    let (signal, error, code) = (half(info, 0), half(info, 4), half(info, 8));
    if signal == CHILD && ENDED_BY_SIGNAL.contains(&code) {
        let status = numbers::signal_to_mips(half(info, 24).into());
        put_half(info, 24, status as u32);
    }
    put_half(info, 0, numbers::signal_to_mips(signal.into()) as u32);
    put_half(info, 4, CODES.iter().find(|(_, other)| *other == code).map_or(code, |(mips, _)| *mips));
    put_half(info, 8, error);
}

/// Converts a `siginfo_t` in MIPS layout, which the program passes to send a signal, to the generic layout.
fn information_from_mips(info: &mut [u8; 128]) {
    let (signal, code, error) = (half(info, 0), half(info, 4), half(info, 8));
    put_half(info, 0, numbers::signal_from_mips(signal.into()) as u32);
    put_half(info, 4, error);
    put_half(info, 8, CODES.iter().find(|(mips, _)| *mips == code).map_or(code, |(_, other)| *other));
}

/// Converts the result of a system call. The second value is the second result of pipe(2).
///
/// # Errors
/// Returns the generic error number.
pub fn finish(
    conversion: ResultConversion,
    result: u64,
    memory: &dyn UserMemory,
) -> Result<(u64, Option<u64>), u64> {
    match conversion {
        ResultConversion::Stat(from, to) => write_stat(&fetch(memory, from)?, to, memory)?,
        ResultConversion::FileSystem(at) => write_file_system(at, memory)?,
        ResultConversion::Action(from, to) => {
            let bytes: [u8; 24] = fetch(memory, from)?;
            let flags = action_flags(word(&bytes, 8), true);
            store(memory, to, &[flags, word(&bytes, 0), numbers::set_to_mips(word(&bytes, 16)), 0])?;
        }
        ResultConversion::Set(from, to) => {
            let set = u64::from_le_bytes(fetch(memory, from)?);
            store(memory, to, &[numbers::set_to_mips(set), 0])?;
        }
        ResultConversion::Stack(from, to) => {
            let bytes: [u8; 24] = fetch(memory, from)?;
            store(memory, to, &[word(&bytes, 0), word(&bytes, 16), half(&bytes, 8).into()])?;
        }
        ResultConversion::Replaced(value) => return Ok((value, None)),
        ResultConversion::Limit(from, to) => {
            let left: [u8; 16] = fetch(memory, from)?;
            store(memory, to, &[word(&left, 0), word(&left, 8) / 1000])?;
        }
        ResultConversion::Entries(at) => to_older_directory_entries(memory, at, result)?,
        ResultConversion::SocketType(at) => {
            let kind = u64::from(u32::from_le_bytes(fetch(memory, at)?));
            let written = memory.write(at, &(numbers::socket_type(kind) as u32).to_le_bytes());
            return if written { Ok((result, None)) } else { Err(EFAULT) };
        }
        ResultConversion::Status(at) if at != 0 && result != 0 => write_status(at, memory)?,
        ResultConversion::Information(from, to) | ResultConversion::Waited(from, to) => {
            let mut info: [u8; 128] = fetch(memory, from)?;
            information_to_mips(&mut info);
            if !memory.write(to, &info) {
                return Err(EFAULT);
            }
            if let ResultConversion::Waited(..) = conversion {
                return Ok((numbers::signal_to_mips(result), None));
            }
        }
        ResultConversion::Flags => return Ok((numbers::open_flags_to_mips(result), None)),
        ResultConversion::Signal => return Ok((numbers::signal_to_mips(result), None)),
        ResultConversion::Pair(at) => {
            let bytes: [u8; 8] = fetch(memory, at)?;
            return Ok((half(&bytes, 0).into(), Some(half(&bytes, 4).into())));
        }
        ResultConversion::Machine(at) if !memory.write(at.wrapping_add(4 * 65), b"mips64\0") => {
            return Err(EFAULT);
        }
        _ => {}
    }
    Ok((result, None))
}

fn write_stat(from: &[u8; 128], to: u64, memory: &dyn UserMemory) -> Result<(), u64> {
    let mut stat = [0; 104];
    // The offset in the generic structure, the offset in the MIPS structure, and the size of each field.
    const FIELDS: [(usize, usize, usize); 16] = [
        (0, 0, 4),
        (8, 16, 8),
        (16, 24, 4),
        (20, 28, 4),
        (24, 32, 4),
        (28, 36, 4),
        (32, 40, 4),
        (48, 56, 8),
        (72, 64, 4),
        (80, 68, 4),
        (88, 72, 4),
        (96, 76, 4),
        (104, 80, 4),
        (112, 84, 4),
        (56, 88, 4),
        (64, 96, 8),
    ];
    for (source, target, bytes) in FIELDS {
        stat[target..target + bytes].copy_from_slice(&from[source..source + bytes]);
    }
    if memory.write(to, &stat) { Ok(()) } else { Err(EFAULT) }
}

fn write_file_system(at: u64, memory: &dyn UserMemory) -> Result<(), u64> {
    let bytes: [u8; 88] = fetch(memory, at)?;
    // MIPS order: type, block size, fragment size, blocks, free, files, files free, available, id, name length, flags.
    const ORDER: [usize; 11] = [0, 1, 9, 2, 3, 5, 6, 4, 7, 8, 10];
    let words: Vec<u64> = ORDER.iter().map(|index| word(&bytes, 8 * index)).collect();
    store(memory, at, &words)
}

/// Converts the signal numbers in a child status to MIPS.
fn write_status(at: u64, memory: &dyn UserMemory) -> Result<(), u64> {
    let status = u64::from(u32::from_le_bytes(fetch(memory, at)?));
    let (low, high) = (status & 0x7f, status >> 8 & 0xff);
    let converted = match low {
        0 => status,
        0x7f => status & !0xff00 | numbers::signal_to_mips(high) << 8,
        signal => status & !0x7f | numbers::signal_to_mips(signal),
    };
    if memory.write(at, &(converted as u32).to_le_bytes()) { Ok(()) } else { Err(EFAULT) }
}
