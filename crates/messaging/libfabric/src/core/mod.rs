//! The provider without libfabric's structures: endpoints that exchange messages over connections of `longma-via`.
//! `unsafe` is confined to `buffer`, the program's memory, and `slots`, a connection's memory.

pub(crate) mod address;
pub(crate) mod address_vector;
pub(crate) mod atomics;
pub(crate) mod buffer;
pub(crate) mod completion;
pub(crate) mod connection;
pub(crate) mod counter;
pub(crate) mod endpoint;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod link;
pub(crate) mod log;
pub(crate) mod matching;
pub(crate) mod memory_keys;
pub(crate) mod operation;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod wire;
