//! Placement of virtual machines as a service: an API over the scheduler and its store, agents on the hosts, a client.
//! Not the decisions (`longma-placement`), and not the command: nothing here prints.
//! Source: RFC 9110 (HTTP), 9457 (problem details), 6750 (bearer tokens); the HTML standard for server-sent events.

pub mod access;
pub mod agent;
mod api;
mod certificate;
pub mod client;
mod decider;
mod desk;
mod home;
pub mod libvirt;
mod listen;
mod lost;
mod metrics;
mod refusal;
mod seats;
mod serve;
mod signals;
pub mod wire;

pub use agent::AllInOne;
pub use api::{key_given_twice, openapi};
pub use client::Client;
pub use home::{Access, default_home};
pub use serve::{Options, ServeError, serve};

/// Where a service's own words go: one line each, for an operator.
pub type Log = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
