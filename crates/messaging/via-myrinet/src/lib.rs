//! The modelled Myrinet as a NIC: the same program runs on it in simulated time, with BVIA's or MyVIA's firmware.
//! Not for speed: one process, one world, every host in it. Nothing here reads the host's clock but the deadlines of callers.
//! Source: Jiao Zhenqiang et al., "MyVIA: one of design and implementation of VIA based on Myrinet"; the book's chapter.

mod bvia;
mod connecting;
mod job;
mod lanai;
mod link;
mod meeting;
mod myvia;
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

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
