//! Timing models against programs whose time can be worked out by hand, and against properties that hold for every program.
//! Not a comparison with a real chip.
//! Source: the sums are in the tests.

mod contention;
mod counting;
mod dataflow;
mod few_registers;
mod in_order;
mod memory_order;
mod memory_system;
mod out_of_order;
mod outside;
mod program;
mod properties;
mod reference;
