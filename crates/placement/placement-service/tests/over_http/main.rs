//! Tests of the service over HTTP. One test program with a module per topic, so that the service is linked only once.

mod accountability;
mod ambiguous_input;
mod api;
mod dead_hosts;
mod hostile;
mod kubernetes;
mod metrics;
mod migrate;
mod protocol;
mod rare_events;
mod security;
mod service;
mod tls;
