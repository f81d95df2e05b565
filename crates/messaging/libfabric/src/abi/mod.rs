//! libfabric's binary interface: structures, function tables and constants, without behaviour.
//!
//! Source: the headers of libfabric 1.17; `layout_tests` compares this module with them.

pub(crate) mod constants;
#[cfg(test)]
mod layout_tests;
pub(crate) mod operations;
pub(crate) mod structures;

pub(crate) use operations::*;
pub(crate) use structures::*;
