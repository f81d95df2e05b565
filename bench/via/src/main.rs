//! Measures user-level communication side by side, on the same two cores, in the same run.
//! Not part of the workspace; nothing here is needed to use VIA.
//! Source: none.

mod limit;
mod processes;
mod via;

use processes::Cores;

fn main() {
    let cores = Cores(0, 1);
    let what = std::env::args().nth(1).unwrap_or_default();
    for _ in 0..3 {
        if what.is_empty() || what == "small" {
        }
        if what == "rate" {
            println!("rate 8   {:?}", via::rate_mps(cores, 8, 1_000_000));
        }
        if what.is_empty() || what == "small" {
            println!("line     {:?}", limit::line_ns(cores, 500_000));
            println!("send 8   {:?}", via::latency_ns(cores, 8, 300_000));
            println!("rdma 8   {:?}", via::rdma_write_ns(cores, 300_000));
            println!("rate 8   {:?}", via::rate_mps(cores, 8, 5_000_000));
        }
        if what.is_empty() || what == "large" {
            for size in [4096, 65536, 262_144, 1 << 20] {
                println!("memcpy {size} {:?}", limit::memcpy_gbps(cores, size));
                println!("send   {size} {:?}", via::bandwidth_gbps(cores, size));
                println!("rdma   {size} {:?}", via::rdma_gbps(cores, size));
            }
        }
    }
}
