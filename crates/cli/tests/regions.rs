//! Tests regions of interest: only they are counted, and --warm decides whether earlier code warms up the models.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

/// The output and the statistics of a run.
struct RunResult {
    printed: String,
    stderr: String,
    result: Value,
}

impl RunResult {
    fn figure(&self, name: &str) -> f64 {
        let figure = name.split('.').fold(&self.result["statistics"], |part, name| &part[name]);
        figure["value"].as_f64().unwrap_or_else(|| panic!("there is no {name}: {figure}"))
    }

    fn instructions(&self) -> u64 {
        self.figure("run.instructions") as u64
    }

    /// The statistics and the functions.
    fn all(&self) -> (&Value, &Value) {
        (&self.result["statistics"], &self.result["functions"])
    }
}

/// Runs a guest at a level; without a program, restores a checkpoint.
fn run(options: &[&str], program: &[&str]) -> RunResult {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("counted.json");
    let mut command = Command::new("timeout");
    command.arg("120").arg(env!("CARGO_BIN_EXE_longma")).args(["run", "--quiet", "--stats-out"]).arg(&path);
    command.args(options);
    if let [name, arguments @ ..] = program {
        command.arg(guest(name)).args(arguments);
    }
    let run = command.output().expect("the command starts");
    assert!(run.status.success(), "{options:?}: {}", String::from_utf8_lossy(&run.stderr));
    let text = std::fs::read(&path).expect("the result exists");
    RunResult {
        printed: String::from_utf8_lossy(&run.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&run.stderr).into_owned(),
        result: serde_json::from_slice(&text).expect("it is JSON"),
    }
}

#[test]
fn only_the_region_is_counted() {
    // 1250 rounds of eight loads, an add and a branch, with a clock read before and after.
    let chase = ["load_latency", "256", "10000"];
    for level in
        [&["--level", "cache"][..], &["--level", "timing"], &["--level", "timing", "--core", "in-order"]]
    {
        let all = run(level, &chase);
        let region = run(&[level, &["--roi"]].concat(), &chase);
        assert_eq!(all.printed, region.printed);
        assert!((12_500..14_000).contains(&region.instructions()), "{level:?}: {}", region.instructions());
        assert!(all.instructions() > region.instructions() + 10_000, "{level:?}: {}", all.instructions());
        // Building the list stores to each line; following it stores nothing.
        let stores = |result: &RunResult| result.figure("core0.class.store") as u64;
        assert!(stores(&all) > 512 && stores(&region) < 200, "{level:?}: {}", stores(&region));
    }
}

#[test]
fn guests_with_setup_mark_their_region() {
    let guests: [(&str, &[&str]); 15] = [
        ("integer_mix", &["20"]),
        ("bytecode", &["2"]),
        ("queens", &["6", "4"]),
        ("sort", &["1000"]),
        ("hashing", &["70"]),
        ("pointer_chase", &["256", "10000"]),
        ("load_latency", &["256", "10000"]),
        ("memcpy", &["1"]),
        ("stream", &["2000", "10"]),
        ("stream_threads", &["2000", "5", "3"]),
        ("fft", &["8", "3"]),
        ("fft-lasx", &["8", "3"]),
        ("matmul", &["20", "2"]),
        ("mandelbrot", &["8", "50"]),
        ("nbody", &["500"]),
    ];
    for (name, arguments) in guests {
        let program = [&[name], arguments].concat();
        let all = run(&["--level", "cache"], &program);
        let region = run(&["--level", "cache", "--roi"], &program);
        assert_eq!(all.printed, region.printed, "{name}");
        assert!(region.instructions() > 5000, "{name}: {}", region.instructions());
        assert!(region.instructions() < all.instructions(), "{name}: {}", all.instructions());
    }
}

#[test]
fn a_region_begins_with_warm_caches_by_default() {
    // The list was just built and fits the L2 cache: 4096 lines.
    let chase = ["load_latency", "4096", "16384"];
    let warm = run(&["--level", "timing", "--roi"], &chase);
    let cold = run(&["--level", "timing", "--roi", "--warm", "0"], &chase);
    assert_eq!(warm.instructions(), cold.instructions());
    let from_memory = |result: &RunResult| result.figure("core0.data.memory");
    assert!(from_memory(&cold) > 2000.0, "{}", from_memory(&cold));
    assert!(from_memory(&warm) < from_memory(&cold) / 20.0, "{}", from_memory(&warm));
    assert!(warm.figure("run.cycles") < cold.figure("run.cycles"));
    // Warm-up instructions are not counted.
    assert_eq!(warm.figure("core0.class.store"), cold.figure("core0.class.store"));
}

#[test]
fn everything_before_a_region_can_warm_the_caches_while_it_runs() {
    let chase = ["load_latency", "4096", "16384"];
    for level in
        [&["--level", "cache"][..], &["--level", "timing"], &["--level", "timing", "--core", "in-order"]]
    {
        let run = |warm: &str| run(&[level, &["--roi", "--warm", warm]].concat(), &chase);
        let (all, cold) = (run("all"), run("0"));
        assert_eq!((&all.printed, all.instructions()), (&cold.printed, cold.instructions()));
        let from_memory = |result: &RunResult| result.figure("core0.data.memory");
        assert!(from_memory(&all) < from_memory(&cold) / 20.0, "{level:?}: {}", from_memory(&all));
        assert_eq!(
            all.figure("core0.class.store"),
            cold.figure("core0.class.store"),
            "what warms is not counted"
        );
    }
    let longma = env!("CARGO_BIN_EXE_longma");
    let refused = Command::new(longma).args(["run", "--roi", "--warm", "much", "x"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("whole number, or `all`"), "{stderr}");
}

/// If the NIC ran on while the host's clock jumped, it would deliver more than the link carries.
#[test]
fn a_device_does_not_exceed_its_line_rate_during_warm_up() {
    let receive = |warm: &str| {
        run(
            &[
                "--level",
                "timing",
                "--machine",
                "sandybridge-2x6",
                "--roi",
                "--warm",
                warm,
                "--wire",
                "eth0,tcp,bytes=32000000,message=131072,mss=8960",
                "--env=flow=1",
                "--env=application=2",
                "--env=begin=14000000",
                "--env=settle=6000000",
                "--env=bytes=24000000",
                "--env=path=3000",
            ],
            &["flow_receive-lasx", "eth0"],
        )
    };
    let (all, cold) = (receive("all"), receive("0"));
    // The program reads 128 KiB at a time, 3 % of the measured bytes.
    let gbps: f64 = all.stderr.lines().find_map(|line| line.strip_suffix(" Gb/s")?.parse().ok()).unwrap();
    assert!((37.0..41.2).contains(&gbps), "{gbps}");
    let reads = |result: &RunResult| result.figure("memory.line_reads");
    assert!(reads(&all) < reads(&cold) / 4.0, "{} of {}", reads(&all), reads(&cold));
}

#[test]
fn a_restored_run_equals_an_uninterrupted_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("saved");
    let saved = saved.to_str().expect("a path of text");
    for (program, machine) in [
        (&["load_latency", "256", "10000"][..], "loongson-3a5000"),
        (&["sort", "1000"], "sandybridge-2x6"),
        (&["stream_threads", "2000", "2", "3"], "loongson-3a5000"),
    ] {
        let options = ["--level", "timing", "--machine", machine, "--roi", "--warm", "0"];
        let plain = run(&options, program);
        let saving = run(&[&options[..], &["--checkpoint", saved]].concat(), program);
        assert_eq!(saving.all(), plain.all(), "{program:?}: saving changes nothing");
        let restored = run(&[&options[..], &["--restore", saved]].concat(), &[]);
        assert_eq!(restored.printed, plain.printed, "{program:?}");
        assert_eq!(restored.instructions(), plain.instructions(), "{program:?}");
        assert_eq!(restored.all(), plain.all(), "{program:?}");
        // On another machine, the same instructions take a different time.
        let options = ["--level", "timing", "--machine", "hygon-8node", "--roi", "--warm", "0"];
        let elsewhere = run(&[&options[..], &["--restore", saved]].concat(), &[]);
        assert_eq!(elsewhere.printed, plain.printed, "{program:?}");
        assert_ne!(elsewhere.figure("run.time"), plain.figure("run.time"), "{program:?}");
    }
}

#[test]
fn system_calls_take_kernel_time() {
    // 2000 null calls of 400 cycles each.
    let program = ["unix_syscall", "2000", "0"];
    for core in ["in-order", "out-of-order"] {
        let result = run(&["--level", "timing", "--core", core], &program);
        let system = result.figure("core0.cpi.system") * result.instructions() as f64;
        assert!((2000.0 * 400.0..2300.0 * 400.0).contains(&system), "{core}: {system}");
        assert!(result.figure("run.cycles") > system);
    }
    // About 750 calls, seven of which copy 64 KiB, at best one line in 8 cycles.
    let copying = run(&["--level", "timing"], &["unix_copy", "64", "1"]);
    let system = copying.figure("core0.cpi.system") * copying.instructions() as f64;
    assert!((740.0 * 400.0 + 7168.0 * 8.0..900.0 * 400.0 + 7168.0 * 40.0).contains(&system), "{system}");
}
