//! Prefetchers as WebAssembly modules, as programs observe them.

use longma_memory::placement::SpaceId;
use longma_memory::{BuildError, Detail, MemoryPort, MemorySystem};
use longma_random::SplitMix64;
use longma_sim::{Cycle, Duration, Statistics, StatisticsError};
use longma_topology::Machine;

/// What kind "next-line" does: `degree` lines from `distance` lines ahead on.
const NEXT_LINE: &str = r#"(module
    (import "longma" "prefetch" (func $prefetch (param i64)))
    (global $degree (mut i32) (i32.const 0))
    (global $distance (mut i32) (i32.const 0))
    (func (export "start") (param i32 i64 i32 i32 i32)
        (global.set $degree (local.get 2))
        (global.set $distance (local.get 3)))
    (func (export "observe") (param $line i64) (param i64) (param $event i32)
        (local $n i32)
        (if (i32.eq (local.get $event) (i32.const 2)) (then return))
        (loop $next
            (call $prefetch (i64.add (local.get $line)
                (i64.extend_i32_u (i32.add (global.get $distance) (local.get $n)))))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $n) (global.get $degree))))))"#;

/// The machine zns-host with this prefetcher at the cache `cache`.
fn build(cache: &str, prefetcher: &str) -> Result<MemorySystem, BuildError> {
    let (_, text) = Machine::text("zns-host").unwrap();
    let head = format!("[caches.{cache}]\n");
    assert!(text.contains(&head), "the machine has a cache {cache}");
    let table = format!("[caches.{cache}.prefetcher]\nsource = \"zen3\"\n{prefetcher}\n\n{head}");
    let machine = Machine::parse("test.toml", &text.replace(&head, &table));
    MemorySystem::new(&machine.unwrap_or_else(|report| panic!("{report}")), 0, Detail::Timing, 1)
}

fn plugin(module: &str, keys: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prefetcher.wasm");
    std::fs::write(&path, wat::parse_str(module).expect("the test's module is valid")).unwrap();
    let head = "extends = \"zns-host\"\nname = \"own\"\n[caches.l2.prefetcher]\nkind = \"plugin\"\n";
    let machine =
        Machine::parse("own.toml", &format!("{head}module = \"{}\"\nsource = \"zen3\"\n", path.display()));
    let toml = machine.unwrap_or_else(|report| panic!("{report}")).to_toml();
    let module = toml.lines().find(|line| line.starts_with("module")).expect("it is written out");
    format!("kind = \"plugin\"\n{module}\n{keys}")
}

/// All statistics after runs of loads in random places, upwards and downwards.
fn statistics(system: &mut MemorySystem) -> Result<Statistics, StatisticsError> {
    let (mut random, mut now) = (SplitMix64::new(5), 0);
    let mut port = system.port(0);
    port.set_space(SpaceId(0));
    for _ in 0..400 {
        let (begin, up) = (random.below(1 << 22), random.below(2) == 0);
        for n in 0..random.below(40) {
            let line = if up { begin + n } else { begin.saturating_sub(n) };
            now = port.load(line * 64, 8, 0x1000 + 4 * (n % 3), Cycle(now)).ready.0;
        }
    }
    assert_eq!(system.check(), Ok(()));
    let mut statistics = Statistics::default();
    system.report(&mut statistics, Duration::from_ps(now)).map(|()| statistics)
}

#[test]
fn a_module_that_does_what_a_built_in_kind_does_has_its_results() {
    for cache in ["l1d", "l2", "l3"] {
        for keys in ["", "degree = 4\ndistance = 3", "crosses_pages = true\ndegree = 2"] {
            let mut own = build(cache, &plugin(NEXT_LINE, keys)).unwrap();
            let mut built_in = build(cache, &format!("kind = \"next-line\"\n{keys}")).unwrap();
            let (own, built_in) = (statistics(&mut own).unwrap(), statistics(&mut built_in).unwrap());
            assert_eq!(own, built_in, "{cache} {keys}");
            let prefetched = own.iter().filter(|(name, _)| name.ends_with("prefetched")).count();
            assert!(prefetched > 0, "it prefetches in {cache}");
        }
    }
}

#[test]
fn hits_are_observed_behind_the_first_level() {
    let module = r#"(module (import "longma" "prefetch" (func $prefetch (param i64)))
        (func (export "observe") (param $line i64) (param i64) (param $event i32)
            (if (i32.eq (local.get $event) (i32.const 2))
                (then (call $prefetch (i64.add (local.get $line) (i64.const 1)))))))"#;
    for (cache, observes) in [("l1d", false), ("l2", true), ("l3", true)] {
        let mut system = build(cache, &plugin(module, "")).unwrap();
        let (mut now, mut port) = (0, system.port(0));
        port.set_space(SpaceId(0));
        // More lines than the caches above hold, each second one, so that none is prefetched before its first use.
        let lines = if cache == "l3" { 32 << 10 } else { 4 << 10 };
        for line in (0..2 * lines).chain(0..2 * lines).step_by(2) {
            now = port.load(line * 64, 8, 0x1000, Cycle(now)).ready.0;
        }
        let mut statistics = Statistics::default();
        system.report(&mut statistics, Duration::from_ps(now)).unwrap();
        let name = if cache == "l3" { "l3.prefetched".into() } else { format!("core0.{cache}.prefetched") };
        assert_eq!(statistics.iter().any(|(found, _)| *found == name), observes, "{cache}");
    }
}

#[test]
fn a_module_that_fails_leaves_no_statistics() {
    let module = "(module (func (export \"observe\") (param i64 i64 i32) unreachable))";
    for (cache, expected) in [("l2", "core 0"), ("l3", "a shared cache")] {
        let mut system = build(cache, &plugin(module, "")).unwrap();
        let error = statistics(&mut system).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("the prefetcher of {expected} has failed: `observe` failed")),
            "{error}"
        );
    }
}

#[test]
fn a_module_that_cannot_run_is_named_with_its_cache() {
    let error = build("l2", &plugin("(module)", "")).unwrap_err().to_string();
    assert!(error.starts_with("the plug-in of cache `l2`: it must export `observe("), "{error}");
}
