//! The table of system calls: number, name, implementation, arguments, implementation in simulated time, and effects.
//! The dispatcher, simulated time, checkpoints, the tracer and the book use it. Source: Linux
//! include/uapi/asm-generic/unistd.h (LoongArch uses these numbers); man-pages section 2.

use longma_guest::host::locks::Lazy;

use super::Action::{Absent, Call, Control, Denied, Host, Waits};
use super::Changed::{DescriptorTruncated, Open, OpenedWithFlags, OpenedWithHow};
use super::{Action, Changed, Row, ipc, memory, names, system, time};
use crate::arguments::Kind;
use crate::arguments::Kind::{
    Address, Choice, DirFd, Fd, Flags, Hex, Id, In, InBuffer, InOut, InVectors, Int, Long, Mode, Out,
    OutBuffer, OutVectors, Signal, Size, Text,
};
use crate::events;
use crate::execve;
use crate::files::{Follow, calls as files, control, status};
use crate::network::calls as network;
use crate::signals::calls as signals;
use crate::simulated::calls::{
    self as simulated, Simulated,
    Simulated::{ReadiesNoFile, Replace, SendsSignals, TryReplace},
};
use crate::simulated::identity::Id::{Group, Process, Thread};
use crate::simulated::waits::BlockingCondition::{self, Child, Device, Lock, Unknown};
use crate::simulated::{clocks, futex, sched_attributes, timers};
use crate::threads::calls as threads;

/// The row of call `number`.
pub(super) fn row(number: u64) -> Option<&'static Row> {
    static INDEX: Lazy<[Option<&'static Row>; 512]> = Lazy::new(|| {
        let mut index = [None; 512];
        for row in ROWS {
            index[usize::from(row.number)] = Some(row);
        }
        index
    });
    *INDEX.get(usize::try_from(number).ok()?)?
}

const fn row_of(number: u16, name: &'static str, action: Action, arguments: &'static [Kind]) -> Row {
    let (mut descriptors, mut ids, mut index) = (0, [None; 6], 0);
    while index < arguments.len() {
        match arguments[index] {
            Fd | DirFd => descriptors |= 1 << index,
            Id(id) => ids[index] = Some(id),
            _ => {}
        }
        index += 1;
    }
    Row {
        number,
        name,
        action,
        arguments,
        descriptors,
        ids,
        simulated: None,
        changes: None,
        uncaptured: None,
    }
}

impl Row {
    /// Sets the implementation in simulated time.
    const fn simulated(self, simulated: Simulated) -> Self {
        Self { simulated: Some(simulated), ..self }
    }

    /// Sets the file whose contents the call may change.
    const fn changes(self, changed: Changed) -> Self {
        Self { changes: Some(changed), ..self }
    }

    /// Names the kernel state that the call creates and a checkpoint does not contain. Such state cannot be queried
    /// when the checkpoint is made, unlike files, memory and threads.
    const fn uncaptured(self, what: &'static str) -> Self {
        Self { uncaptured: Some(what), ..self }
    }
}

/// All calls in numerical order.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row_of(0, "io_setup", Absent, &[]),
    row_of(1, "io_destroy", Absent, &[]),
    row_of(2, "io_submit", Absent, &[]),
    row_of(3, "io_cancel", Absent, &[]),
    row_of(4, "io_getevents", Absent, &[]),
    row_of(5, "setxattr", Call(|thread, given| files::set_attribute(thread, libc::SYS_setxattr, Follow::Yes, given)), &[Text, Text, InBuffer(3), Size, Hex]),
    row_of(6, "lsetxattr", Call(|thread, given| files::set_attribute(thread, libc::SYS_lsetxattr, Follow::No, given)), &[Text, Text, InBuffer(3), Size, Hex]),
    row_of(7, "fsetxattr", Call(files::fsetxattr), &[Fd, Text, InBuffer(3), Size, Hex]),
    row_of(8, "getxattr", Call(|thread, given| files::get_attribute(thread, libc::SYS_getxattr, Follow::Yes, given)), &[Text, Text, OutBuffer(3), Size]),
    row_of(9, "lgetxattr", Call(|thread, given| files::get_attribute(thread, libc::SYS_lgetxattr, Follow::No, given)), &[Text, Text, OutBuffer(3), Size]),
    row_of(10, "fgetxattr", Host(libc::SYS_fgetxattr), &[Fd, Text, OutBuffer(3), Size]),
    row_of(11, "listxattr", Call(|thread, given| files::list_attributes(thread, libc::SYS_listxattr, Follow::Yes, given)), &[Text, OutBuffer(2), Size]),
    row_of(12, "llistxattr", Call(|thread, given| files::list_attributes(thread, libc::SYS_llistxattr, Follow::No, given)), &[Text, OutBuffer(2), Size]),
    row_of(13, "flistxattr", Host(libc::SYS_flistxattr), &[Fd, OutBuffer(2), Size]),
    row_of(14, "removexattr", Call(|thread, given| files::remove_attribute(thread, libc::SYS_removexattr, Follow::Yes, given)), &[Text, Text]),
    row_of(15, "lremovexattr", Call(|thread, given| files::remove_attribute(thread, libc::SYS_lremovexattr, Follow::No, given)), &[Text, Text]),
    row_of(16, "fremovexattr", Call(files::fremovexattr), &[Fd, Text]),
    row_of(17, "getcwd", Call(files::getcwd), &[OutBuffer(1), Size]),
    row_of(18, "lookup_dcookie", Absent, &[]),
    row_of(19, "eventfd2", Host(libc::SYS_eventfd2), &[Int, Hex]),
    row_of(20, "epoll_create1", Host(libc::SYS_epoll_create1), &[Hex]),
    row_of(21, "epoll_ctl", Call(events::epoll_ctl), &[Fd, Choice(names::EPOLL), Fd, Address]),
    row_of(22, "epoll_pwait", Call(events::epoll_pwait), &[Fd, Address, Int, Int, Address, Size]),
    row_of(23, "dup", Host(libc::SYS_dup), &[Fd]),
    row_of(24, "dup3", Call(control::dup3), &[Fd, Fd, Flags(names::OPEN)]),
    row_of(25, "fcntl", Call(control::fcntl), &[Fd, Choice(names::FCNTL), Hex]),
    row_of(26, "inotify_init1", Host(libc::SYS_inotify_init1), &[Hex]),
    row_of(27, "inotify_add_watch", Call(files::inotify_add_watch), &[Fd, Text, Hex]),
    row_of(28, "inotify_rm_watch", Host(libc::SYS_inotify_rm_watch), &[Fd, Int]),
    row_of(29, "ioctl", Call(control::ioctl), &[Fd, Hex, Hex]).changes(Open(0)),
    row_of(30, "ioprio_set", Host(libc::SYS_ioprio_set), &[Int, Id(Thread), Int]).simulated(TryReplace(sched_attributes::ioprio_set)).uncaptured("changed its priority"),
    row_of(31, "ioprio_get", Host(libc::SYS_ioprio_get), &[Int, Id(Thread)]).simulated(TryReplace(sched_attributes::ioprio_get)),
    row_of(32, "flock", Waits(libc::SYS_flock, Lock), &[Fd, Hex]),
    row_of(33, "mknodat", Call(files::mknodat), &[DirFd, Text, Mode, Hex]),
    row_of(34, "mkdirat", Call(files::mkdirat), &[DirFd, Text, Mode]),
    row_of(35, "unlinkat", Call(files::unlinkat), &[DirFd, Text, Flags(names::AT)]),
    row_of(36, "symlinkat", Call(files::symlinkat), &[Text, DirFd, Text]),
    row_of(37, "linkat", Call(files::linkat), &[DirFd, Text, DirFd, Text, Flags(names::AT)]),
    row_of(39, "umount2", Denied, &[]),
    row_of(40, "mount", Denied, &[]),
    row_of(41, "pivot_root", Denied, &[]),
    row_of(42, "nfsservctl", Absent, &[]),
    row_of(43, "statfs", Call(status::statfs), &[Text, Out(120)]),
    row_of(44, "fstatfs", Host(libc::SYS_fstatfs), &[Fd, Out(120)]),
    row_of(45, "truncate", Call(files::truncate), &[Text, Long]),
    row_of(46, "ftruncate", Host(libc::SYS_ftruncate), &[Fd, Long]).changes(DescriptorTruncated(0)),
    row_of(47, "fallocate", Waits(libc::SYS_fallocate, Device), &[Fd, Hex, Long, Long]).changes(DescriptorTruncated(0)),
    row_of(48, "faccessat", Call(files::faccessat), &[DirFd, Text, Mode]),
    row_of(49, "chdir", Call(files::chdir), &[Text]),
    row_of(50, "fchdir", Host(libc::SYS_fchdir), &[Fd]),
    row_of(51, "chroot", Denied, &[Text]),
    row_of(52, "fchmod", Call(files::fchmod), &[Fd, Mode]),
    row_of(53, "fchmodat", Call(files::fchmodat), &[DirFd, Text, Mode]),
    row_of(54, "fchownat", Call(files::fchownat), &[DirFd, Text, Int, Int, Flags(names::AT)]),
    row_of(55, "fchown", Call(files::fchown), &[Fd, Int, Int]),
    row_of(56, "openat", Call(files::openat), &[DirFd, Text, Flags(names::OPEN), Mode]).changes(OpenedWithFlags(2)),
    row_of(57, "close", Call(control::close), &[Fd]),
    row_of(58, "vhangup", Denied, &[]),
    row_of(59, "pipe2", Host(libc::SYS_pipe2), &[Out(8), Flags(names::OPEN)]),
    row_of(60, "quotactl", Denied, &[]),
    row_of(61, "getdents64", Host(libc::SYS_getdents64), &[Fd, OutBuffer(2), Size]),
    row_of(62, "lseek", Host(libc::SYS_lseek), &[Fd, Long, Choice(names::WHENCE)]),
    row_of(63, "read", Waits(libc::SYS_read, BlockingCondition::INPUT), &[Fd, OutBuffer(2), Size]),
    row_of(64, "write", Waits(libc::SYS_write, BlockingCondition::OUTPUT), &[Fd, InBuffer(2), Size]).changes(Open(0)),
    row_of(65, "readv", Waits(libc::SYS_readv, BlockingCondition::INPUT), &[Fd, OutVectors(2), Size]),
    row_of(66, "writev", Waits(libc::SYS_writev, BlockingCondition::OUTPUT), &[Fd, InVectors(2), Size]).changes(Open(0)),
    row_of(67, "pread64", Waits(libc::SYS_pread64, Device), &[Fd, OutBuffer(2), Size, Long]),
    row_of(68, "pwrite64", Waits(libc::SYS_pwrite64, Device), &[Fd, InBuffer(2), Size, Long]).changes(Open(0)),
    row_of(69, "preadv", Waits(libc::SYS_preadv, Device), &[Fd, OutVectors(2), Size, Long, Long]),
    row_of(70, "pwritev", Waits(libc::SYS_pwritev, Device), &[Fd, InVectors(2), Size, Long, Long]).changes(Open(0)),
    row_of(71, "sendfile", Waits(libc::SYS_sendfile, BlockingCondition::OUTPUT), &[Fd, Fd, InOut(8), Size]).changes(Open(0)),
    row_of(72, "pselect6", Call(events::pselect6), &[Int, Address, Address, Address, Address, Address]),
    row_of(73, "ppoll", Call(events::ppoll), &[Address, Size, Address, Address, Size]),
    row_of(74, "signalfd4", Call(events::signalfd4), &[Fd, Address, Size, Hex]),
    row_of(75, "vmsplice", Call(memory::vmsplice), &[Fd, InVectors(2), Size, Hex]),
    row_of(76, "splice", Waits(libc::SYS_splice, Unknown), &[Fd, InOut(8), Fd, InOut(8), Size, Hex]).changes(Open(2)),
    row_of(77, "tee", Waits(libc::SYS_tee, Unknown), &[Fd, Fd, Size, Hex]),
    row_of(78, "readlinkat", Call(files::readlinkat), &[DirFd, Text, OutBuffer(3), Size]),
    row_of(79, "newfstatat", Call(status::newfstatat), &[DirFd, Text, Out(128), Flags(names::AT)]),
    row_of(80, "fstat", Call(status::fstat), &[Fd, Out(128)]),
    row_of(81, "sync", Host(libc::SYS_sync), &[]),
    row_of(82, "fsync", Host(libc::SYS_fsync), &[Fd]),
    row_of(83, "fdatasync", Host(libc::SYS_fdatasync), &[Fd]),
    row_of(84, "sync_file_range", Host(libc::SYS_sync_file_range), &[Fd, Long, Long, Hex]),
    row_of(85, "timerfd_create", Host(libc::SYS_timerfd_create), &[Choice(names::CLOCK), Hex]).simulated(Replace(timers::timerfd_create)),
    row_of(86, "timerfd_settime", Host(libc::SYS_timerfd_settime), &[Fd, Hex, In(32), Out(32)]).simulated(Replace(timers::timerfd_settime)),
    row_of(87, "timerfd_gettime", Host(libc::SYS_timerfd_gettime), &[Fd, Out(32)]).simulated(Replace(timers::timerfd_gettime)),
    row_of(88, "utimensat", Call(files::utimensat), &[DirFd, Text, In(32), Flags(names::AT)]),
    row_of(89, "acct", Denied, &[]),
    row_of(90, "capget", Host(libc::SYS_capget), &[InOut(8), Out(24)]),
    row_of(91, "capset", Host(libc::SYS_capset), &[In(8), In(24)]).uncaptured("changed its capabilities"),
    row_of(92, "personality", Call(system::personality), &[Hex]),
    row_of(93, "exit", Control(threads::exit), &[Int]),
    row_of(94, "exit_group", Control(threads::exit_group), &[Int]),
    row_of(95, "waitid", Waits(libc::SYS_waitid, Child(3)), &[Choice(names::WAIT), Int, Out(128), Hex, Out(144)]),
    row_of(96, "set_tid_address", Call(threads::set_tid_address), &[Address]),
    row_of(97, "unshare", Call(system::unshare), &[Hex]),
    row_of(98, "futex", Call(threads::futex), &[Address, Choice(names::FUTEX), Int, Address, Address, Hex]).simulated(TryReplace(futex::futex)),
    row_of(99, "set_robust_list", Call(threads::set_robust_list), &[Address, Size]),
    row_of(100, "get_robust_list", Call(threads::get_robust_list), &[Int, Address, Address]),
    row_of(101, "nanosleep", Waits(libc::SYS_nanosleep, Unknown), &[In(16), Out(16)]).simulated(Replace(clocks::nanosleep)),
    row_of(102, "getitimer", Host(libc::SYS_getitimer), &[Int, Out(32)]).simulated(TryReplace(|caller, [which, old, ..]| timers::itimer(caller, which, 0, old, false))),
    row_of(103, "setitimer", Host(libc::SYS_setitimer), &[Int, In(32), Out(32)]).simulated(TryReplace(|caller, [which, new, old, ..]| timers::itimer(caller, which, new, old, true))).uncaptured("created a CPU-time timer"),
    row_of(104, "kexec_load", Denied, &[]),
    row_of(105, "init_module", Denied, &[]),
    row_of(106, "delete_module", Denied, &[]),
    row_of(107, "timer_create", Host(libc::SYS_timer_create), &[Choice(names::CLOCK), In(64), Out(4)]).simulated(TryReplace(timers::timer_create)).uncaptured("created a CPU-time timer"),
    row_of(108, "timer_gettime", Host(libc::SYS_timer_gettime), &[Int, Out(32)]).simulated(TryReplace(timers::timer_gettime)),
    row_of(109, "timer_getoverrun", Host(libc::SYS_timer_getoverrun), &[Int]).simulated(TryReplace(timers::timer_getoverrun)),
    row_of(110, "timer_settime", Host(libc::SYS_timer_settime), &[Int, Hex, In(32), Out(32)]).simulated(TryReplace(timers::timer_settime)),
    row_of(111, "timer_delete", Host(libc::SYS_timer_delete), &[Int]).simulated(TryReplace(timers::timer_delete)),
    row_of(112, "clock_settime", Call(time::clock_settime), &[Choice(names::CLOCK), In(16)]),
    row_of(113, "clock_gettime", Call(time::clock_gettime), &[Choice(names::CLOCK), Out(16)]).simulated(Replace(clocks::clock_gettime)),
    row_of(114, "clock_getres", Host(libc::SYS_clock_getres), &[Choice(names::CLOCK), Out(16)]).simulated(Replace(clocks::clock_getres)),
    row_of(115, "clock_nanosleep", Waits(libc::SYS_clock_nanosleep, Unknown), &[Choice(names::CLOCK), Hex, In(16), Out(16)]).simulated(Replace(clocks::clock_nanosleep)),
    row_of(116, "syslog", Denied, &[]),
    row_of(117, "ptrace", Denied, &[]),
    row_of(118, "sched_setparam", Host(libc::SYS_sched_setparam), &[Id(Thread), In(4)]).simulated(TryReplace(sched_attributes::sched_setparam)).uncaptured("changed its priority"),
    row_of(119, "sched_setscheduler", Host(libc::SYS_sched_setscheduler), &[Id(Thread), Int, In(4)]).simulated(TryReplace(sched_attributes::sched_setscheduler)).uncaptured("changed its priority"),
    row_of(120, "sched_getscheduler", Host(libc::SYS_sched_getscheduler), &[Id(Thread)]).simulated(TryReplace(sched_attributes::sched_getscheduler)),
    row_of(121, "sched_getparam", Host(libc::SYS_sched_getparam), &[Id(Thread), Out(4)]).simulated(TryReplace(sched_attributes::sched_getparam)),
    row_of(122, "sched_setaffinity", Host(libc::SYS_sched_setaffinity), &[Int, Size, InBuffer(1)]).simulated(Replace(simulated::sched_setaffinity)),
    row_of(123, "sched_getaffinity", Host(libc::SYS_sched_getaffinity), &[Int, Size, OutBuffer(1)]).simulated(Replace(simulated::sched_getaffinity)),
    row_of(124, "sched_yield", Host(libc::SYS_sched_yield), &[]).simulated(Replace(simulated::sched_yield)),
    row_of(125, "sched_get_priority_max", Host(libc::SYS_sched_get_priority_max), &[Int]),
    row_of(126, "sched_get_priority_min", Host(libc::SYS_sched_get_priority_min), &[Int]),
    row_of(127, "sched_rr_get_interval", Host(libc::SYS_sched_rr_get_interval), &[Id(Thread), Out(16)]).simulated(TryReplace(sched_attributes::sched_rr_get_interval)),
    row_of(128, "restart_syscall", Call(signals::restart_syscall), &[]),
    row_of(129, "kill", Host(libc::SYS_kill), &[Id(Process), Signal]).simulated(SendsSignals),
    row_of(130, "tkill", Host(libc::SYS_tkill), &[Id(Thread), Signal]).simulated(SendsSignals),
    row_of(131, "tgkill", Host(libc::SYS_tgkill), &[Id(Process), Id(Thread), Signal]).simulated(SendsSignals),
    row_of(132, "sigaltstack", Control(signals::sigaltstack), &[Address, Address]),
    row_of(133, "rt_sigsuspend", Call(signals::rt_sigsuspend), &[Address, Size]),
    row_of(134, "rt_sigaction", Call(signals::rt_sigaction), &[Signal, Address, Address, Size]),
    row_of(135, "rt_sigprocmask", Call(signals::rt_sigprocmask), &[Choice(names::MASKING), Address, Address, Size]).simulated(ReadiesNoFile),
    row_of(136, "rt_sigpending", Call(signals::rt_sigpending), &[Address, Size]),
    row_of(137, "rt_sigtimedwait", Call(signals::rt_sigtimedwait), &[Address, Address, Address, Size]),
    row_of(138, "rt_sigqueueinfo", Call(signals::rt_sigqueueinfo), &[Id(Process), Signal, In(128)]).simulated(SendsSignals),
    row_of(139, "rt_sigreturn", Control(signals::rt_sigreturn), &[]),
    row_of(140, "setpriority", Host(libc::SYS_setpriority), &[Int, Id(Thread), Int]).simulated(TryReplace(sched_attributes::setpriority)).uncaptured("changed its priority"),
    row_of(141, "getpriority", Host(libc::SYS_getpriority), &[Int, Id(Thread)]).simulated(TryReplace(sched_attributes::getpriority)),
    row_of(142, "reboot", Denied, &[]),
    row_of(143, "setregid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setregid, ids, 2)), &[Int, Int]),
    row_of(144, "setgid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setgid, ids, 1)), &[Int]),
    row_of(145, "setreuid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setreuid, ids, 2)), &[Int, Int]),
    row_of(146, "setuid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setuid, ids, 1)), &[Int]),
    row_of(147, "setresuid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setresuid, ids, 3)), &[Int, Int, Int]),
    row_of(148, "getresuid", Call(|thread, ids| system::identities(thread, libc::SYS_getresuid, ids)), &[Out(4), Out(4), Out(4)]),
    row_of(149, "setresgid", Call(|thread, ids| system::set_ids(thread, libc::SYS_setresgid, ids, 3)), &[Int, Int, Int]),
    row_of(150, "getresgid", Call(|thread, ids| system::identities(thread, libc::SYS_getresgid, ids)), &[Out(4), Out(4), Out(4)]),
    row_of(151, "setfsuid", Call(|thread, ids| system::set_file_system_id(thread, libc::SYS_setfsuid, ids)), &[Int]),
    row_of(152, "setfsgid", Call(|thread, ids| system::set_file_system_id(thread, libc::SYS_setfsgid, ids)), &[Int]),
    row_of(153, "times", Host(libc::SYS_times), &[Out(32)]).simulated(Replace(clocks::times)),
    row_of(154, "setpgid", Host(libc::SYS_setpgid), &[Id(Process), Id(Group)]).simulated(Replace(sched_attributes::setpgid)),
    row_of(155, "getpgid", Host(libc::SYS_getpgid), &[Id(Process)]).simulated(Replace(sched_attributes::getpgid)),
    row_of(156, "getsid", Host(libc::SYS_getsid), &[Id(Process)]).simulated(Replace(sched_attributes::getsid)),
    row_of(157, "setsid", Host(libc::SYS_setsid), &[]).simulated(Replace(sched_attributes::setsid)),
    row_of(158, "getgroups", Call(system::getgroups), &[Int, Address]),
    row_of(159, "setgroups", Call(system::setgroups), &[Int, Address]),
    row_of(160, "uname", Call(system::uname), &[Out(390)]),
    row_of(161, "sethostname", Denied, &[]),
    row_of(162, "setdomainname", Denied, &[]),
    row_of(165, "getrusage", Host(libc::SYS_getrusage), &[Int, Out(144)]).simulated(Replace(clocks::getrusage)),
    row_of(166, "umask", Host(libc::SYS_umask), &[Mode]),
    row_of(167, "prctl", Call(system::prctl), &[Int, Hex, Hex, Hex, Hex]),
    row_of(168, "getcpu", Host(libc::SYS_getcpu), &[Out(4), Out(4), Address]).simulated(Replace(simulated::getcpu)),
    row_of(169, "gettimeofday", Call(time::gettimeofday), &[Out(16), Out(8)]).simulated(Replace(clocks::gettimeofday)),
    row_of(170, "settimeofday", Denied, &[]),
    row_of(171, "adjtimex", Call(|thread, [pointer, ..]| time::adjust(thread, libc::CLOCK_REALTIME as u64, pointer)), &[InOut(208)]).simulated(Replace(simulated::adjust)),
    row_of(172, "getpid", Host(libc::SYS_getpid), &[]).simulated(Replace(simulated::getpid)),
    row_of(173, "getppid", Host(libc::SYS_getppid), &[]).simulated(Replace(simulated::getppid)),
    row_of(174, "getuid", Call(|thread, _| system::identity(thread, libc::SYS_getuid)), &[]),
    row_of(175, "geteuid", Call(|thread, _| system::identity(thread, libc::SYS_geteuid)), &[]),
    row_of(176, "getgid", Call(|thread, _| system::identity(thread, libc::SYS_getgid)), &[]),
    row_of(177, "getegid", Call(|thread, _| system::identity(thread, libc::SYS_getegid)), &[]),
    row_of(178, "gettid", Host(libc::SYS_gettid), &[]).simulated(Replace(simulated::gettid)),
    row_of(179, "sysinfo", Host(libc::SYS_sysinfo), &[Out(112)]).simulated(Replace(clocks::sysinfo)),
    row_of(180, "mq_open", Host(libc::SYS_mq_open), &[Text, Flags(names::OPEN), Mode, In(64)]),
    row_of(181, "mq_unlink", Host(libc::SYS_mq_unlink), &[Text]),
    row_of(182, "mq_timedsend", Waits(libc::SYS_mq_timedsend, Unknown), &[Fd, InBuffer(2), Size, Int, In(16)]),
    row_of(183, "mq_timedreceive", Waits(libc::SYS_mq_timedreceive, Unknown), &[Fd, OutBuffer(2), Size, Out(4), In(16)]),
    row_of(184, "mq_notify", Call(ipc::mq_notify), &[Fd, Address]),
    row_of(185, "mq_getsetattr", Host(libc::SYS_mq_getsetattr), &[Fd, In(64), Out(64)]),
    row_of(186, "msgget", Host(libc::SYS_msgget), &[Int, Hex]),
    row_of(187, "msgctl", Call(ipc::msgctl), &[Int, Int, Address]),
    row_of(188, "msgrcv", Call(ipc::msgrcv), &[Int, Address, Size, Long, Hex]),
    row_of(189, "msgsnd", Call(ipc::msgsnd), &[Int, Address, Size, Hex]),
    row_of(190, "semget", Host(libc::SYS_semget), &[Int, Int, Hex]),
    row_of(191, "semctl", Call(ipc::semctl), &[Int, Int, Int, Hex]),
    row_of(192, "semtimedop", Call(ipc::semtimedop), &[Int, Address, Size, In(16)]),
    row_of(193, "semop", Call(|thread, [id, operations, count, ..]| ipc::semtimedop(thread, [id, operations, count, 0, 0, 0])), &[Int, Address, Size]),
    row_of(194, "shmget", Host(libc::SYS_shmget), &[Int, Size, Hex]),
    row_of(195, "shmctl", Call(ipc::shmctl), &[Int, Int, Address]),
    row_of(196, "shmat", Call(ipc::shmat), &[Int, Address, Hex]),
    row_of(197, "shmdt", Call(ipc::shmdt), &[Address]),
    row_of(198, "socket", Host(libc::SYS_socket), &[Int, Hex, Int]),
    row_of(199, "socketpair", Host(libc::SYS_socketpair), &[Int, Hex, Int, Out(8)]),
    row_of(200, "bind", Call(network::bind), &[Fd, Address, Int]),
    row_of(201, "listen", Host(libc::SYS_listen), &[Fd, Int]),
    row_of(202, "accept", Call(|thread, [socket, address, length, ..]| network::accept4(thread, [socket, address, length, 0, 0, 0])), &[Fd, Address, Address]),
    row_of(203, "connect", Call(network::connect), &[Fd, Address, Int]),
    row_of(204, "getsockname", Call(|thread, given| network::name_of(thread, libc::SYS_getsockname, given)), &[Fd, Address, Address]),
    row_of(205, "getpeername", Call(|thread, given| network::name_of(thread, libc::SYS_getpeername, given)), &[Fd, Address, Address]),
    row_of(206, "sendto", Call(network::sendto), &[Fd, InBuffer(2), Size, Hex, Address, Int]),
    row_of(207, "recvfrom", Call(network::recvfrom), &[Fd, OutBuffer(2), Size, Hex, Address, Address]),
    row_of(208, "setsockopt", Call(network::setsockopt), &[Fd, Int, Int, Address, Int]),
    row_of(209, "getsockopt", Call(network::getsockopt), &[Fd, Int, Int, Address, Address]),
    row_of(210, "shutdown", Host(libc::SYS_shutdown), &[Fd, Int]),
    row_of(211, "sendmsg", Call(|thread, [socket, header, flags, ..]| network::send(thread, socket, header, flags)), &[Fd, Address, Hex]),
    row_of(212, "recvmsg", Call(|thread, [socket, header, flags, ..]| network::receive(thread, socket, header, flags)), &[Fd, Address, Hex]),
    row_of(213, "readahead", Host(libc::SYS_readahead), &[Fd, Long, Size]),
    row_of(214, "brk", Call(memory::brk), &[Address]).simulated(ReadiesNoFile),
    row_of(215, "munmap", Call(memory::munmap), &[Address, Size]).simulated(ReadiesNoFile),
    row_of(216, "mremap", Call(memory::mremap), &[Address, Size, Size, Flags(names::REMAP), Address]),
    row_of(217, "add_key", Absent, &[]),
    row_of(218, "request_key", Absent, &[]),
    row_of(219, "keyctl", Absent, &[]),
    row_of(220, "clone", Control(threads::clone), &[Flags(names::CLONE), Address, Address, Address, Address]),
    row_of(221, "execve", Control(execve::execve), &[Text, Address, Address]),
    row_of(222, "mmap", Call(memory::mmap), &[Address, Size, Flags(names::PROTECTION), Flags(names::MAP), Fd, Size]).simulated(ReadiesNoFile),
    row_of(223, "fadvise64", Host(libc::SYS_fadvise64), &[Fd, Long, Long, Int]),
    row_of(224, "swapon", Denied, &[]),
    row_of(225, "swapoff", Denied, &[]),
    row_of(226, "mprotect", Call(memory::mprotect), &[Address, Size, Flags(names::PROTECTION)]).simulated(ReadiesNoFile),
    row_of(227, "msync", Call(memory::msync), &[Address, Size, Hex]),
    row_of(228, "mlock", Call(memory::mlock), &[Address, Size]),
    row_of(229, "munlock", Call(memory::munlock), &[Address, Size]),
    row_of(230, "mlockall", Call(memory::mlockall), &[Hex]),
    row_of(231, "munlockall", Call(memory::munlockall), &[]),
    row_of(232, "mincore", Call(memory::mincore), &[Address, Size, Address]),
    row_of(233, "madvise", Call(memory::madvise), &[Address, Size, Choice(names::ADVICE)]).simulated(ReadiesNoFile),
    row_of(234, "remap_file_pages", Absent, &[]),
    row_of(235, "mbind", Absent, &[]),
    row_of(236, "get_mempolicy", Absent, &[]),
    row_of(237, "set_mempolicy", Absent, &[]),
    row_of(238, "migrate_pages", Absent, &[]),
    row_of(239, "move_pages", Absent, &[]),
    row_of(240, "rt_tgsigqueueinfo", Call(signals::rt_tgsigqueueinfo), &[Id(Process), Id(Thread), Signal, In(128)]).simulated(SendsSignals),
    row_of(241, "perf_event_open", Absent, &[]),
    row_of(242, "accept4", Call(network::accept4), &[Fd, Address, Address, Hex]),
    row_of(243, "recvmmsg", Call(network::recvmmsg), &[Fd, Address, Size, Hex, Address]),
    row_of(260, "wait4", Waits(libc::SYS_wait4, Child(2)), &[Id(Process), Out(4), Hex, Out(144)]),
    row_of(261, "prlimit64", Call(system::prlimit64), &[Id(Process), Int, In(16), Out(16)]),
    row_of(262, "fanotify_init", Denied, &[]),
    row_of(263, "fanotify_mark", Denied, &[]),
    row_of(264, "name_to_handle_at", Absent, &[]),
    row_of(265, "open_by_handle_at", Denied, &[]),
    row_of(266, "clock_adjtime", Call(|thread, [clock, pointer, ..]| time::adjust(thread, clock, pointer)), &[Choice(names::CLOCK), InOut(208)]).simulated(Replace(simulated::adjust)),
    row_of(267, "syncfs", Host(libc::SYS_syncfs), &[Fd]),
    row_of(268, "setns", Call(system::setns), &[Fd, Int]),
    row_of(269, "sendmmsg", Call(network::sendmmsg), &[Fd, Address, Size, Hex]),
    row_of(270, "process_vm_readv", Call(|thread, given| memory::process_vm(thread, libc::SYS_process_vm_readv, true, given)), &[Id(Process), Address, Size, Address, Size, Hex]),
    row_of(271, "process_vm_writev", Call(|thread, given| memory::process_vm(thread, libc::SYS_process_vm_writev, false, given)), &[Id(Process), Address, Size, Address, Size, Hex]),
    row_of(272, "kcmp", Absent, &[]),
    row_of(273, "finit_module", Denied, &[]),
    row_of(274, "sched_setattr", Host(libc::SYS_sched_setattr), &[Id(Thread), In(56), Hex]).simulated(TryReplace(sched_attributes::sched_setattr)).uncaptured("changed its priority"),
    row_of(275, "sched_getattr", Host(libc::SYS_sched_getattr), &[Id(Thread), Out(56), Size, Hex]).simulated(TryReplace(sched_attributes::sched_getattr)),
    row_of(276, "renameat2", Call(files::renameat2), &[DirFd, Text, DirFd, Text, Hex]),
    row_of(277, "seccomp", Absent, &[]),
    row_of(278, "getrandom", Waits(libc::SYS_getrandom, Unknown), &[OutBuffer(1), Size, Hex]).simulated(Replace(simulated::getrandom)),
    row_of(279, "memfd_create", Host(libc::SYS_memfd_create), &[Text, Hex]),
    row_of(280, "bpf", Absent, &[]),
    row_of(281, "execveat", Control(execve::execveat), &[DirFd, Text, Address, Address, Flags(names::AT)]),
    row_of(282, "userfaultfd", Absent, &[]),
    row_of(283, "membarrier", Call(memory::membarrier), &[Int, Hex, Int]),
    row_of(284, "mlock2", Call(memory::mlock2), &[Address, Size, Hex]),
    row_of(285, "copy_file_range", Waits(libc::SYS_copy_file_range, Device), &[Fd, InOut(8), Fd, InOut(8), Size, Hex]).changes(Open(2)),
    row_of(286, "preadv2", Waits(libc::SYS_preadv2, BlockingCondition::INPUT), &[Fd, OutVectors(2), Size, Long, Long, Hex]),
    row_of(287, "pwritev2", Waits(libc::SYS_pwritev2, BlockingCondition::OUTPUT), &[Fd, InVectors(2), Size, Long, Long, Hex]).changes(Open(0)),
    row_of(288, "pkey_mprotect", Absent, &[]),
    row_of(289, "pkey_alloc", Absent, &[]),
    row_of(290, "pkey_free", Absent, &[]),
    row_of(291, "statx", Call(status::statx), &[DirFd, Text, Flags(names::AT), Hex, Out(256)]),
    row_of(292, "io_pgetevents", Absent, &[]),
    row_of(293, "rseq", Absent, &[]),
    row_of(294, "kexec_file_load", Denied, &[]),
    row_of(424, "pidfd_send_signal", Call(signals::pidfd_send_signal), &[Fd, Signal, In(128), Hex]).simulated(SendsSignals),
    row_of(425, "io_uring_setup", Absent, &[]),
    row_of(426, "io_uring_enter", Absent, &[]),
    row_of(427, "io_uring_register", Absent, &[]),
    row_of(428, "open_tree", Denied, &[]),
    row_of(429, "move_mount", Denied, &[]),
    row_of(430, "fsopen", Denied, &[]),
    row_of(431, "fsconfig", Denied, &[]),
    row_of(432, "fsmount", Denied, &[]),
    row_of(433, "fspick", Denied, &[]),
    row_of(434, "pidfd_open", Host(libc::SYS_pidfd_open), &[Id(Process), Hex]),
    row_of(435, "clone3", Control(threads::clone3), &[Address, Size]),
    row_of(436, "close_range", Call(control::close_range), &[Int, Int, Hex]),
    row_of(437, "openat2", Call(files::openat2), &[DirFd, Text, In(24), Size]).changes(OpenedWithHow(2)),
    row_of(438, "pidfd_getfd", Call(files::pidfd_getfd), &[Fd, Fd, Hex]),
    row_of(439, "faccessat2", Call(files::faccessat2), &[DirFd, Text, Mode, Flags(names::AT)]),
    row_of(440, "process_madvise", Absent, &[]),
    row_of(441, "epoll_pwait2", Call(events::epoll_pwait2), &[Fd, Address, Int, Address, Address, Size]),
    row_of(442, "mount_setattr", Denied, &[]),
    row_of(443, "quotactl_fd", Denied, &[]),
    row_of(444, "landlock_create_ruleset", Absent, &[]),
    row_of(445, "landlock_add_rule", Absent, &[]),
    row_of(446, "landlock_restrict_self", Absent, &[]),
    row_of(448, "process_mrelease", Absent, &[]),
    row_of(449, "futex_waitv", Call(threads::futex_waitv), &[Address, Int, Hex, Address, Int]).simulated(Replace(futex::futex_waitv)),
    row_of(450, "set_mempolicy_home_node", Absent, &[]),
    // Equal numbers on all architectures. The host's page cache is not part of simulated time.
    row_of(451, "cachestat", Host(451), &[Fd, In(16), Out(40), Hex]).simulated(Replace(|_, _| Err(longma_guest::Errno(libc::ENOSYS)))),
    row_of(452, "fchmodat2", Call(files::fchmodat2), &[DirFd, Text, Mode, Flags(names::AT)]),
    row_of(462, "mseal", Call(memory::mseal), &[Address, Size, Hex]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_are_sorted_and_numbers_and_names_are_unique() {
        assert!(ROWS.windows(2).all(|pair| pair[0].number < pair[1].number));
        let names: std::collections::HashSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }
}
