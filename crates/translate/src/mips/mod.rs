//! MIPS64 release 2, n64, little endian.
//! Not the engine, which knows no source architecture.
//! Source: MIPS64 Architecture for Programmers, volumes I-A, II-A.

pub mod code;
mod float;
pub mod frame;
pub mod instruction;
mod lower;
pub mod numbers;
mod plain;
pub mod registers;
mod service;
pub mod system;
pub mod unit;

pub use service::{Served, Settle, serve};
