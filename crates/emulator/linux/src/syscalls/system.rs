//! System calls on system information, limits and identities. Source: uname(2), prctl(2), prlimit(2), personality(2),
//! getgroups(2).

use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::GuestMemory;
use longma_guest::host::descriptors::{self, Limit};
use longma_guest::host::{host_call, resources};
use longma_guest::words::{bytes_of, words_of};

use crate::Thread;
use crate::arguments::{Argument, Arguments, EINVAL, Returned, buffer, with_results};
use crate::fixed_identity::{SYSTEM, USER};
use crate::load;
use crate::process::{is_own_task, soft_of};

/// The size of a field of `struct new_utsname`.
const NAME_BYTES: usize = 65;
const MACHINE: &[u8] = b"loongarch64";
/// The minimum release reported: LoongArch was added in 5.19, and guests derive features from the release.
const MIN_RELEASE: (u32, u32) = (5, 19);

pub(super) fn uname(thread: &mut Thread, [result, ..]: Arguments) -> Returned {
    if thread.process.fixed_identity.is_some() {
        let [node, release, version, domain] = SYSTEM.map(str::as_bytes);
        return write_names(thread, result, [b"Linux", node, release, version, MACHINE, domain]);
    }
    // SAFETY: `libc::utsname` is plain data.
    let mut host: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is live.
    unsafe { host_call(libc::SYS_uname, [(&raw mut host) as u64, 0, 0, 0, 0, 0]) }?;
    let text = |field: &[libc::c_char; NAME_BYTES]| {
        // SAFETY: the host terminates its strings.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_bytes().to_vec()
    };
    let [system, node, version, domain] =
        [&host.sysname, &host.nodename, &host.version, &host.domainname].map(text);
    write_names(thread, result, [&system, &node, &release(&text(&host.release)), &version, MACHINE, &domain])
}

/// Writes a `struct new_utsname`.
fn write_names(thread: &Thread, result: u64, fields: [&[u8]; 6]) -> Returned {
    let mut bytes = [0; 6 * NAME_BYTES];
    for (field, slot) in fields.iter().zip(bytes.chunks_mut(NAME_BYTES)) {
        slot[..field.len()].copy_from_slice(field);
    }
    thread.process.memory().write(result, &bytes)?;
    Ok(0)
}

/// getuid, geteuid, getgid and getegid: the host's id, or the constant one.
pub(super) fn identity(thread: &Thread, call: i64) -> Returned {
    match &thread.process.fixed_identity {
        Some(_) => Ok(USER),
        // SAFETY: the call takes no pointers.
        None => unsafe { host_call(call, [0; 6]) },
    }
}

/// getresuid and getresgid: the host's ids, or the constant one three times.
pub(super) fn identities(thread: &Thread, call: i64, [a, b, c, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let addresses = [a, b, c];
    if thread.process.fixed_identity.is_some() {
        addresses.iter().try_for_each(|slot| memory.store(*slot, USER as u32))?;
        return Ok(0);
    }
    with_results(memory, |results| {
        let mut host = [0; 6];
        for (slot, address) in host.iter_mut().zip(addresses) {
            *slot = results.structure(address, 4)?;
        }
        // SAFETY: the pointers are null, or into the reservation or `results`.
        unsafe { host_call(call, host) }
    })
}

fn release(host: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(host);
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= MIN_RELEASE { host.to_vec() } else { b"5.19.0".to_vec() }
}

/// The prctl options that are forwarded to the host, and the kind of the second argument. Further arguments are
/// numbers.
const OPTIONS: &[(i32, Argument)] = &[
    (libc::PR_SET_PDEATHSIG, Argument::Number),
    (libc::PR_GET_PDEATHSIG, Argument::Out(4)),
    (libc::PR_GET_DUMPABLE, Argument::Number),
    (libc::PR_SET_DUMPABLE, Argument::Number),
    (libc::PR_GET_KEEPCAPS, Argument::Number),
    (libc::PR_SET_KEEPCAPS, Argument::Number),
    (libc::PR_SET_NAME, Argument::In(16)),
    (libc::PR_GET_NAME, Argument::Out(16)),
    (libc::PR_CAPBSET_READ, Argument::Number),
    (libc::PR_CAPBSET_DROP, Argument::Number),
    (libc::PR_GET_SECUREBITS, Argument::Number),
    (libc::PR_SET_TIMERSLACK, Argument::Number),
    (libc::PR_GET_TIMERSLACK, Argument::Number),
    (libc::PR_SET_CHILD_SUBREAPER, Argument::Number),
    (libc::PR_GET_CHILD_SUBREAPER, Argument::Out(4)),
    (libc::PR_SET_NO_NEW_PRIVS, Argument::Number),
    (libc::PR_GET_NO_NEW_PRIVS, Argument::Number),
    (libc::PR_SET_THP_DISABLE, Argument::Number),
    (libc::PR_GET_THP_DISABLE, Argument::Number),
    (libc::PR_CAP_AMBIENT, Argument::Number),
    (libc::PR_SET_PTRACER, Argument::Number),
];

/// The options whose effect a checkpoint does not contain.
const UNCAPTURED_OPTIONS: &[i32] = &[
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_DUMPABLE,
    libc::PR_SET_KEEPCAPS,
    libc::PR_CAPBSET_DROP,
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_CHILD_SUBREAPER,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_SET_THP_DISABLE,
    libc::PR_CAP_AMBIENT,
];

pub(super) fn prctl(thread: &mut Thread, arguments: Arguments) -> Returned {
    let memory = thread.process.memory();
    let [option, value, ..] = arguments;
    match option as i32 {
        libc::PR_GET_TID_ADDRESS => {
            memory.store(value, thread.clear_child_tid)?;
            return Ok(0);
        }
        libc::PR_GET_SECCOMP => return Ok(0),
        libc::PR_SET_MM => return Err(Errno(libc::EPERM)),
        _ => {}
    }
    let (_, kind) = OPTIONS.iter().find(|(known, _)| *known == option as i32).ok_or(EINVAL)?;
    with_results(memory, |results| {
        let mut host = arguments;
        host[1] = kind.for_host(results, value)?;
        // SAFETY: numbers, or a pointer into the reservation or `results`. The options change nothing on which the
        // emulator relies.
        unsafe { host_call(libc::SYS_prctl, host) }
    })
    .inspect(|_| {
        if UNCAPTURED_OPTIONS.contains(&(option as i32)) {
            thread.process.record_uncaptured("set attributes with prctl");
        }
    })
}

pub(super) fn prlimit64(thread: &mut Thread, [process, resource, new, old, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let is_own_process = process as i32 == 0 || is_own_task(process as i32);
    if is_own_process && resource as u32 == resources::NOFILE {
        return limit_files(memory, new, old);
    }
    if !is_own_process && is_guest(process) {
        match resource as u32 {
            resources::NOFILE => return limit_files_of_process(memory, process, new, old),
            // The host would enforce the limit on the other process's emulator, which uses far more.
            resources::AS | resources::DATA if new != 0 => return Err(Errno(libc::EPERM)),
            _ => {}
        }
    }
    let is_stack = is_own_process && resource as u32 == resources::STACK;
    let soft = if is_stack && new != 0 { Some(memory.load::<u64>(new)?) } else { None };
    let returned = match stored_limit_default(thread, resource as u32).filter(|_| is_own_process) {
        Some(unset) => store_limit(thread, resource as u32, unset, new, old),
        None => {
            let returned = with_results(memory, |results| {
                let (at, old_at) = (buffer(memory, new, 16)?, results.structure(old, 16)?);
                // SAFETY: the pointers are null, or into the reservation or `results`.
                unsafe { host_call(libc::SYS_prlimit64, [process, resource, at, old_at, 0, 0]) }
            })?;
            match constant_limit(thread, resource as u32).filter(|_| is_own_process) {
                // The host enforces the guest's limit, but the former value is the constant one.
                Some(unset) => store_limit(thread, resource as u32, unset, new, old).map(|_| returned),
                None => Ok(returned),
            }
        }
    }?;
    if let Some(bytes) = soft {
        load::raise_stack(&thread.process.space, &thread.process.stack, bytes);
    }
    Ok(returned)
}

/// The initial value of a limit that the host does not enforce; `None` for limits that the host enforces.
fn stored_limit_default(thread: &Thread, resource: u32) -> Option<(u64, u64)> {
    match resource {
        resources::AS | resources::DATA => Some((libc::RLIM_INFINITY, libc::RLIM_INFINITY)),
        // Equal on all hosts, like the stack.
        resources::STACK if thread.process.config.fixed_identity => {
            Some((load::DEFAULT_STACK_BYTES, libc::RLIM_INFINITY))
        }
        _ => None,
    }
}

/// The initial value of an enforced limit in simulated runs: the Linux default.
fn constant_limit(thread: &Thread, resource: u32) -> Option<(u64, u64)> {
    const NONE: u64 = libc::RLIM_INFINITY;
    if !thread.process.config.fixed_identity {
        return None;
    }
    match resource {
        resources::CORE => Some((0, NONE)),
        resources::MEMLOCK => Some((8 << 20, 8 << 20)),
        resources::MSGQUEUE => Some((819_200, 819_200)),
        resources::NICE | resources::RTPRIO => Some((0, 0)),
        resources::CPU | resources::FSIZE | resources::LOCKS | resources::RSS | resources::RTTIME => {
            Some((NONE, NONE))
        }
        resources::NPROC | resources::SIGPENDING => Some((63_448, 63_448)),
        _ => None,
    }
}

fn store_limit(thread: &Thread, resource: u32, unset: (u64, u64), new: u64, old: u64) -> Returned {
    let memory = thread.process.memory();
    let mut limits = thread.process.limits.lock();
    let now = limits.get(&resource).copied().unwrap_or(unset);
    if let Some(new) = memory.read_optional::<16>(new)? {
        let [soft, hard] = words_of(&new);
        let requested = (soft, hard);
        if requested.0 > requested.1 {
            return Err(EINVAL);
        }
        // SAFETY: geteuid takes no arguments and cannot fail.
        if requested.1 > now.1 && unsafe { libc::geteuid() } != 0 {
            return Err(Errno(libc::EPERM));
        }
        limits.insert(resource, requested);
        thread.process.space.set_quota(soft_of(&limits, resources::AS), soft_of(&limits, resources::DATA));
    }
    memory.write_optional(old, &bytes_of::<16>(&[now.0, now.1]))?;
    Ok(0)
}

/// The limit of open files. The emulator's descriptors are above it.
fn limit_files(memory: &GuestMemory, new: u64, old: u64) -> Returned {
    let previous = descriptors::limit();
    if let Some(new) = memory.read_optional::<16>(new)? {
        let [soft, hard] = words_of(&new);
        descriptors::set_limit(Limit { soft, hard })?;
    }
    memory.write_optional(old, &bytes_of::<16>(&[previous.soft, previous.hard]))?;
    Ok(0)
}

/// Whether the process is another instance of this emulator.
fn is_guest(process: u64) -> bool {
    let file = |path: &str| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let own_executable = file("/proc/self/exe");
    own_executable.is_some() && own_executable == file(&format!("/proc/{}/exe", process as i32))
}

fn limit_files_of_process(memory: &GuestMemory, process: u64, new: u64, old: u64) -> Returned {
    let new = memory.read_optional::<16>(new)?.map(|new| {
        let [soft, hard] = words_of(&new);
        Limit { soft, hard }
    });
    let previous = descriptors::limit_of_process(process, new)?;
    memory.write_optional(old, &bytes_of::<16>(&[previous.soft, previous.hard]))?;
    Ok(0)
}

pub(super) fn personality(_: &mut Thread, [wanted, ..]: Arguments) -> Returned {
    // PER_LINUX is the only supported personality. Its flags (such as no address randomisation) are already in effect
    // or have no effect.
    if wanted as u32 == u32::MAX || wanted & 0xff == 0 { Ok(0) } else { Err(EINVAL) }
}

const MAX_GROUPS: u64 = 65536;

pub(super) fn getgroups(thread: &mut Thread, [count, list, ..]: Arguments) -> Returned {
    if thread.process.fixed_identity.is_some() {
        return match count as i32 {
            0 => Ok(1),
            1.. => thread.process.memory().store(list, USER as u32).map(|()| 1).map_err(Into::into),
            _ => Err(EINVAL),
        };
    }
    let capacity = u64::from(count as u32).min(MAX_GROUPS);
    with_results(thread.process.memory(), |results| {
        let list = if capacity == 0 { 0 } else { results.structure(list, 4 * capacity)? };
        // SAFETY: the list has as many entries as the count, or the count is negative or zero.
        unsafe {
            host_call(libc::SYS_getgroups, [if capacity == 0 { count } else { capacity }, list, 0, 0, 0, 0])
        }
    })
}

/// setuid(2) and related calls with `count` ids. The simulated user has no host identity, so it can only keep its ids.
pub(super) fn set_ids(thread: &Thread, call: i64, ids: Arguments, count: usize) -> Returned {
    if thread.process.fixed_identity.is_none() {
        // SAFETY: the calls take no pointers.
        return unsafe { host_call(call, ids) };
    }
    let ids = &ids[..count];
    let keeps_ids = ids.iter().all(|&id| id as u32 == USER as u32 || count > 1 && id as u32 == u32::MAX);
    match keeps_ids {
        true => Ok(0),
        false if count == 1 && ids[0] as u32 == u32::MAX => Err(EINVAL),
        false => Err(Errno(libc::EPERM)),
    }
}

/// setfsuid(2) and setfsgid(2), which return the former id and never fail.
pub(super) fn set_file_system_id(thread: &Thread, call: i64, ids: Arguments) -> Returned {
    match thread.process.fixed_identity {
        Some(_) => Ok(USER),
        // SAFETY: the calls take no pointers.
        None => unsafe { host_call(call, ids) },
    }
}

pub(super) fn setgroups(thread: &mut Thread, [count, list, ..]: Arguments) -> Returned {
    let count = u64::from(count as u32);
    if count > MAX_GROUPS {
        return Err(EINVAL);
    }
    if thread.process.fixed_identity.is_some() {
        return Err(Errno(libc::EPERM));
    }
    let list = buffer(thread.process.memory(), list, 4 * count)?;
    // SAFETY: the list is in the reservation.
    unsafe { host_call(libc::SYS_setgroups, [count, list, 0, 0, 0, 0]) }
}

/// What unshare(2) can separate from other threads: CLONE_VM, FS, FILES, SIGHAND, THREAD and SYSVSEM.
const SHARED_BY_THREADS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
/// What the kernel refuses to a process with threads: CLONE_VM, SIGHAND and THREAD.
const ONE_THREAD_ONLY: u64 = 0x100 | 0x800 | 0x1_0000;
/// CLONE_NEW...
const NAMESPACES: u64 = 0x2_0000 | 0x7e00_0080;

pub(super) fn unshare(thread: &mut Thread, [flags, ..]: Arguments) -> Returned {
    if flags & !(SHARED_BY_THREADS | NAMESPACES) != 0 {
        return Err(EINVAL);
    }
    // Guest threads share all that the emulator's threads share. A single thread shares nothing with another one.
    let has_threads = thread.process.threads.load(Ordering::Acquire) > 1;
    if has_threads && flags & ONE_THREAD_ONLY != 0 {
        return Err(EINVAL);
    }
    let shares = has_threads && flags & SHARED_BY_THREADS != 0;
    if shares || flags & NAMESPACES != 0 { Err(Errno(libc::EPERM)) } else { Ok(0) }
}

/// Entering a namespace needs privileges.
pub(super) fn setns(_: &mut Thread, [descriptor, ..]: Arguments) -> Returned {
    // SAFETY: F_GETFD takes no pointers.
    unsafe { host_call(libc::SYS_fcntl, [descriptor, libc::F_GETFD as u64, 0, 0, 0, 0]) }?;
    Err(Errno(libc::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_older_than_loongarch_is_not_shown_to_guests() {
        assert_eq!(release(b"6.18.44-generic"), b"6.18.44-generic");
        assert_eq!(release(b"5.19.0"), b"5.19.0");
        assert_eq!(release(b"5.4.0-42"), b"5.19.0");
        assert_eq!(release(b"nonsense"), b"5.19.0");
    }
}
