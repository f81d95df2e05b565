//! A libfabric provider over the shared memory of `longma-via`, as a shared object that libfabric loads. It exports
//! `fi_prov_ini` and has no Rust interface.
//!
//! Source: libfabric 1.17, <https://ofiwg.github.io/libfabric/v1.17.0/man/>.

mod abi;
mod core;
mod ffi;
