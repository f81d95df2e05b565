//! VIPL for C programs: implements the functions of `include/vipl.h` on top of `longma-via`. The Rust interface serves
//! only to add NICs.
//!
//! Source: VI Architecture Specification 1.0 and its VI Provider Library; `include/vipl.h` has the names and layouts.
//!
//! Safety of all exported functions: pointers must be null (which is an invalid parameter) or valid as described in the
//! header; C offers no way to check that. Handles are checked, so any number may be passed (`handles.rs`).
#![allow(clippy::missing_safety_doc)]

mod completion;
mod completion_queue;
mod connection;
mod data;
mod device;
mod handles;
mod layout;
mod management;
mod name_service;
mod nic;
mod vi;

pub use device::{Devices, add_devices};

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
