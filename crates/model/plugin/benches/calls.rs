//! Host time of a call of the sample prefetchers, for lines that advance by a constant stride, so that each call
//! requests lines.

use longma_plugin::{Event, Geometry, PrefetcherPlugin};
use std::hint::black_box;

const CALLS: u64 = 2_000_000;
const RUNS: usize = 5;

/// CPU time of this thread, unaffected by other load on the host.
fn on_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts a thread's time");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the first word is nanoseconds")
}

fn main() {
    let samples: [(&str, &[u8]); 2] = [
        ("stride.wasm", include_bytes!("../samples/stride.wasm")),
        ("next_line.wasm", include_bytes!("../samples/next_line.wasm")),
    ];
    let geometry = Geometry { line_bytes: 64, page_lines: 256, degree: 2, distance: 4, streams: 16 };
    for (name, module) in samples {
        let mut ns: Vec<f64> = (0..RUNS)
            .map(|_| {
                let mut plugin = PrefetcherPlugin::new(module, geometry).expect("the sample is a plug-in");
                let start = on_cpu_ns();
                for n in 0..CALLS {
                    black_box(plugin.observe(3 * n, 0x1000, Event::Miss));
                }
                (on_cpu_ns() - start) as f64 / CALLS as f64
            })
            .collect();
        ns.sort_by(f64::total_cmp);
        println!("{name}: {:.0} ns a call (median of {RUNS} runs of {CALLS} calls)", ns[RUNS / 2]);
    }
}
