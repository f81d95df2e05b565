//! Links the system's RocksDB: building it takes half an hour.
//! Source: rocksdb/c.h.

fn main() {
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        println!("cargo::rustc-link-lib=dylib=rocksdb");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
