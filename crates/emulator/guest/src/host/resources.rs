//! Numbers of the resource limits, with one type for all C libraries: they are unsigned in glibc and signed in musl.
//! Source: getrlimit(2); Linux include/uapi/asm-generic/resource.h.

#![allow(clippy::unnecessary_cast)]

/// Processor time.
pub const CPU: u32 = libc::RLIMIT_CPU as u32;
/// File size.
pub const FSIZE: u32 = libc::RLIMIT_FSIZE as u32;
/// Private writable memory.
pub const DATA: u32 = libc::RLIMIT_DATA as u32;
/// The main thread's stack.
pub const STACK: u32 = libc::RLIMIT_STACK as u32;
/// Core file size.
pub const CORE: u32 = libc::RLIMIT_CORE as u32;
/// Resident memory.
pub const RSS: u32 = libc::RLIMIT_RSS as u32;
/// Number of processes of a user.
pub const NPROC: u32 = libc::RLIMIT_NPROC as u32;
/// Number of file descriptors.
pub const NOFILE: u32 = libc::RLIMIT_NOFILE as u32;
/// Locked memory.
pub const MEMLOCK: u32 = libc::RLIMIT_MEMLOCK as u32;
/// Address space size.
pub const AS: u32 = libc::RLIMIT_AS as u32;
/// File locks.
pub const LOCKS: u32 = libc::RLIMIT_LOCKS as u32;
/// Number of queued signals of a user.
pub const SIGPENDING: u32 = libc::RLIMIT_SIGPENDING as u32;
/// Bytes in the message queues of a user.
pub const MSGQUEUE: u32 = libc::RLIMIT_MSGQUEUE as u32;
/// Nice values.
pub const NICE: u32 = libc::RLIMIT_NICE as u32;
/// Real-time priorities.
pub const RTPRIO: u32 = libc::RLIMIT_RTPRIO as u32;
/// Time without blocking at a real-time priority.
pub const RTTIME: u32 = libc::RLIMIT_RTTIME as u32;
