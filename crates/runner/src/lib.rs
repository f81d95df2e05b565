//! Runs a program as a process: one host thread and one core for each guest thread, functionally or in simulated time.
//! `longma-linux` implements the system calls, and `longma-core` executes instructions.

pub mod checkpoint;
mod cores;
pub mod devices;
mod early_stop;
mod ending;
mod engine;
mod gdb;
mod kernel_model;
mod node;
mod observed_machine;
pub mod profile;
mod program;
mod report;
pub mod schedule;
mod shared;
pub mod simulation;
mod source_lines;
mod stacks;
pub mod symbols;
mod thread_loop;
mod translated;
mod unwind;

pub use early_stop::{EarlyStop, StopReason};
pub use ending::Ending;
pub use gdb::Debugger;
pub use longma_champsim as champsim;
pub use longma_core::{ConfigurationWords, Counts, Executed, Execution, SharedCode};
pub use longma_guest::elf::{ElfError, SUPPORTED_ARCHITECTURES};
pub use longma_guest::host::{descriptors, main_stack};
pub use longma_linux::{HostOperation, LoadError, NextProgram, ProcessConfig, Sink, StoredLimit};
pub use longma_timing as timing;
pub use longma_translate::optimizations;
pub use longma_translate_x86::features as x86_features;
pub use node::{Node, NodeConfig, NodeError};
pub use observed_machine::{ObservedMachine, UnsupportedCores};
pub use report::Report;
pub use shared::{Callbacks, Executes, Finish};
pub use source_lines::{SourceFrame, SourceLine, SourceLines};
pub use stacks::{AddressStack, Stack};
pub use translated::listing;
