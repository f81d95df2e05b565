//! VIPL for C programs: the calls of `include/vipl.h`, each a few lines on top of `longma-via`.
//! Not the machinery: what a call means is said there. Not for Rust programs either, but for those that bring C programs more NICs.
//! Source: VI Architecture Specification 1.0, and its VI Provider Library; `include/vipl.h` has the names and layouts.
//!
//! Safety of every exported function: pointers must be null (which is an invalid parameter) or point to what the header says, which C
//! has no way to check. Handles are checked: any number may be one (`handles.rs`).
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

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
