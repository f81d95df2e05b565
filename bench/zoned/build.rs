//! Links the system's RocksDB, because building RocksDB takes half an hour.

fn main() {
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        println!("cargo::rustc-link-lib=dylib=rocksdb");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
