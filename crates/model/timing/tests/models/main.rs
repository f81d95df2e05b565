//! Timing models on programs with a known time, and general properties of every program.

mod contention;
mod counting;
mod dataflow;
mod few_registers;
mod functional_warming;
mod in_order;
mod memory_order;
mod memory_system;
mod out_of_order;
mod outside;
mod program;
mod properties;
mod reference;
