//! VIPL for C programs: the calls of `include/vipl.h`, each a few lines on top of `longma-via`.
//! Not the machinery: what a call means is said there. Not for Rust programs either.
//! Source: VI Architecture Specification 1.0, and its VI Provider Library; `include/vipl.h` has the names and layouts.
//!
//! Safety of every exported function: handles must be ones that this library gave out and that were not given back; other
//! pointers must be null (which is an invalid parameter) or point to what the header says. C has no way to check that.
#![allow(clippy::missing_safety_doc)]

mod completion_queue;
mod connection;
mod data;
mod layout;
mod name_service;
mod nic;
mod vi;
