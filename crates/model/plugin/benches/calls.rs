//! Host time of a call of the sample plug-ins. The prefetchers observe lines that advance by a constant stride, so that
//! each call requests lines; a replacement policy uses each line it fills once; a predictor predicts and learns.

use longma_plugin::{
    AccessKind, CacheAccess, CacheShape, DirectionPlugin, Event, Geometry, PredictorSizes, PrefetcherPlugin,
    ReplacementPlugin, TargetPlugin,
};
use std::hint::black_box;

const CALLS: u64 = 2_000_000;
const RUNS: usize = 5;

/// CPU time of this thread, unaffected by other load on the host.
fn on_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts a thread's time");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the first word is nanoseconds")
}

/// Prints the time of a call. `new` creates a plug-in; `step` makes `calls` calls of it.
fn measure<P>(name: &str, calls: u64, new: impl Fn() -> P, mut step: impl FnMut(&mut P, u64)) {
    let mut ns: Vec<f64> = (0..RUNS)
        .map(|_| {
            let mut plugin = new();
            let start = on_cpu_ns();
            (0..CALLS / calls).for_each(|n| step(&mut plugin, n));
            (on_cpu_ns() - start) as f64 / CALLS as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("{name}: {:.0} ns a call (median of {RUNS} runs of {CALLS} calls)", ns[RUNS / 2]);
}

fn main() {
    let prefetchers: [(&str, &[u8]); 2] = [
        ("stride.wasm", include_bytes!("../samples/stride.wasm")),
        ("next_line.wasm", include_bytes!("../samples/next_line.wasm")),
    ];
    let geometry = Geometry { line_bytes: 64, page_lines: 256, degree: 2, distance: 4, streams: 16 };
    for (name, module) in prefetchers {
        let new = || PrefetcherPlugin::new(module, geometry).expect("the sample is a plug-in");
        measure(name, 1, new, |plugin, n| {
            black_box(plugin.observe(3 * n, 0x1000, Event::Miss).len());
        });
    }
    let policies: [(&str, &[u8]); 2] = [
        ("srrip.wasm", include_bytes!("../samples/srrip.wasm")),
        ("lru.wasm", include_bytes!("../samples/lru.wasm")),
    ];
    let shape = CacheShape { sets: 1024, ways: 16, line_bytes: 64 };
    for (name, module) in policies {
        let new = || ReplacementPlugin::new(module, shape).expect("the sample is a plug-in");
        measure(name, 3, new, |plugin, n| {
            let access =
                CacheAccess { set: n as u32 % 1024, line: n, instruction: 0x1000, kind: AccessKind::Load };
            let way = plugin.victim(0xffff, access);
            plugin.filled(way, access);
            plugin.used(way, access);
        });
    }
    let sizes = PredictorSizes { entries: 4096, history: 0 };
    let new = || DirectionPlugin::new(include_bytes!("../samples/gshare.wasm"), sizes).expect("a plug-in");
    measure("gshare.wasm", 2, new, |plugin, n| {
        black_box(plugin.resolve(0x1000 + n % 64 * 4, 0x1000, n % 3 == 0));
    });
    let new = || TargetPlugin::new(include_bytes!("../samples/last_target.wasm"), sizes).expect("a plug-in");
    measure("last_target.wasm", 2, new, |plugin, n| {
        black_box(plugin.resolve(0x1000 + n % 64 * 4, 0x1000 + n % 7 * 4));
    });
}
