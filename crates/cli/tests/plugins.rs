//! Tests prefetchers as WebAssembly modules: the samples, and modules that fail.

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

/// A folder with machine files.
struct Machines(TempDir);

impl Machines {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a machine with a prefetcher at its data cache.
    fn write(&self, name: &str, prefetcher: &str) -> PathBuf {
        let path = self.0.path().join(format!("{name}.toml"));
        let head = format!("extends = \"loongson-3a5000\"\nname = \"{name}\"\n[caches.l1d.prefetcher]\n");
        fs::write(&path, format!("{head}{prefetcher}\nsource = \"prefetch\"\n")).unwrap();
        path
    }

    fn run(&self, machine: &Path, statistics: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        command.args(["run", "--level", "timing", "--quiet", "--machine"]).arg(machine);
        command.arg("--stats-out").arg(self.0.path().join(statistics));
        command.arg(guest("sort")).args(["2000"]).output().expect("the command starts")
    }

    /// The statistics of a run.
    fn statistics(&self, machine: &Path) -> serde_json::Value {
        let run = self.run(machine, "statistics.json");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let text = fs::read(self.0.path().join("statistics.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["statistics"].clone()
    }
}

#[test]
fn the_samples_have_the_results_of_the_built_in_kinds() {
    let machines = Machines::new();
    for (module, kind) in [("stride", "stride"), ("next_line", "next-line")] {
        fs::copy(sample(&format!("{module}.wasm")), machines.0.path().join("own.wasm")).unwrap();
        let keys = "degree = 3\ndistance = 2\nstreams = 32";
        let own = machines.write("own", &format!("kind = \"plugin\"\nmodule = \"own.wasm\"\n{keys}"));
        let built_in = machines.write("built-in", &format!("kind = \"{kind}\"\n{keys}"));
        let (own, built_in) = (machines.statistics(&own), machines.statistics(&built_in));
        assert_eq!(own, built_in, "{module}");
        let prefetched = own["core0"]["l1d"]["prefetched"]["value"].as_u64();
        assert!(prefetched.is_some_and(|lines| lines > 100), "{module}: {prefetched:?}");
    }
}

#[test]
fn a_failed_module_leaves_no_results() {
    let machines = Machines::new();
    // (module (func (export "observe") (param i64 i64 i32) unreachable))
    let module = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x03\x7e\x7e\x7f\0\x03\x02\x01\0\x07\x0b\x01\x07observe\0\0\x0a\x05\x01\x03\0\0\x0b";
    fs::write(machines.0.path().join("own.wasm"), module).unwrap();
    let machine = machines.write("own", "kind = \"plugin\"\nmodule = \"own.wasm\"");
    let run = machines.run(&machine, "statistics.json");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(
        errors.contains("no result: the statistics cannot be computed: the prefetcher of core 0 has failed"),
        "{errors}"
    );
    assert!(errors.contains("`observe` failed: "), "{errors}");
    assert!(!run.status.success() && !machines.0.path().join("statistics.json").exists());
}

#[test]
fn a_module_that_cannot_run_is_refused_before_the_program_starts() {
    let machines = Machines::new();
    fs::write(machines.0.path().join("own.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let machine = machines.write("own", "kind = \"plugin\"\nmodule = \"own.wasm\"");
    let run = machines.run(&machine, "statistics.json");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(errors.contains("the plug-in of cache `l1d`: it must export `observe("), "{errors}");
    assert!(!run.status.success() && run.stdout.is_empty());
}
