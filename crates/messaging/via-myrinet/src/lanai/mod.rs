//! A Myrinet NIC with a LANai 4 processor, the PCI bus it sits on, and the switch: who may move bytes when.
//! Not firmware: a program decides what the engines do. Not an event loop: parts say when things end, the owner comes back then.
//! Source: Myricom, "LANai 4.X" (1996); Dubnicki et al., "Design and Implementation of Virtual Memory-Mapped Communication on
//! Myrinet" (IPPS 1997); PCI Local Bus Specification 2.2.

mod bus;
mod card;
mod parameters;
mod switch;

pub use bus::{Bus, Direction};
pub use card::{Card, Engine};
pub use parameters::{Parameters, ParametersError};
pub use switch::Switch;
