//! Reads and changes properties of the network interfaces and sockets in the calling thread's network namespace,
//! through the ethtool ioctl, rtnetlink, generic netlink and sock_diag. Nothing here is recorded or restored;
//! `longma-affinity` does that.

pub mod ethtool;
pub mod features;
pub mod links;
pub mod merge_sizes;
pub mod napi;
pub mod packet_size;
pub mod property;
pub mod queue_coalescing;
pub mod rss_table;
pub mod sockets;

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
