//! Tests plug-ins as WebAssembly modules in whole runs: the samples, and modules that fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/plugin/samples").join(name)
}

/// Guests that use caches and branches in different ways, small enough for seconds in a model.
const GUESTS: [&[&str]; 5] = [
    &["sort", "2000"],
    &["queens", "5"],
    &["bytecode", "1"],
    &["pointer_chase", "6144", "7000"],
    &["sharing", "7", "3", "100"],
];

/// A folder with machine files.
struct Machines(TempDir);

impl Machines {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a machine that differs from `base` in `keys`.
    fn write(&self, base: &str, name: &str, keys: &str) -> PathBuf {
        let path = self.0.path().join(format!("{name}.toml"));
        fs::write(&path, format!("extends = \"{base}\"\nname = \"{name}\"\n{keys}\n")).unwrap();
        path
    }

    /// Writes a 3A5000 with a prefetcher at its data cache.
    fn with_prefetcher(&self, name: &str, keys: &str) -> PathBuf {
        let table = format!("[caches.l1d.prefetcher]\n{keys}\nsource = \"prefetch\"");
        self.write("loongson-3a5000", name, &table)
    }

    /// Copies or writes the module that machines here name as `own.wasm`.
    fn module(&self, module: &[u8]) {
        fs::write(self.0.path().join("own.wasm"), module).unwrap();
    }

    fn sample(&self, name: &str) {
        self.module(&fs::read(sample(&format!("{name}.wasm"))).unwrap());
    }

    fn run(&self, machine: &Path, command: &[&str]) -> Output {
        let mut longma = Command::new(env!("CARGO_BIN_EXE_longma"));
        longma.args(["run", "--level", "timing", "--quiet", "--machine"]).arg(machine);
        longma.arg("--stats-out").arg(self.0.path().join("statistics.json"));
        longma.arg(guest(command[0])).args(&command[1..]).output().expect("the command starts")
    }

    /// The statistics of a run.
    fn statistics(&self, machine: &Path, command: &[&str]) -> serde_json::Value {
        let run = self.run(machine, command);
        assert!(run.status.success(), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
        let text = fs::read(self.0.path().join("statistics.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["statistics"].clone()
    }

    /// Checks that each guest has the same statistics with each of the two keys.
    fn assert_same(&self, base: &str, own: &str, built_in: &str, command: &[&str]) -> serde_json::Value {
        let own = self.write(base, "own", own);
        let built_in = self.write(base, "built-in", built_in);
        let (own, expected) = (self.statistics(&own, command), self.statistics(&built_in, command));
        assert_eq!(own, expected, "{base}, {command:?}");
        own
    }
}

fn count(statistics: &serde_json::Value, [unit, part, name]: [&str; 3]) -> u64 {
    statistics[unit][part][name]["value"].as_u64().unwrap_or(0)
}

#[test]
fn the_sample_prefetchers_have_the_results_of_the_built_in_kinds() {
    let machines = Machines::new();
    for (module, kind) in [("stride", "stride"), ("next_line", "next-line")] {
        machines.sample(module);
        let keys = "degree = 3\ndistance = 2\nstreams = 32";
        let own =
            machines.with_prefetcher("own", &format!("kind = \"plugin\"\nmodule = \"own.wasm\"\n{keys}"));
        let built_in = machines.with_prefetcher("built-in", &format!("kind = \"{kind}\"\n{keys}"));
        let [own, built_in] = [own, built_in].map(|machine| machines.statistics(&machine, GUESTS[0]));
        assert_eq!(own, built_in, "{module}");
        assert!(count(&own, ["core0", "l1d", "prefetched"]) > 100, "{module}");
    }
}

/// Caches of each level and kind: private and shared, inclusive, exclusive and victim.
#[test]
fn the_sample_replacement_policies_have_the_results_of_the_built_in_ones() {
    let machines = Machines::new();
    for (module, policy) in [("lru", "lru"), ("srrip", "rrip")] {
        machines.sample(module);
        for (base, caches) in [
            ("loongson-3a5000", &["l1i", "l1d", "l2", "l3"][..]),
            ("zns-host", &["l1d", "l2", "l3"]),
            ("godson3", &["l1d", "l2"]),
        ] {
            // The interpreter takes most of the time.
            let guests = if base == "loongson-3a5000" { &GUESTS[..] } else { &GUESTS[3..] };
            for command in guests {
                // A small last level, so that lines are evicted there too.
                let size = "size = \"256 KiB\"\n";
                let keys = |value: &str| {
                    let tables = caches.iter().map(|cache| format!("[caches.{cache}]\n{value}\n"));
                    tables.collect::<String>() + size
                };
                let own = keys("replacement = \"plugin\"\nreplacement_module = \"own.wasm\"");
                let result =
                    machines.assert_same(base, &own, &keys(&format!("replacement = \"{policy}\"")), command);
                if command[0] == "pointer_chase" {
                    assert!(count(&result, ["core0", "l1d", "evictions"]) > 1000, "{base}: {result}");
                }
            }
        }
    }
}

#[test]
fn the_sample_branch_predictors_have_the_results_of_the_built_in_ones() {
    let machines = Machines::new();
    for base in ["loongson-3a5000", "piii-myrinet"] {
        let core = if base == "piii-myrinet" { "p3" } else { "la464" };
        let guests = if base == "piii-myrinet" { &GUESTS[1..2] } else { &GUESTS[..] };
        for command in guests {
            for sizes in ["", "table_entries = 100\nhistory_bits = 3\n"] {
                machines.sample("gshare");
                let head = format!("[cores.{core}.branch]\n{sizes}predictor = ");
                let own = format!("{head}\"plugin\"\npredictor_module = \"own.wasm\"");
                let result = machines.assert_same(base, &own, &format!("{head}\"gshare\""), command);
                assert!(count(&result, ["core0", "branch", "conditional_mispredicted"]) > 10);
            }
            machines.sample("last_target");
            let head = format!("[cores.{core}.branch]\nindirect_entries = 64\nindirect = ");
            let own = format!("{head}\"plugin\"\nindirect_module = \"own.wasm\"");
            machines.assert_same(base, &own, &format!("{head}\"last-target\""), command);
        }
    }
}

/// (module (func (export "observe") (param i64 i64 i32) unreachable))
const FAILING_PREFETCHER: &[u8] = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x03\x7e\x7e\x7f\0\x03\x02\x01\0\x07\x0b\x01\x07observe\0\0\x0a\x05\x01\x03\0\0\x0b";

#[test]
fn a_failed_module_leaves_no_results() {
    let machines = Machines::new();
    machines.module(FAILING_PREFETCHER);
    let machine = machines.with_prefetcher("own", "kind = \"plugin\"\nmodule = \"own.wasm\"");
    let run = machines.run(&machine, &["sort", "200000"]);
    assert!(run.stdout.is_empty(), "the run ends at the failure, before the program does");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(
        errors
            .contains("no result: the statistics cannot be computed: the prefetcher of core0.l1d has failed"),
        "{errors}"
    );
    assert!(errors.contains("`observe` failed: "), "{errors}");
    assert!(!run.status.success() && !machines.0.path().join("statistics.json").exists());
}

#[test]
fn a_module_that_cannot_run_is_refused_before_the_program_starts() {
    let machines = Machines::new();
    machines.module(b"\0asm\x01\0\0\0");
    let prefetcher = machines.with_prefetcher("prefetcher", "kind = \"plugin\"\nmodule = \"own.wasm\"");
    let of = |name: &str, keys: &str| machines.write("loongson-3a5000", name, keys);
    let replacement =
        of("replacement", "[caches.l2]\nreplacement = \"plugin\"\nreplacement_module = \"own.wasm\"");
    let head = "[cores.la464.branch]\n";
    let predictor =
        of("predictor", &format!("{head}predictor = \"plugin\"\npredictor_module = \"own.wasm\""));
    let indirect = of("indirect", &format!("{head}indirect = \"plugin\"\nindirect_module = \"own.wasm\""));
    for (machine, expected) in [
        (prefetcher, "the prefetcher of cache `l1d` cannot run: it must export `observe("),
        (replacement, "the replacement policy of cache `l2` cannot run: it must export `used("),
        (
            predictor,
            "its branch predictor cannot run: it must export `predict(address: i64, target: i64) -> i32`",
        ),
        (
            indirect,
            "its predictor of indirect targets cannot run: it must export `predict(address: i64) -> i64`",
        ),
    ] {
        let run = machines.run(&machine, GUESTS[0]);
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(errors.contains(expected), "{errors}");
        assert!(!run.status.success() && run.stdout.is_empty());
    }
}
