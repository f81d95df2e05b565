//! Virtual machines on NUMA hosts: from request to pinned, local memory, kept so.
//! Not a hypervisor and not a service: those stand on this crate's traits. Nothing here prints.
//! Source: He Mujun et al., "Virtual machine memory access optimisation on NUMA" (High Technology Letters 2021).

pub mod allocator;
pub mod audit;
pub mod collect;
pub mod cpus;
pub mod defragment;
pub mod fake;
pub mod fleet;
pub mod host;
pub mod hypervisor;
pub mod inventory;
pub mod lost;
pub mod monitor;
pub mod name;
pub mod placement;
pub mod reconcile;
pub mod request;
pub mod scheduler;
mod shape;
pub mod store;
pub mod switcher;

pub use allocator::Allocator;
pub use collect::collect;
pub use cpus::CpuSet;
pub use host::Host;
pub use hypervisor::Hypervisor;
pub use placement::Placement;
pub use request::Request;
pub use scheduler::{Policy, Scheduler};
#[cfg(feature = "databases")]
pub use store::SqlStore;
pub use store::Store;

/// The README's example is a test.
#[cfg(all(doctest, feature = "databases"))]
#[doc = include_str!("../README.md")]
struct Readme;
