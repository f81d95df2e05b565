//! Timing models of cores. A model computes how long a core takes for the instructions in a
//! [`Trace`](longma_trace::Trace); memory accesses go through a [`MemoryPort`](longma_memory::MemoryPort).

mod accesses;
mod announce;
mod branch;
mod calendar;
mod counting;
mod front_end;
mod functional_warming;
mod in_order;
mod instruction_counts;
mod measured;
mod memory_order;
mod model;
mod model_error;
mod operations;
mod out_of_order;
mod parameters;
mod pipeline;
mod program;
mod queues;
mod registers;
mod stack;
mod statistics;
mod stores;
mod timeline;
mod units;
mod value;
mod wrong_path;

pub use front_end::{BranchCounts, FetchOptions};
pub use instruction_counts::{InstructionCounts, Stall};
pub use model::{ModelKind, TimingModel};
pub use model_error::ModelError;
pub use program::BlockCounts;
pub use stack::{Cause, CpiStack};
