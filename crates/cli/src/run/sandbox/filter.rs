//! The seccomp filter of the sandboxed emulator. It denies calls that change the host, inspect other processes or load
//! kernel code, and all calls newer than those known here. The guest's system calls are emulated by `longma-linux`.
//! Source: seccomp(2); Linux arch/x86/entry/syscalls/syscall_64.tbl.

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Known x86-64 system calls: the old numbers, and those common to all architectures up to fchmodat2.
const KNOWN: [std::ops::RangeInclusive<i64>; 2] = [0..=334, 424..=452];

/// Known calls that the emulator does not need.
const DENIED: &[i64] = &[
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Namespaces and mounts. clone3 passes its flags in memory, which a filter cannot read; the C library falls back to
    // clone.
    libc::SYS_clone3,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Access to files that bypasses their paths.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_lookup_dcookie,
    // Code in the kernel, and interfaces as powerful as all other calls together.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_memfd_secret,
    // Changes to the host itself.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS__sysctl,
    // The user's keys.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// Flags of clone(2) that create namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// Allowed address families of sockets.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Requests that inject input into a terminal.
const TYPING: [u64; 2] = [libc::TIOCSTI as _, libc::TIOCLINUX as _];

/// A condition on the low 32 bits of an argument.
fn condition(
    argument: u8,
    compare: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let denied = DENIED.iter().copied().collect::<BTreeSet<i64>>();
    let known = KNOWN.into_iter().flatten().filter(|number| !denied.contains(number));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = known.map(|number| (number, Vec::new())).collect();
    let no_namespace = condition(0, SeccompCmpOp::MaskedEq(NAMESPACES as u32 as u64), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    let family = |family: i32| SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, family as u64)?]);
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, FAMILIES.into_iter().map(family).collect::<Result<_, _>>()?);
    }
    let others = TYPING.into_iter().map(|request| condition(1, SeccompCmpOp::Ne, request));
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?]);
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}

/// Applies the filter to this thread and the threads it creates. Denied calls fail with ENOSYS.
pub(super) fn apply() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&program()?)
}
