//! A functional model of a core: an interpreter for cold code and a just-in-time translator for hot code. Traps and
//! threads are handled by the caller. Source: see the book's chapter on execution.

mod block;
mod changes;
mod cold_breaks;
mod core;
mod counting;
mod cpu;
mod frame;
mod guest;
mod jit;
mod magic;
mod origin;
mod profile;
mod readers;
mod recorder;
mod register_accesses;
mod return_stack;
mod shared_code;
mod stop;
pub mod system;
mod traced_blocks;

pub use crate::{
    core::Core,
    counting::Executed,
    cpu::Cpu,
    guest::{ConfigurationWords, Guest, STABLE_COUNTER_HZ, SimulatedClock},
    jit::exported_code::ExportedRegions,
    jit::listing::{HostCode, Instrumentation, field_name},
    magic::Magic,
    origin::Origin,
    shared_code::{Counts, Execution, SharedCode, Watch},
    stop::Stop,
};
