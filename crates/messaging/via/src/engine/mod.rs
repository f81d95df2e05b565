//! The provider-independent part of VIs: queues, protection, states, completions, waiting.
//!
//! Source: VIA 1.0; each module names its sections.

mod arrivals;
pub(crate) mod asymmetric;
mod completion_callback;
pub(crate) mod completion_ring;
pub(crate) mod connect;
mod ending;
pub(crate) mod endpoint;
pub(crate) mod errors;
pub(crate) mod futures;
mod lock;
#[cfg(test)]
mod lock_tests;
mod locked;
pub(crate) mod memory_table;
pub(crate) mod nic;
mod parking;
pub(crate) mod queues;
pub(crate) mod vi_registry;
pub(crate) mod waiting;
mod work_queue;
