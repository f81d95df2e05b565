//! A pointer chase on an idle machine measures the latency stated in the machine file, at every level of every machine.
//!
//! Source: lat_mem_rd of lmbench (McVoy and Staelin, USENIX 1996), in random order.

use longma_memory::placement::{Policy, SpaceId};
use longma_memory::{Detail, MemoryPort, MemorySystem, Source};
use longma_sim::Cycle;
use longma_topology::parts::{Cache, CacheKind};
use longma_topology::{BUILTIN, Machine};

const SPACE: SpaceId = SpaceId(0);

fn machine(name: &str) -> Machine {
    Machine::open(name).unwrap()
}

fn system(machine: &Machine) -> MemorySystem {
    MemorySystem::new(machine, 0, Detail::Timing, 1).unwrap()
}

/// The numbers 0 to `n` - 1, shuffled with a linear congruential generator.
fn shuffled(n: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..n).collect();
    let mut state = 12345u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

/// Loads each line once, one after another. Returns the mean cycles of a load without translation, and the most
/// frequent source.
fn chase(system: &mut MemorySystem, core: usize, lines: &[u64], now: &mut u64) -> (f64, Source) {
    let bytes = system.line_bytes();
    let mut port = system.port(core);
    let (mut total, mut sources) = (0, [0u64; 6]);
    for line in lines {
        let answer = port.load(line * bytes, 8, 0x1000, Cycle(*now));
        total += answer.ready.0 - *now - u64::from(answer.translation_cycles);
        *now = answer.ready.0;
        sources[answer.source as usize] += 1;
    }
    let main_source = Source::ALL.into_iter().max_by_key(|s| sources[*s as usize]).unwrap();
    (total as f64 / lines.len() as f64, main_source)
}

/// The caches on the path of core 0's loads, nearest first.
fn caches(machine: &Machine) -> Vec<&Cache> {
    let host = &machine.layout().hosts[0];
    let all = host.cores[0].caches.iter().map(|i| &machine.caches[&host.caches[*i].cache]);
    let mut caches: Vec<_> = all.filter(|c| c.kind != CacheKind::Instruction).collect();
    caches.sort_by_key(|c| c.level);
    caches
}

fn close(measured: f64, stated: f64) -> bool {
    (measured - stated).abs() <= 0.05 * stated
}

#[test]
fn every_cache_of_every_machine_answers_after_its_stated_latency() {
    for builtin in BUILTIN {
        let machine = machine(builtin.name);
        let clock = machine.cores[&machine.layout().hosts[0].cores[0].core].clock;
        let mut above = 0;
        for cache in caches(&machine) {
            let mut system = system(&machine);
            // More than the levels above hold, and less than this one holds.
            let set = (cache.size.bytes() / 2).max(above * 2).min(cache.size.bytes() * 3 / 4);
            let order = shuffled(set / cache.line.bytes());
            let mut now = 0;
            chase(&mut system, 0, &order, &mut now);
            let (measured, source) = chase(&mut system, 0, &order, &mut now);
            let cycle_ps = 1e12 / clock.hz() as f64;
            let stated = cache.latency.unwrap().ps(clock) as f64 / cycle_ps;
            let (name, level) = (builtin.name, cache.level);
            assert!(
                close(measured, stated),
                "{name} L{level}: {measured:.1} cycles, stated {stated:.1}, from {source:?}"
            );
            above = cache.size.bytes();
        }
    }
}

#[test]
fn a_memory_latency_below_the_sum_of_its_components_is_rejected() {
    let (_, text) = Machine::text("loongson-3a5000").unwrap();
    let built = |from: &str, to: &str, latency: &str| {
        assert!(text.contains(from) && text.contains("latency = \"140 ns\""));
        let text = text.replacen(from, to, 1).replacen("latency = \"140 ns\"", latency, 1);
        let text = text.replacen("latency = \"depth\", queue", "queue", 1);
        let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        MemorySystem::new(&machine, 0, Detail::Timing, 1).err().map(|error| error.to_string())
    };
    let (trcd, slow) = ("trcd = \"13.75 ns\"", "trcd = \"200 cycles\"");
    let refused = built(trcd, slow, "latency = \"140 ns\"").unwrap();
    assert!(refused.contains("node 0's memory") && refused.contains("140.0 ns"), "{refused}");
    assert_eq!(built(trcd, slow, "latency = \"250 ns\""), None);
    assert_eq!(built(trcd, slow, ""), None, "without a stated latency, the sum of the components applies");
    assert_eq!(built(trcd, "trcd = \"100 cycles\"", "latency = \"140 ns\""), None);
}

/// Round-trip time to the other chip's memory, picoseconds, for machines with several nodes that state no distances.
fn crossing_ps(name: &str) -> u64 {
    match name {
        // 100 ns of latency, 12.5 ns for 8 bytes of request and 32 bytes of reply at 3.2 GB/s, and the rest in
        // crossbars.
        "godson3-two-chips" => 114_375,
        _ => panic!("{name}: add the time of a crossing for this machine"),
    }
}

#[test]
fn memory_of_every_machine_answers_after_its_stated_latency_at_every_distance() {
    for builtin in BUILTIN {
        let machine = machine(builtin.name);
        let host = &machine.layout().hosts[0];
        let clock = machine.cores[&host.cores[0].core].clock;
        let distances = machine.hosts[host.of].distances.as_ref().and_then(|d| d.latency.as_ref());
        for (node, instance) in host.nodes.iter().enumerate() {
            let mut system = system(&machine);
            system.spaces().set_policy(SPACE, Policy::Bind(vec![node])).unwrap();
            let stated = match distances {
                Some(matrix) => matrix.rows[0][node].ps(),
                // The machine file does not state the latency of the interconnect.
                None => {
                    let own = machine.memories[&instance.memories[0]].latency.unwrap().ps(clock);
                    own + if node == 0 { 0 } else { crossing_ps(builtin.name) }
                }
            };
            // Touch pages in order, as a program that initializes its memory does. If the chase touched them, they
            // would be allocated in its order.
            let page = system.spaces().page_bytes();
            for n in 0..(320 << 20) / page {
                system.spaces().translate(SPACE, n, 0);
            }
            // Each line once, spread over 256 MiB, so that no cache holds it.
            let order: Vec<_> = shuffled(20_000).into_iter().map(|n| n * 209).collect();
            let (measured, source) = chase(&mut system, 0, &order, &mut 0);
            let found_ps = measured * 1e12 / clock.hz() as f64;
            let name = builtin.name;
            assert!(
                close(found_ps, stated as f64),
                "{name} node {node}: {found_ps:.0} ps, stated {stated} ps"
            );
            let expected = if node == 0 { Source::LocalMemory } else { Source::Remote };
            assert_eq!(source, expected, "{name} node {node}");
        }
    }
}
