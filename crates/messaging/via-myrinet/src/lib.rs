//! A modelled Myrinet as a provider of `longma-via`: unmodified programs run on it in simulated time, with BVIA's or
//! MyVIA's firmware. All hosts are in one process. The host's clock is read only for the deadlines of callers.
//!
//! Source: Jiao Zhenqiang et al., "MyVIA: one of design and implementation of VIA based on Myrinet".

mod bvia;
mod connecting;
mod job;
mod lanai;
mod link;
mod myvia;
mod requests;
mod ring;
mod settings;
mod station;
pub mod steps;
mod translation;
mod world;

pub use connecting::{Fabric, Myrinet};
pub use lanai::{Parameters, ParametersError};
pub use settings::{Kind, Settings};
pub use world::Counts;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
