//! Tests of sweeps on a simulated host, with a load that only prints a rate.

use super::*;
use crate::fake::FakeHost;
use crate::interface;
use crate::load::Load;
use crate::pairs::all_pairs;
use crate::steering::Steering;
use longma_topology::CpuLocation;
use std::path::PathBuf;

mod varied;

const RPS: &str = "sys/class/net/eth0/queues/rx-0/rps_cpus";
const MTU: &str = "sys/class/net/eth0/mtu";
const THREADED: &str = "sys/class/net/eth0/threaded";

/// A host whose two CPUs are the first usable ones of this machine, so that the load can be bound to them.
fn host() -> FakeHost {
    let mut host = FakeHost::with(&[(RPS, "0"), ("proc/stat", "cpu0 1 0 1 1 0 0 0 0\nctxt 5")]);
    let allowed: CpuSet = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:")?.trim().parse().ok())
        .unwrap();
    let cpus: Vec<u32> = allowed.iter().take(2).collect();
    let place = |cpu: &u32| CpuLocation {
        cpu: *cpu,
        core: vec![*cpu],
        last_cache: Some(cpus.clone()),
        socket: 0,
        node: 0,
    };
    host.cpus = cpus.iter().map(place).collect();
    host
}

fn header(host: &FakeHost, script: &str) -> Header {
    let nic = interface::read(host, &"eth0".parse().unwrap()).unwrap();
    Header {
        affinity_sweep: Header::FORMAT,
        kernel: "test".into(),
        processor: "test".into(),
        places: host.cpus.clone(),
        steering: Steering::of(&nic).unwrap(),
        nic,
        load: Load::Command(["sh", "-c", script].map(String::from).into()),
        seconds: 0,
        sender: None,
    }
}

struct Bench {
    host: FakeHost,
    folder: tempfile::TempDir,
    variants: Vec<Variant>,
    seed: u64,
}

impl Bench {
    fn new() -> Self {
        Self { host: host(), folder: tempfile::tempdir().unwrap(), variants: vec![Variant::new()], seed: 1 }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("results.jsonl")
    }

    fn plan(&self, repeats: u32) -> Plan {
        let cpus: Vec<u32> = self.host.cpus.iter().map(|place| place.cpu).collect();
        Plan { pairs: all_pairs(&cpus), variants: vec![Variant::new()], repeats, seed: self.seed }
    }

    fn run(
        &self,
        script: &str,
        repeats: u32,
        tell: &mut dyn FnMut(&Sample, usize, usize),
    ) -> Result<Outcome, SweepError> {
        let header = header(&self.host, script);
        let stop = AtomicBool::new(false);
        let mut nothing = || None;
        let mut setup = Setup {
            host: &self.host,
            header: &header,
            namespace: None,
            after_failure: &mut nothing,
            stop: &stop,
        };
        let mut journal = Journal::begin(&self.folder.path().join("journal"), &self.host)?;
        let mut results = ResultFile::open(&self.file(), &header)?;
        let mut plan = self.plan(repeats);
        plan.variants = self.variants.clone();
        run(&plan, &mut setup, &mut journal, &mut results, tell)
    }
}

/// A run of one second whose load ends immediately.
#[test]
fn a_load_that_ends_before_anything_was_counted_has_no_result() {
    let bench = Bench::new();
    let header = Header { seconds: 1, ..header(&bench.host, "echo 9 Gbit/s") };
    let stop = AtomicBool::new(false);
    let mut nothing = || None;
    let setup = Setup {
        host: &bench.host,
        header: &header,
        namespace: None,
        after_failure: &mut nothing,
        stop: &stop,
    };
    let cpu = bench.host.cpus[0].cpu;
    let run = Run { pair: Pair { flow: cpu, application: cpu }, repeat: 0, variant: Variant::new() };
    let sample = measure(&setup, &run).unwrap();
    let why = sample.failure.unwrap();
    assert!(sample.rate.is_none() && why.contains("of 1 s") && why.contains("{seconds}"), "{why}");
}

#[test]
fn every_repeat_has_every_pair_once_in_another_order() {
    let plan = Plan { pairs: all_pairs(&[0, 1, 2, 3]), variants: vec![Variant::new()], repeats: 3, seed: 7 };
    let order = plan.order();
    assert_eq!(order, plan.order());
    let repeats: Vec<Vec<Pair>> = (0..3)
        .map(|repeat| order.iter().filter(|run| run.repeat == repeat).map(|run| run.pair).collect())
        .collect();
    for repeat in &repeats {
        let mut sorted = repeat.clone();
        sorted.sort();
        assert_eq!(sorted, plan.pairs);
    }
    assert_ne!(repeats[0], repeats[1]);
    assert!(order[..16].iter().all(|run| run.repeat == 0));
}

#[test]
fn a_sweep_sets_and_measures_each_pair_and_restores_the_host() {
    let bench = Bench::new();
    let before = bench.host.all();
    let mut seen = Vec::new();
    let outcome = bench
        .run("grep Cpus_allowed_list /proc/self/status >&2; echo 12.5 Gbit/s", 2, &mut |sample, _, _| {
            let mask = CpuSet::from_mask(&bench.host.read(RPS).unwrap()).unwrap();
            assert_eq!(mask, CpuSet::one(sample.pair.flow));
            seen.push((sample.pair, sample.rate.unwrap().gbps));
        })
        .unwrap();
    let runs = bench.plan(2).order().len();
    assert_eq!((outcome.ran, outcome.failed, outcome.stopped), (runs, 0, false));
    assert!(seen.iter().all(|(_, gbps)| *gbps == 12.5));
    assert_eq!(bench.host.all(), before);
    assert_eq!(Results::read(&bench.file()).unwrap().samples.len(), runs);
}

#[test]
fn an_interrupted_sweep_continues_where_it_stopped() {
    let bench = Bench::new();
    bench.run("echo 1", 1, &mut |_, _, _| ()).unwrap();
    let text = std::fs::read(bench.file()).unwrap();
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    // A last line without its newline is complete: nothing is dropped and nothing needs to be repeated.
    std::fs::write(bench.file(), &text[..text.len() - 1]).unwrap();
    let read = Results::read(&bench.file()).unwrap();
    assert_eq!((read.samples.len(), read.is_cut), (lines - 1, false));
    assert_eq!(bench.run("echo 1", 1, &mut |_, _, _| ()).unwrap().ran, 0);
    assert_eq!(std::fs::read(bench.file()).unwrap(), text);
    std::fs::write(bench.file(), &text[..text.len() - 9]).unwrap();
    let read = Results::read(&bench.file()).unwrap();
    assert_eq!((read.samples.len(), read.is_cut), (lines - 2, true));
    let outcome = bench.run("echo 1", 1, &mut |_, _, _| ()).unwrap();
    assert_eq!((outcome.ran, outcome.known), (1, lines - 2));
    let other = bench.run("echo 2", 1, &mut |_, _, _| ()).unwrap_err();
    assert!(other.to_string().contains("the load differs"), "{other}");
}

#[test]
fn a_file_of_another_kind_is_not_overwritten() {
    let bench = Bench::new();
    for text in ["my letter", "my letter\n", "{\"a\":1}\n"] {
        std::fs::write(bench.file(), text).unwrap();
        assert!(matches!(bench.run("echo 1", 1, &mut |_, _, _| ()), Err(SweepError::Result(_))), "{text}");
        assert_eq!(std::fs::read_to_string(bench.file()).unwrap(), text);
    }
}

#[test]
fn a_competing_change_during_a_run_ends_the_sweep_and_is_kept() {
    let bench = Bench::new();
    let error = bench
        .run("echo 1", 3, &mut |_, completed, _| {
            if completed == 2 {
                bench.host.put(RPS, "ff");
            }
        })
        .unwrap_err();
    assert!(
        matches!(&error, SweepError::Journal(JournalError::Foreign { found, .. }) if found == "ff"),
        "{error}"
    );
    assert_eq!(bench.host.read(RPS).unwrap(), "ff");
}

#[test]
fn a_load_that_fails_repeatedly_ends_the_sweep_with_its_message() {
    let bench = Bench::new();
    let error = bench.run("echo the server is gone >&2; exit 1", 3, &mut |_, _, _| ()).unwrap_err();
    assert!(error.to_string().contains("the server is gone"), "{error}");
    assert_eq!(bench.host.read(RPS).unwrap(), "0");
}

#[test]
fn a_killed_load_is_a_failed_run_with_its_signal() {
    let bench = Bench::new();
    let (mark, runs) = (bench.folder.path().join("mark"), bench.plan(1).order().len());
    // The first run is killed after it has printed a rate.
    let script = format!("echo 5 Gbit/s; [ -e {0} ] || {{ touch {0}; kill -9 $$; }}", mark.display());
    let mut failures = Vec::new();
    let outcome = bench.run(&script, 1, &mut |sample, _, _| failures.extend(sample.failure.clone())).unwrap();
    assert_eq!((outcome.ran, outcome.failed), (runs, 1));
    assert!(
        failures[0].starts_with("`sh` (process ") && failures[0].ends_with(") was killed by SIGKILL"),
        "{failures:?}"
    );
    // Rerunning the same command repeats only the failed run.
    let again = bench.run(&script, 1, &mut |_, _, _| ()).unwrap();
    assert_eq!((again.ran, again.known, again.failed), (1, runs - 1, 0));
}

#[test]
fn varied_settings_are_restored_and_rejected_ones_are_named() {
    const FLOWS: &str = "proc/sys/net/core/rps_sock_flow_entries";
    const QUEUE_FLOWS: &str = "sys/class/net/eth0/queues/rx-0/rps_flow_cnt";
    let mut bench = Bench::new();
    for (path, text) in [(MTU, "1500"), (FLOWS, "0"), (QUEUE_FLOWS, "0")] {
        bench.host.put(path, text);
    }
    let variations: Vec<_> = ["mtu=1500,9000", "rfs=0,64"].iter().map(|text| text.parse().unwrap()).collect();
    bench.variants = crate::vary::variants(&variations);
    let before = bench.host.all();
    let mut seen = Vec::new();
    let outcome = bench
        .run("echo 1", 2, &mut |sample, _, _| {
            let now = [MTU, FLOWS, QUEUE_FLOWS].map(|path| bench.host.read(path).unwrap());
            let [mtu, flows] = [SweepParameter::Mtu, SweepParameter::Rfs]
                .map(|parameter| sample.variant[&parameter].to_string());
            // Steering clears the queues' tables before each run.
            assert_eq!(now, [mtu, flows.clone(), flows]);
            seen.push(sample.variant.clone());
        })
        .unwrap();
    let pairs = bench.plan(1).pairs.len();
    assert_eq!((outcome.ran, outcome.failed), (pairs * 4 * 2, 0));
    assert_eq!(bench.host.all(), before);
    let results = Results::read(&bench.file()).unwrap();
    assert_eq!(results.variants().len(), 4);
    assert!(results.variants().iter().all(|variant| results.of(variant).samples.len() == pairs * 2));
    // Rerunning the same command does nothing. The pairs of a variant were measured together.
    assert_eq!(bench.run("echo 1", 2, &mut |_, _, _| ()).unwrap().ran, 0);
    let changes = seen.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(changes < 8, "{changes}");
    bench.host.refused.insert(MTU.into());
    bench.variants = crate::vary::variants(&["mtu=1400".parse().unwrap()]);
    let error = bench.run("echo 1", 1, &mut |_, _, _| ()).unwrap_err().to_string();
    assert!(error.contains("cannot set /sys/class/net/eth0/mtu to `1400`"), "{error}");
}

#[test]
fn a_run_that_does_not_belong_to_its_sweep_is_named() {
    let bench = Bench::new();
    bench.run("echo 5 Gbit/s", 1, &mut |_, _, _| ()).unwrap();
    let text = std::fs::read_to_string(bench.file()).unwrap();
    let cpu = Results::read(&bench.file()).unwrap().samples[0].pair.flow;
    for (from, to, why) in [
        (format!("\"flow\":{cpu}"), "\"flow\":999".to_string(), "names a CPU"),
        ("\"same-cpu\"".into(), "\"other-socket\"".into(), "according to the first line"),
        ("\"gbps\":5.0".into(), "\"gbps\":-5.0".into(), "rate.gbps is -5: it must be from 1e-9 to 1000000"),
        ("\"gbps\":5.0".into(), "\"gbps\":1e307".into(), "it must be from 1e-9 to 1000000"),
        ("\"gbps\":5.0".into(), "\"gbps\":5e-324".into(), "rate.gbps is 5e-324: it must be from 1e-9"),
        ("\"gbps\":5.0".into(), "\"gbps\":0".into(), "rate.gbps is 0: it must be from 1e-9"),
        ("\"gbps\":5.0".into(), "\"gbps\":1e999".into(), "rate.gbps, column"),
        ("\"gbps\":5.0".into(), "\"gbps\":null".into(), "rate.gbps, column"),
        ("\"gbps\":5.0".into(), "\"gbps\":NaN".into(), "rate.gbps, column"),
        ("\"failure\":null".into(), "\"failure\":\"no\"".into(), "both a `rate` and a `failure`"),
        ("\"context_switches\":0".into(), "\"context_switches\":-3".into(), "a whole number from 0"),
    ] {
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(rest.contains(&from), "{rest}");
        std::fs::write(bench.file(), format!("{first}\n{}", rest.replace(&from, &to))).unwrap();
        let error = Results::read(&bench.file()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("results.jsonl, line "), "{error}");
    }
}

#[test]
fn an_impossible_number_is_refused_with_its_line_field_and_range() {
    let bench = Bench::new();
    bench.run("echo 5 Gbit/s", 1, &mut |_, _, _| ()).unwrap();
    let text = std::fs::read_to_string(bench.file()).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let sample: serde_json::Value = serde_json::from_str(rest.lines().next().unwrap()).unwrap();
    let read = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut sample = sample.clone();
        sample["kernel"]["cpus"] = serde_json::json!({ "0": { "user": 0.1, "system": 0.1, "irq": 0.0, "softirq": 0.2, "steal": 0.0, "idle": 0.6 } });
        sample["hardware"] = serde_json::json!({ sample["pair"]["flow"].to_string(): { "instructions": 1e9, "user_instructions": null, "cycles": 1e9, "cache_references": null, "cache_misses": null } });
        change(&mut sample);
        std::fs::write(bench.file(), format!("{first}\n{sample}\n")).unwrap();
        Results::read(&bench.file()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(read(&|_| ()), Ok(()));
    let cpu = |name: &'static str, value: f64| {
        move |sample: &mut serde_json::Value| sample["kernel"]["cpus"]["0"][name] = value.into()
    };
    for (change, why) in [
        (
            &cpu("softirq", 7.0) as &dyn Fn(&mut serde_json::Value),
            "kernel.cpus.0.softirq is 7: it must be from 0 to 1",
        ),
        (&cpu("idle", -3.0), "kernel.cpus.0.idle is -3: it must be from 0 to 1"),
        (&cpu("idle", 0.9), "the sum of kernel.cpus.0 is 1.3: it must be from 0 to 1.000001"),
        (
            &|sample| sample["kernel"]["seconds"] = (-1).into(),
            "kernel.seconds is -1: it must be from 0 to 10",
        ),
        (
            &|sample| {
                let flow = sample["pair"]["flow"].to_string();
                sample["hardware"][flow]["cycles"] = (-1e9).into();
            },
            ".cycles is -1000000000: it must be from 0 to 10000000000000",
        ),
        (&|sample| sample["rate"]["lost"] = 1.5.into(), "rate.lost is 1.5: it must be from 0 to 1"),
        (
            &|sample| sample["rate"]["remote_cpu"] = (-0.5).into(),
            "rate.remote_cpu is -0.5: it must be from 0 to 8192",
        ),
        (&|sample| sample["rate"] = serde_json::Value::Null, "neither a `rate` nor a `failure`"),
        (&|sample| sample["refused"] = true.into(), "`refused` and has a `rate`"),
        (
            &|sample| sample["kernel"]["seconds"] = 86_400.into(),
            "kernel.seconds is 86400: it must be from 0 to 10",
        ),
        (&|sample| sample["repeat"] = 1000.into(), "repeat is 1000: it must be from 0 to 999"),
        (&|sample| sample["at"] = u64::MAX.into(), "at is 1.8446744073709552e19: it must be from 0 to"),
        (
            &|sample| sample["variant"] = serde_json::json!({ "mtu": u64::MAX }),
            "variant.mtu is 1.8446744073709552e19",
        ),
        (
            &|sample| sample["variant"] = serde_json::json!({ "mtu": "1,00000000,00000000" }),
            "variant.mtu is 1.8446744073709552e19",
        ),
        (
            &|sample| sample["variant"] = serde_json::json!({ "gro": 2 }),
            "variant.gro is 2: it must be from 0 to 1",
        ),
        (&|sample| sample["kernel"]["running_before"] = 4_194_305.into(), "kernel.running_before is 4194305"),
        (
            &|sample| sample["kernel"]["interrupts"] = serde_json::json!({ "9000": 1 }),
            "kernel.interrupts: the CPU's number is 9000: it must be from 0 to 8191",
        ),
        (&|sample| sample["kernel"]["context_switches"] = u64::MAX.into(), "kernel.context_switches is 1.8"),
        (&|sample| sample["hardware"] = serde_json::json!({ "8000": {} }), "hardware.8000"),
    ] {
        let error = read(change).unwrap_err();
        assert!(error.contains(why) && error.contains("results.jsonl, line 2:"), "{error}");
    }
    let header: serde_json::Value = serde_json::from_str(first).unwrap();
    type Change<'a> = &'a dyn Fn(&mut serde_json::Value);
    let cases: [(Change, &str); 6] = [
        (&|header| header["seconds"] = 86_400.into(), "seconds is 86400: it must be from 0 to 3600"),
        (
            &|header| header["nic"]["mtu"] = u64::MAX.into(),
            "nic.mtu is 1.8446744073709552e19: it must be from 1 to 2147483647",
        ),
        (&|header| header["nic"]["speed_mbps"] = 0.into(), "nic.speed_mbps is 0: it must be from 1 to"),
        (&|header| header["nic"]["node"] = 5000.into(), "nic.node is 5000: it must be from 0 to 1023"),
        (
            &|header| header["places"][0]["core"] = serde_json::json!([9000]),
            "places: the CPU's number is 9000",
        ),
        (
            &|header| header["steering"]["rps"]["interface"] = "eth9".into(),
            "steering: it must name the interface eth0",
        ),
    ];
    for (change, why) in cases {
        let mut header = header.clone();
        change(&mut header);
        std::fs::write(bench.file(), format!("{header}\n")).unwrap();
        let error = Results::read(&bench.file()).unwrap_err().to_string();
        assert!(error.contains("results.jsonl, line 1: ") && error.contains(why), "{error}");
    }
}

#[test]
fn a_duplicate_run_is_refused_unless_the_first_one_failed() {
    let bench = Bench::new();
    bench.run("echo 5 Gbit/s", 1, &mut |_, _, _| ()).unwrap();
    let text = std::fs::read_to_string(bench.file()).unwrap();
    let (all, last) = text.trim_end().rsplit_once('\n').unwrap();
    std::fs::write(bench.file(), format!("{text}{last}\n")).unwrap();
    let error = Results::read(&bench.file()).unwrap_err().to_string();
    assert!(error.contains("repeat 0 of the pair") && error.contains("occurs twice"), "{error}");
    let mut failed: serde_json::Value = serde_json::from_str(last).unwrap();
    (failed["rate"], failed["failure"]) = (serde_json::Value::Null, "no".into());
    std::fs::write(bench.file(), format!("{all}\n{failed}\n{failed}\n{last}\n")).unwrap();
    let known = text.lines().count() - 1;
    assert_eq!(Results::read(&bench.file()).unwrap().samples.len(), known + 2);
}

#[test]
fn a_combination_rejected_by_the_interface_is_recorded_as_refused() {
    let mut bench = Bench::new();
    for (path, text) in [(MTU, "1500"), (THREADED, "0")] {
        bench.host.put(path, text);
    }
    // Threaded NAPI excludes large packets, in either order.
    bench.host.excluded = vec![((MTU.into(), "9000".into()), (THREADED.into(), "1".into()))];
    let variations: Vec<_> =
        ["mtu=1500,9000", "threaded=0,1"].iter().map(|text| text.parse().unwrap()).collect();
    bench.variants = crate::vary::variants(&variations);
    let before = bench.host.all();
    let mut refusals = 0;
    let pairs = bench.plan(1).pairs.len();
    for (repeats, ran, refused) in [(3, 9, 3), (3, 0, 0)] {
        let outcome = bench
            .run("echo 1", repeats, &mut |sample, _, _| {
                if sample.refused {
                    refusals += 1;
                    return;
                }
                let now = [MTU, THREADED].map(|path| bench.host.read(path).unwrap());
                let expected = [SweepParameter::Mtu, SweepParameter::Threaded]
                    .map(|parameter| sample.variant[&parameter].to_string());
                assert_eq!(now, expected);
            })
            .unwrap();
        assert_eq!((outcome.ran, outcome.refused, outcome.failed), (pairs * ran, pairs * refused, 0));
        assert_eq!(bench.host.all(), before);
    }
    assert_eq!(refusals, pairs * 3);
    let results = Results::read(&bench.file()).unwrap();
    let refused = results.refused();
    let (variant, why) = refused.iter().next().unwrap();
    assert_eq!((refused.len(), words(variant)), (1, "mtu=9000 threaded=1".into()));
    assert!(why.contains("rejects mtu=9000 threaded=1"), "{why}");
    // If nothing can be measured, the kernel's error ends the sweep.
    let mut bench = Bench::new();
    [(MTU, "1500"), (THREADED, "0")].iter().for_each(|(path, text)| bench.host.put(path, text));
    bench.host.refused.insert(THREADED.into());
    bench.variants =
        crate::vary::variants(&["mtu=1500,9000".parse().unwrap(), "threaded=1".parse().unwrap()]);
    let error = bench.run("echo 1", 1, &mut |_, _, _| ()).unwrap_err().to_string();
    assert!(error.contains("cannot set /sys/class/net/eth0/threaded to `1`"), "{error}");
}

/// A host where threaded NAPI can be turned on only with small packets and stays on with large ones, like GRO and
/// threaded NAPI on a veth pair.
fn picky() -> FakeHost {
    let mut host = host();
    for (path, text) in [(MTU, "1500"), (THREADED, "0")] {
        host.put(path, text);
    }
    host.wants = vec![((THREADED.into(), "1".into()), (MTU.into(), "1500".into()))];
    host
}

#[test]
fn settings_refused_in_one_order_are_undone_and_applied_in_the_other() {
    let (host, folder, stop) = (picky(), tempfile::tempdir().unwrap(), AtomicBool::new(false));
    let (header, mut nothing) = (header(&host, "true"), || None);
    let setup =
        Setup { host: &host, header: &header, namespace: None, after_failure: &mut nothing, stop: &stop };
    let mut journal = Journal::begin(&folder.path().join("journal"), &host).unwrap();
    let eth0 = || "eth0".parse().unwrap();
    let wanted = vec![(Setting::Mtu(eth0()), "9000".into()), (Setting::Threaded(eth0()), "1".into())];
    either_way(&setup, &mut journal, wanted).unwrap();
    let written = host.writes();
    let written: Vec<(&str, &str)> = written.iter().map(|(path, text)| (&**path, &**text)).collect();
    assert_eq!(
        written,
        [
            // The settings are written in the requested order. A rejected one is retried after another one was
            // accepted.
            (MTU, "9000"),
            (THREADED, "1"),
            (THREADED, "1"),
            // Back to the original values.
            (MTU, "1500"),
            (THREADED, "0"),
            // In reverse order.
            (THREADED, "1"),
            (MTU, "9000"),
        ]
    );
    assert!(journal.restore().unwrap().is_whole());
}

/// Threaded NAPI with large packets is reachable only through small packets, where every combination starts.
#[test]
fn a_combination_starts_from_the_original_settings() {
    let variations: Vec<_> =
        ["mtu=1500,9000", "threaded=0,1"].iter().map(|text| text.parse().unwrap()).collect();
    for seed in 1..=8 {
        let mut bench = Bench { host: picky(), seed, ..Bench::new() };
        bench.variants = crate::vary::variants(&variations);
        let (mut last, mut seen) = (Variant::new(), 0);
        let outcome = bench
            .run("echo 1", 1, &mut |sample, _, _| {
                let written = bench.host.writes();
                let of_variant = |(path, _): &&(String, String)| path == MTU || path == THREADED;
                let new: Vec<&(String, String)> = written[seen..].iter().filter(of_variant).collect();
                seen = written.len();
                let has_small = |variant: &Variant| variant.get(&SweepParameter::Mtu) == Some(&1500.into());
                if last != sample.variant && !last.is_empty() && !has_small(&last) {
                    assert_eq!((&*new[0].0, &*new[0].1), (MTU, "1500"), "seed {seed}: {new:?}");
                }
                last = sample.variant.clone();
            })
            .unwrap();
        assert_eq!((outcome.refused, outcome.failed), (0, 0), "seed {seed}");
    }
}
