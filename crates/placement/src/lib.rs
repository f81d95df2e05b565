//! Virtual machines on NUMA hosts: from request to pinned, local memory, kept so.
//! Not a hypervisor and not a service: those stand on this crate's traits. Nothing here prints.
//! Source: He Mujun et al., "Virtual machine memory access optimisation on NUMA" (High Technology Letters 2021).

pub mod allocator;
pub mod cpus;
pub mod host;
pub mod inventory;
pub mod placement;
pub mod request;
pub mod scheduler;
mod shape;
pub mod store;

pub use allocator::Allocator;
pub use cpus::CpuSet;
pub use host::Host;
pub use placement::Placement;
pub use request::Request;
pub use scheduler::{Policy, Scheduler};
pub use store::{SqliteStore, Store};
