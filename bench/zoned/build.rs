//! Links RocksDB's C interface from the system.
//! Not built here: RocksDB takes half an hour to compile.
//! Source: rocksdb/c.h.

fn main() {
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        println!("cargo::rustc-link-lib=dylib=rocksdb");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
