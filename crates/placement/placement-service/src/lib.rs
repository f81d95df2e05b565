//! VM placement as a service: an HTTP API over the scheduler and its store, host agents, and a client.
//! `longma-placement` makes the decisions. Nothing in this crate prints.
//!
//! Source: RFC 9110 (HTTP), 9457 (problem details), 6750 (bearer tokens); the HTML standard for server-sent events.

pub mod access;
pub mod advise;
pub mod agent;
mod api;
mod certificate;
pub mod client;
mod connection_limit;
mod data_dir;
pub mod fleet_file;
pub mod kubernetes;
pub mod libvirt;
mod listen;
mod metrics;
mod oidc;
mod placement_worker;
mod problem;
mod problem_kind;
mod serve;
mod signals;
mod state;
pub mod trace;
pub mod wire;

pub use agent::AllInOne;
pub use api::{key_given_twice, openapi};
pub use client::Client;
pub use data_dir::{Access, DATABASE, default_data_dir, restore};
pub use oidc::{OidcOptions, RoleRule};
pub use serve::{Options, ServeError, serve};

/// A Grafana dashboard of the metrics, as JSON.
pub const GRAFANA_DASHBOARD: &str = include_str!("../grafana/placement.json");

/// Receives the service's log messages, one line each.
pub type Log = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
