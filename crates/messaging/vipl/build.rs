//! Gives the shared library its name for the loader: programs keep running with later versions that have the same one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.1");
}
