//! Host time of an access by the level that answers it: first, second and third level, and memory. Uses pointer chases
//! in random order, like `tests/latency.rs`.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem};
use longma_sim::Cycle;
use longma_topology::Machine;
use std::hint::black_box;

const ACCESSES: usize = 1_000_000;

/// Working sets: name and bytes.
const SETS: [(&str, u64); 8] = [
    ("one line", 64),
    ("4 KiB", 4 << 10),
    ("half of L1", 32 << 10),
    ("L2", 192 << 10),
    ("L3", 4 << 20),
    ("memory, 64 MiB", 64 << 20),
    ("memory, 256 MiB", 256 << 20),
    ("memory, 1 GiB", 1 << 30),
];

fn shuffled(n: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut state = 12345u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

/// CPU time of this thread, unaffected by other load on the host.
fn on_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts a thread's time");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the first word is nanoseconds")
}

fn measure(machine: &Machine, detail: Detail, bytes: u64) -> (f64, f64) {
    // Built-in machine files always build.
    let mut system = MemorySystem::new(machine, 0, detail, 1).expect("a built-in machine builds");
    let page = system.spaces().page_bytes();
    for n in 0..bytes.div_ceil(page) {
        system.spaces().translate(SpaceId(0), n, 0);
    }
    let line = system.line_bytes();
    let order = shuffled(bytes / line);
    let mut port = system.port(0);
    let mut now = 0;
    let mut run = |count: usize| {
        let begin = (on_cpu_ns(), now);
        for n in order.iter().cycle().take(count) {
            now = port.load(u64::from(*n) * line, 8, 0x100, Cycle(now)).ready.0.max(now + 1);
        }
        let ns_per_access = (on_cpu_ns() - begin.0) as f64 / count as f64;
        (ns_per_access, (now - begin.1) as f64 / count as f64)
    };
    run(ACCESSES.min(order.len() * 2));
    black_box(run(ACCESSES))
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let names = if names.is_empty() { vec!["loongson-3a5000".into(), "hygon-8node".into()] } else { names };
    for name in names {
        let machine = Machine::open(&name).expect("a machine's name or file");
        println!("{name}: working set, host ns a load counting and timing, simulated cycles");
        for (set, bytes) in SETS {
            let (counts, _) = measure(&machine, Detail::Counts, bytes);
            let (timing, cycles) = measure(&machine, Detail::Timing, bytes);
            println!("  {set:16} {counts:8.1} {timing:8.1} {cycles:10.1}");
        }
    }
}
