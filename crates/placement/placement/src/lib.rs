//! NUMA-aware placement of virtual machines: schedules requests onto hosts, reserves the CPUs and memory in a store,
//! and keeps the hypervisors in line with it.
//!
//! Hypervisors and services are implemented on top of this crate's traits. Nothing in this crate prints.
//!
//! Source: He Mujun et al., "Virtual machine memory access optimisation on NUMA" (High Technology Letters 2021).

pub mod allocator;
pub mod audit;
pub mod collect;
pub mod defragment;
pub mod fake;
pub mod fleet;
pub mod foreign;
pub mod host;
pub mod hypervisor;
pub mod inventory;
pub mod lifetime;
pub mod lost_resources;
pub mod monitor;
pub mod name;
pub mod placement;
pub mod reconcile;
pub mod replay;
pub mod request;
pub mod scheduler;
mod shape;
pub mod store;
pub mod switcher;

pub use allocator::Allocator;
pub use collect::collect;
pub use host::Host;
pub use hypervisor::Hypervisor;
pub use longma_cpu_set::{self as cpus, CpuSet};
pub use placement::Placement;
pub use request::Request;
pub use scheduler::{Policy, Scheduler};
#[cfg(feature = "databases")]
pub use store::SqlStore;
pub use store::{AgentStore, Store};

/// Compiles and runs the README's example as a doctest.
#[cfg(all(doctest, feature = "databases"))]
#[doc = include_str!("../README.md")]
struct Readme;
