//! The hardware of a Myrinet NIC with a LANai 4 processor, its PCI bus, and the switch: which unit may move data when.
//! The components compute times; the caller runs the firmware and the event loop.
//!
//! Source: Myricom, "LANai 4.X" (1996); Dubnicki et al., "Design and Implementation of Virtual Memory-Mapped
//! Communication on Myrinet" (IPPS 1997); PCI Local Bus Specification 2.2.

mod bus;
mod card;
mod parameters;
mod switch;

pub use bus::{Bus, Direction};
pub use card::{Card, Engine};
pub use parameters::{Parameters, ParametersError};
pub use switch::Switch;
