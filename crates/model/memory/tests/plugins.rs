//! Prefetchers and replacement policies as WebAssembly modules, as programs observe them.

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
    for (cache, expected) in [("l1d", "core0.l1d"), ("l2", "core0.l2"), ("l3", "l3")] {
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
    assert!(
        error.starts_with("the prefetcher of cache `l2` cannot run: it must export `observe("),
        "{error}"
    );
}

/// A machine with other keys in its cache `cache`, which name `MODULE` as their module.
fn with_policy((base, cache): (&str, &str), keys: &str, module: &[u8]) -> Result<MemorySystem, BuildError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.wasm");
    std::fs::write(&path, module).unwrap();
    let keys = keys.replace("MODULE", &path.display().to_string());
    let text = format!("extends = \"{base}\"\nname = \"own\"\n[caches.{cache}]\n{keys}\n");
    let machine = Machine::parse("own.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1)
}

const POLICY: &str = "replacement = \"plugin\"\nreplacement_module = \"MODULE\"";

#[test]
fn the_sample_policies_have_the_results_of_the_built_in_ones_in_data_caches() {
    let samples: [(&str, &[u8]); 2] = [
        ("lru", include_bytes!("../../plugin/samples/lru.wasm")),
        ("rrip", include_bytes!("../../plugin/samples/srrip.wasm")),
    ];
    for (policy, module) in samples {
        for cache in ["l1d", "l2", "l3"] {
            // Caches are made small, so that the last one evicts lines.
            let (size, above) = match cache {
                "l3" => ("size = \"64 KiB\"\n", "\n[caches.l2]\nsize = \"64 KiB\""),
                _ => ("", ""),
            };
            let place = ("zns-host", cache);
            let mut own = with_policy(place, &format!("{size}{POLICY}{above}"), module).unwrap();
            let built_in = format!("{size}replacement = \"{policy}\"{above}");
            let mut built_in = with_policy(place, &built_in, module).unwrap();
            let own = statistics(&mut own).unwrap();
            assert_eq!(own, statistics(&mut built_in).unwrap(), "{policy}, {cache}");
            let name = if cache == "l3" { "l3.evictions".into() } else { format!("core0.{cache}.evictions") };
            assert!(own.iter().any(|(found, _)| *found == name), "{cache} evicts lines");
        }
    }
}

/// Whether the function `name` of a policy in `cache` of a 3A5000 is called with a kind and an instruction.
fn is_called(cache: &str, name: &str, kind: i32, instruction: u64) -> bool {
    let trap = format!(
        "(if (i32.and (i32.eq (local.get 4) (i32.const {kind})) (i64.eq (local.get 3) (i64.const {instruction}))) \
        (then unreachable))"
    );
    let function = |of: &str| {
        let body = if of == name { &trap } else { "" };
        format!("(func (export \"{of}\") (param i32 i32 i64 i64 i32) {body})")
    };
    let module = format!(
        "(module {} {} (func (export \"victim\") (param i32 i64 i64 i64 i32) (result i32) \
        (i32.wrap_i64 (i64.ctz (local.get 1)))))",
        function("used"),
        function("filled")
    );
    let module = wat::parse_str(module).unwrap();
    let mut system = with_policy(("loongson-3a5000", cache), POLICY, &module).unwrap();
    let (mut now, mut port) = (0, system.port(0));
    port.set_space(SpaceId(0));
    // More lines than the private caches hold, twice.
    for line in 0..8192 {
        now = port.load(line * 64, 8, 0x1230, Cycle(now)).ready.0;
        now = port.store(line * 64, 8, 0x1234, Cycle(now)).ready.0;
    }
    for line in 0..8192 {
        now = port.load(line * 64, 8, 0x1238, Cycle(now)).ready.0;
    }
    let report = system.report(&mut Statistics::default(), Duration::from_ps(now));
    let expected = format!("`{name}` failed: ");
    assert!(report.as_ref().err().is_none_or(|error| error.to_string().contains(&expected)), "{report:?}");
    report.is_err()
}

#[test]
fn a_policy_gets_the_instruction_and_the_kind_in_every_cache() {
    const LOAD: i32 = 0;
    const STORE: i32 = 1;
    const PREFETCH: i32 = 3;
    const WRITE_BACK: i32 = 5;
    for (cache, name, kind, instruction, expected) in [
        ("l1d", "filled", LOAD, 0x1230, true),
        ("l1d", "used", STORE, 0x1234, true),
        ("l1d", "used", PREFETCH, 0x1230, false),
        ("l2", "filled", WRITE_BACK, 0, true),
        ("l2", "filled", LOAD, 0x1230, false),
        ("l3", "filled", LOAD, 0x1230, true),
        ("l3", "filled", PREFETCH, 0x1230, true),
        ("l3", "used", LOAD, 0x1238, true),
    ] {
        let is_called = is_called(cache, name, kind, instruction);
        assert_eq!(is_called, expected, "{cache}, {name}, {kind}, {instruction:#x}");
    }
}

#[test]
fn a_policy_that_fails_is_named_with_its_cache() {
    let module = "(module (func (export \"used\") (param i32 i32 i64 i64 i32)) \
        (func (export \"filled\") (param i32 i32 i64 i64 i32)) \
        (func (export \"victim\") (param i32 i64 i64 i64 i32) (result i32) (i32.const 8)))";
    let module = wat::parse_str(module).unwrap();
    for (cache, expected) in [("l1d", "core0.l1d"), ("l2", "core0.l2")] {
        let mut system = with_policy(("zns-host", cache), POLICY, &module).unwrap();
        let error = statistics(&mut system).unwrap_err().to_string();
        let head = format!("the replacement policy of {expected} has failed: `victim` returned way 8, ");
        assert!(error.starts_with(&head), "{error}");
    }
    let error = with_policy(("zns-host", "l2"), POLICY, b"\0asm\x01\0\0\0").unwrap_err().to_string();
    assert!(
        error.starts_with("the replacement policy of cache `l2` cannot run: it must export `used("),
        "{error}"
    );
}
