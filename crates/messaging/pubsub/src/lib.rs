//! Typed publish and subscribe between processes of one host, zero-copy over shared memory.
//!
//! A topic has one publisher, which writes each message once, in place. All subscribers map the same memory read-only.
//! Neither side trusts the other: a subscriber checks all data that it reads, and counts missed messages, and both
//! sides detect the end of the other process.

mod discovery;
mod error;
mod folder;
// These tests are compiled into the crate, because the simulated attackers use its private items.
#[cfg(test)]
#[path = "../tests/hostile/mod.rs"]
mod hostile;
mod layout;
mod memory;
mod message;
mod options;
mod pool;
mod publisher;
mod reactor;
mod ring;
mod sample;
mod service;
mod shared;
mod socket;
mod subscriber;
mod typed;
#[doc(hidden)]
pub mod wire;

pub use discovery::{NamedState, topic, topics};
pub use error::Error;
pub use message::{Message, MessageType, Payload};
pub use options::{Options, Overflow};
pub use subscriber::SubscribeOptions;
pub use typed::{Loan, Publisher, Sample, Subscriber};
pub use wire::{Report, SubscriberReport};

/// Publishers and subscribers of types that are known only at run time, such as those of other languages.
pub mod raw {
    pub use crate::publisher::{MemoryGuard, RawPublisher, WaitLimit};
    pub use crate::sample::RawSample;
    pub use crate::subscriber::RawSubscriber;
}

/// Compiles and runs the examples in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
