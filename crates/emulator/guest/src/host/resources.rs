//! The kernel's numbers of the resources that a process has limits of.
//! Not the limits.
//! Source: getrlimit(2); Linux include/uapi/asm-generic/resource.h. C libraries give them different types: unsigned in GNU's, signed in musl.

#![allow(clippy::unnecessary_cast)]

/// Processor time.
pub const CPU: u32 = libc::RLIMIT_CPU as u32;
/// The size of files.
pub const FSIZE: u32 = libc::RLIMIT_FSIZE as u32;
/// Private writable memory.
pub const DATA: u32 = libc::RLIMIT_DATA as u32;
/// The main thread's stack.
pub const STACK: u32 = libc::RLIMIT_STACK as u32;
/// The size of core files.
pub const CORE: u32 = libc::RLIMIT_CORE as u32;
/// Resident memory.
pub const RSS: u32 = libc::RLIMIT_RSS as u32;
/// Processes of a user.
pub const NPROC: u32 = libc::RLIMIT_NPROC as u32;
/// Descriptors.
pub const NOFILE: u32 = libc::RLIMIT_NOFILE as u32;
/// Locked memory.
pub const MEMLOCK: u32 = libc::RLIMIT_MEMLOCK as u32;
/// The address space.
pub const AS: u32 = libc::RLIMIT_AS as u32;
/// File locks.
pub const LOCKS: u32 = libc::RLIMIT_LOCKS as u32;
/// Queued signals of a user.
pub const SIGPENDING: u32 = libc::RLIMIT_SIGPENDING as u32;
/// Bytes in message queues of a user.
pub const MSGQUEUE: u32 = libc::RLIMIT_MSGQUEUE as u32;
/// Nice values.
pub const NICE: u32 = libc::RLIMIT_NICE as u32;
/// Real-time priorities.
pub const RTPRIO: u32 = libc::RLIMIT_RTPRIO as u32;
/// Time in one stretch at a real-time priority.
pub const RTTIME: u32 = libc::RLIMIT_RTTIME as u32;
