//! libfabric's binary interface: the structures, tables of functions and constants that a provider shares with it. Nothing
//! is executed here.
//!
//! Source: the headers of libfabric 1.17, with which `layout_tests` compares.

pub(crate) mod constants;
#[cfg(test)]
mod layout_tests;
pub(crate) mod operations;
pub(crate) mod structures;

pub(crate) use operations::*;
pub(crate) use structures::*;
