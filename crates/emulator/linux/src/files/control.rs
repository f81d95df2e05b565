//! The multiplexed calls fcntl and ioctl. Only listed requests are forwarded, because a structure with pointers would
//! give the guest access to host memory. Source: fcntl(2), ioctl_list(2), tty_ioctl(4), netdevice(7).

use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::host::host_call;
use longma_guest::words::u32_at;

use super::Changeable;
use crate::arguments::{Argument, Arguments, Returned, with_results};
use crate::devices::{HANDLE_INTERRUPTS, MODEL_DEFERRED_WORK, ROUTE_INTERRUPTS};
use crate::simulated::sched_attributes::{group_for_guest, group_on_host};
use crate::simulated::waits::{BlockingCondition, interruptible};
use crate::{DeviceFile, Thread};

use Argument::{In, InOut, Number, Out};

/// fcntl commands: first, last, argument. F_GETOWN_EX and the lock commands take structures.
const COMMANDS: &[(i32, i32, Argument)] = &[
    (0, 4, Number),
    (5, 5, InOut(32)),
    (6, 7, In(32)),
    (8, 11, Number),
    (15, 15, In(8)),
    (16, 16, Out(8)),
    (36, 36, InOut(32)),
    (37, 38, In(32)),
    (1024, 1034, Number),
    (1035, 1038, InOut(8)),
];

/// ioctl requests: first, last, argument.
const REQUESTS: &[(u32, u32, Argument)] = &[
    (0x02, 0x02, Out(4)),                // FIGETBSZ
    (0x1268, 0x1268, Out(4)),            // BLKSSZGET
    (0x5401, 0x5401, Out(36)),           // TCGETS
    (0x5402, 0x5404, In(36)),            // TCSETS, W, F
    (0x5405, 0x5405, Out(18)),           // TCGETA
    (0x5406, 0x5408, In(18)),            // TCSETA, W, F
    (0x5409, 0x540e, Number),            // TCSBRK, TCXONC, TCFLSH, TIOCEXCL, TIOCNXCL, TIOCSCTTY
    (0x540f, 0x540f, Out(4)),            // TIOCGPGRP
    (0x5410, 0x5410, In(4)),             // TIOCSPGRP
    (0x5411, 0x5411, Out(4)),            // TIOCOUTQ
    (0x5413, 0x5413, Out(8)),            // TIOCGWINSZ
    (0x5414, 0x5414, In(8)),             // TIOCSWINSZ
    (0x5415, 0x5415, Out(4)),            // TIOCMGET
    (0x5416, 0x5418, In(4)),             // TIOCMBIS, TIOCMBIC, TIOCMSET
    (0x5419, 0x5419, Out(4)),            // TIOCGSOFTCAR
    (0x541a, 0x541a, In(4)),             // TIOCSSOFTCAR
    (0x541b, 0x541b, Out(4)),            // FIONREAD
    (0x541e, 0x541e, Out(72)),           // TIOCGSERIAL
    (0x5420, 0x5421, In(4)),             // TIOCPKT, FIONBIO
    (0x5422, 0x5422, Number),            // TIOCNOTTY
    (0x5423, 0x5423, In(4)),             // TIOCSETD
    (0x5424, 0x5424, Out(4)),            // TIOCGETD
    (0x5425, 0x5428, Number),            // TCSBRKP, TIOCSBRK, TIOCCBRK
    (0x5429, 0x5429, Out(4)),            // TIOCGSID
    (0x5440, 0x5441, Number),            // TIOCGPTPEER
    (0x5450, 0x5451, Number),            // FIONCLEX, FIOCLEX
    (0x5452, 0x5452, In(4)),             // FIOASYNC
    (0x5456, 0x5456, Out(36)),           // TIOCGLCKTRMIOS
    (0x5457, 0x5457, In(36)),            // TIOCSLCKTRMIOS
    (0x5460, 0x5460, Out(8)),            // FIOQSIZE
    (0x8901, 0x8902, In(4)),             // FIOSETOWN, SIOCSPGRP
    (0x8903, 0x8905, Out(4)),            // FIOGETOWN, SIOCGPGRP, SIOCATMARK
    (0x8906, 0x8907, Out(16)),           // SIOCGSTAMP, SIOCGSTAMPNS
    (0x8910, 0x8911, InOut(40)),         // SIOCGIFNAME
    (0x8913, 0x891f, InOut(40)),         // SIOCGIFFLAGS ... SIOCGIFMEM without pointers
    (0x8921, 0x8922, InOut(40)),         // SIOCGIFMTU
    (0x8927, 0x8927, InOut(40)),         // SIOCGIFHWADDR
    (0x8933, 0x8933, InOut(40)),         // SIOCGIFINDEX
    (0x8942, 0x8942, InOut(40)),         // SIOCGIFTXQLEN
    (0x8970, 0x8970, InOut(40)),         // SIOCGIFMAP
    (0x4004_5431, 0x4004_5431, In(4)),   // TIOCSPTLCK
    (0x4004_5436, 0x4004_5436, Number),  // TIOCSIG
    (0x4004_9409, 0x4004_9409, Number),  // FICLONE
    (0x402c_542b, 0x402c_542d, In(44)),  // TCSETS2, W, F
    (0x8004_5200, 0x8004_5200, Out(4)),  // RNDGETENTCNT
    (0x8004_5430, 0x8004_5430, Out(4)),  // TIOCGPTN
    (0x8004_5432, 0x8004_5432, Out(4)),  // TIOCGDEV
    (0x8004_5438, 0x8004_5440, Out(4)),  // TIOCGPKT, TIOCGPTLCK, TIOCGEXCL
    (0x8004_7601, 0x8004_7602, Out(4)),  // FS_IOC_GETVERSION
    (0x8008_1272, 0x8008_1272, Out(8)),  // BLKGETSIZE64
    (0x8008_6601, 0x8008_6601, Out(4)),  // FS_IOC_GETFLAGS
    (0x8008_7601, 0x8008_7601, Out(4)),  // FS_IOC_GETVERSION
    (0x801c_581f, 0x801c_581f, Out(28)), // FS_IOC_FSGETXATTR
    (0x802c_542a, 0x802c_542a, Out(44)), // TCGETS2
    (0x8010_8906, 0x8010_8907, Out(16)), // SIOCGSTAMP_NEW, SIOCGSTAMPNS_NEW
];

/// F_SETLKW blocks.
const FCNTL: (i64, BlockingCondition) = (libc::SYS_fcntl, BlockingCondition::Lock);
/// TCSETSW blocks on a device.
const IOCTL: (i64, BlockingCondition) = (libc::SYS_ioctl, BlockingCondition::Device);

fn forward(
    thread: &Thread,
    (number, waits): (i64, BlockingCondition),
    kind: Argument,
    arguments: Arguments,
) -> Returned {
    let [descriptor, request, value, ..] = arguments;
    with_results(thread.process.memory(), |results| {
        let value = kind.for_host(results, value)?;
        // SAFETY: a number, or a pointer into the reservation or `results` to the structure of the request, which
        // contains no pointers.
        unsafe { interruptible(number, waits, [descriptor, request, value, 0, 0, 0]) }
    })
}

pub(crate) fn fcntl(thread: &mut Thread, arguments: Arguments) -> Returned {
    let command = arguments[1] as i32;
    if command == libc::F_NOTIFY {
        thread.process.record_uncaptured("requested signals for changes to a directory");
    }
    let row = COMMANDS.iter().find(|(first, last, _)| (*first..=*last).contains(&command));
    let (.., kind) = row.ok_or(Errno(libc::EINVAL))?;
    forward(thread, FCNTL, *kind, arguments)
}

/// Makes a call that may close or reassign a descriptor. For a confined guest, it excludes calls that are inspecting a
/// descriptor.
fn replace(thread: &Thread, number: i64, arguments: Arguments) -> Returned {
    // SAFETY: the call takes no pointers, and the descriptors belong to the guest.
    let call = || unsafe { host_call(number, arguments) };
    if thread.process.root.is_confined() { descriptors::with_reassignment(call) } else { call() }
}

pub(crate) fn close(thread: &mut Thread, [descriptor, ..]: Arguments) -> Returned {
    replace(thread, libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])
}

pub(crate) fn dup3(thread: &mut Thread, [from, to, flags, ..]: Arguments) -> Returned {
    replace(thread, libc::SYS_dup3, [from, to, flags, 0, 0, 0])
}

/// Closes the guest's descriptors in the range, but none of the emulator's.
pub(crate) fn close_range(thread: &mut Thread, [from, to, flags, ..]: Arguments) -> Returned {
    let (from, to, flags) = (from as u32, to as u32, flags as u32);
    if from > to || flags & !(libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // All threads, including the emulator's, share one descriptor table, so a descriptor that one thread checks is the
    // one that another uses.
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 && thread.process.threads.load(Ordering::Relaxed) > 1 {
        return Err(Errno(libc::ENOMEM));
    }
    let last = descriptors::first() as u32 - 1;
    if from > last {
        return Ok(0);
    }
    let flags = flags & !libc::CLOSE_RANGE_UNSHARE;
    replace(thread, libc::SYS_close_range, [from.into(), to.min(last).into(), flags.into(), 0, 0, 0])
}

/// Sets the attributes of a file, not its contents.
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// The foreground process group of a terminal.
const TIOCGPGRP: u32 = 0x540f;
const TIOCSPGRP: u32 = 0x5410;
/// Copies from the file whose descriptor is the argument.
const FICLONE: u32 = 0x4004_9409;
/// Copies from the file whose descriptor is the first word of the structure.
const FICLONERANGE: u32 = 0x4020_940d;
/// SIOCGIFCONF, whose structure contains a pointer.
const SIOCGIFCONF: u32 = 0x8912;
/// The size of `struct ifreq` times a number of interfaces that no host exceeds.
const MAX_INTERFACE_BYTES: i32 = 40 * 4096;

pub(crate) fn ioctl(thread: &mut Thread, arguments: Arguments) -> Returned {
    let request = arguments[1] as u32;
    if request == SIOCGIFCONF {
        return interfaces(thread, arguments);
    }
    if request == FS_IOC_SETFLAGS {
        let file = Changeable::of(&thread.process, arguments[0])?;
        let [_, request, flags, ..] = arguments;
        return forward(thread, IOCTL, In(4), [file.descriptor(), request, flags, 0, 0, 0]);
    }
    if matches!(request, TIOCGPGRP | TIOCSPGRP) && thread.process.simulation().is_some() {
        return foreground(thread, arguments);
    }
    if matches!(request, HANDLE_INTERRUPTS | ROUTE_INTERRUPTS | MODEL_DEFERRED_WORK) {
        return handle_interrupts(thread, arguments[0] as i32, request);
    }
    if request == FICLONE && descriptors::is_reserved(arguments[2]) {
        return Err(Errno(libc::EBADF));
    }
    if request == FICLONERANGE {
        return clone_range(thread, arguments);
    }
    let row = REQUESTS.iter().find(|(first, last, _)| (*first..=*last).contains(&request));
    match row {
        Some((.., kind)) => forward(thread, IOCTL, *kind, arguments),
        // A closed or O_PATH descriptor has its own error. SAFETY: F_GETFL takes no pointers.
        None => match unsafe { libc::fcntl(arguments[0] as i32, libc::F_GETFL) } {
            flags if flags < 0 || flags & libc::O_PATH != 0 => Err(Errno(libc::EBADF)),
            _ => Err(Errno(libc::ENOTTY)),
        },
    }
}

/// Registers the thread with the device whose file is open as `descriptor`: to handle its interrupts, to route them to
/// the thread's core, or to run deferred work.
fn handle_interrupts(thread: &Thread, descriptor: i32, request: u32) -> Returned {
    let process = &thread.process;
    let device = DeviceFile::of_descriptor(&process.config.devices, descriptor);
    let (Some(file), Some(simulation)) = (device, process.simulation()) else {
        return Err(Errno(libc::ENOTTY));
    };
    let scheduler = &simulation.scheduler;
    let core = match request {
        ROUTE_INTERRUPTS => scheduler.core_and_node(thread.number).0,
        _ => scheduler.handle_interrupts(thread.number),
    };
    if request != MODEL_DEFERRED_WORK {
        file.route_interrupts(core);
    }
    Ok(0)
}

/// TIOCGPGRP and TIOCSPGRP in simulated time, where the guest's own process group has a simulated id.
fn foreground(thread: &Thread, [descriptor, request, address, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let sets = request as u32 == TIOCSPGRP;
    let mut group = if sets { group_on_host(memory.load::<u32>(address)? as i32) } else { 0 };
    let arguments = [descriptor, request, &raw mut group as u64, 0, 0, 0];
    // SAFETY: the number is live.
    unsafe { interruptible(libc::SYS_ioctl, BlockingCondition::Device, arguments) }?;
    if !sets {
        memory.store(address, group_for_guest(group) as u32)?;
    }
    Ok(0)
}

fn clone_range(thread: &Thread, [descriptor, request, address, ..]: Arguments) -> Returned {
    // `struct file_clone_range`. A copy, which the guest cannot change after the check.
    let bytes: [u8; 32] = thread.process.memory().read_array(address)?;
    if descriptors::is_reserved(u32_at(&bytes, 0).into()) {
        return Err(Errno(libc::EBADF));
    }
    let arguments = [descriptor, request, bytes.as_ptr() as u64, 0, 0, 0];
    // SAFETY: the structure is live and contains no pointers.
    unsafe { interruptible(libc::SYS_ioctl, BlockingCondition::Device, arguments) }
}

fn interfaces(thread: &Thread, [descriptor, request, address, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let length = memory.load::<u32>(address)? as i32;
    let guest_buffer = memory.load::<u64>(address.wrapping_add(8))?;
    let length = length.clamp(0, MAX_INTERFACE_BYTES);
    let mut written = 0;
    let returned = with_results(memory, |results| {
        // `struct ifconf`: a 32-bit length and a pointer.
        let mut host = [length as u64, results.structure(guest_buffer, length as u64)?];
        let arguments = [descriptor, request, host.as_mut_ptr() as u64, 0, 0, 0];
        // SAFETY: the structure is live, and its buffer is null or in the reservation or `results`.
        let returned = unsafe { interruptible(libc::SYS_ioctl, BlockingCondition::Device, arguments) };
        written = host[0] as u32;
        returned
    })?;
    memory.store(address, written)?;
    Ok(returned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ioctl_request_has_one_row() {
        let mut rows = REQUESTS.iter().map(|(first, last, _)| (*first, *last)).collect::<Vec<_>>();
        rows.sort_unstable();
        assert!(rows.windows(2).all(|pair| pair[0].0 <= pair[0].1 && pair[0].1 < pair[1].0));
    }
}
