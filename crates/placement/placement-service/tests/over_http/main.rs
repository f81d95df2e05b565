//! Tests of the service over HTTP. One test program with a module per topic, so that the service is linked only once.

mod api;
mod dead_hosts;
mod hostile;
mod mistaken;
mod odd_circumstances;
mod protocol;
mod security;
mod service;
mod tls;
