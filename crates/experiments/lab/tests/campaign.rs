//! Tests of campaigns that are killed, run concurrently, or meet a full disk, a read-only directory or a corrupted
//! file.

mod synthetic;

use longma_lab::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// 1,000 points.
const THOUSAND: &str = r#"
format = 1
name = "thousand"
title = "A thousand points"
workload = "synthetic"
[sweep]
n = { from = 0, to = 99 }
size = ["4 KiB", "8 KiB", "16 KiB", "32 KiB", "64 KiB"]
mode = ["plain", "fast"]
[metrics.rate]
unit = "MB/s"
[metrics.latency]
unit = "ns"
"#;

/// Runs the campaign of `text` in `folder` and exports its table.
fn run(text: &str, folder: &Path, options: &Options) -> Result<(Outcome, Table), RunError> {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(text, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test")?;
    let outcome = campaign.run(&Store::new(folder), &registry, options, &(), &Stop::default())?;
    let table = Table::of(&campaign, &outcome.results);
    export(folder, "thousand", &table, &outcome.results).unwrap();
    Ok((outcome, table))
}

/// The bytes of the exported table.
fn table_bytes(folder: &Path) -> [Vec<u8>; 2] {
    ["thousand.parquet", "thousand.jsonl"].map(|name| fs::read(folder.join(name)).unwrap())
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder.join("segments")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

/// This test program, running `child_runs_the_campaign` on `folder`.
fn child(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_runs_the_campaign", "--nocapture", "--test-threads=1"]);
    command.env("LONGMA_TEST_STORE", folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs in the child processes of other tests. Does nothing without a directory.
#[test]
fn child_runs_the_campaign() {
    let Some(folder) = std::env::var_os("LONGMA_TEST_STORE") else { return };
    let jobs = std::env::var("LONGMA_TEST_JOBS").map_or(2, |jobs| jobs.parse().unwrap());
    let text = std::env::var("LONGMA_TEST_TEXT").unwrap_or(THOUSAND.into());
    match run(&text, Path::new(&folder), &Options { jobs, ..Options::default() }) {
        Ok((outcome, _)) => println!("ran {} reused {}", outcome.ran, outcome.reused),
        Err(error) => panic!("ERROR {error}"),
    }
}

/// Number of points that a child reports as run.
fn points_run_by(output: &std::process::Output) -> usize {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = stdout.split_once("ran ").unwrap_or_else(|| panic!("{stdout}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Three points that take a second each.
const SLOW: &str = r#"
format = 1
name = "thousand"
title = "Slow points"
workload = "synthetic"
[parameters]
takes_ms = 1000
[sweep]
n = [1, 2, 3]
[metrics.rate]
unit = "MB/s"
"#;

#[test]
fn a_campaign_waits_for_points_of_another_and_takes_them_over_if_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let worker = |jobs: &str| {
        let mut command = child(folder.path());
        command.env("LONGMA_TEST_TEXT", SLOW).env("LONGMA_TEST_JOBS", jobs).spawn().unwrap()
    };
    // The first process runs all three points, and the second can only wait.
    let mut first = worker("3");
    let begin = Instant::now();
    while !folder.path().join("claims").exists() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    let second = worker("2");
    std::thread::sleep(Duration::from_millis(300));
    first.kill().unwrap();
    first.wait().unwrap();
    let output = second.wait_with_output().unwrap();
    assert_eq!(points_run_by(&output), 3, "no other campaign is left to run them");
    // Two processes do not repeat each other's points.
    fs::remove_dir_all(folder.path().join("segments")).unwrap();
    let both = [worker("1"), worker("1")].map(|worker| points_run_by(&worker.wait_with_output().unwrap()));
    assert_eq!(both.iter().sum::<usize>(), 3, "{both:?}");
}

#[test]
fn a_table_includes_results_added_concurrently() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    run(THOUSAND, folder.path(), &Options { shard: "1/2".parse().unwrap(), ..Options::default() }).unwrap();
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(THOUSAND, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    /// Runs the other share when the first point is done.
    struct Meanwhile<'a>(&'a Path, std::sync::Once);
    impl Observer for Meanwhile<'_> {
        fn point(&self, _: &Point, _: &Record) {
            self.1.call_once(|| {
                let options = Options { shard: "2/4".parse().unwrap(), ..Options::default() };
                run(THOUSAND, self.0, &options).unwrap();
            });
        }
    }
    let options = Options { shard: "4/4".parse().unwrap(), ..Options::default() };
    let observer = Meanwhile(folder.path(), std::sync::Once::new());
    let outcome = campaign.run(&store, &registry, &options, &observer, &Stop::default()).unwrap();
    assert_eq!((outcome.ran, outcome.results.len()), (250, 1000));
}

#[test]
fn a_host_failure_is_reported_not_stored_and_the_point_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let with = |number: i64| format!("{THOUSAND}\n[parameters]\nlet_down_at = {number}\n");
    for _ in 0..2 {
        let (outcome, table) = run(&with(3), folder.path(), &Options::default()).unwrap();
        assert_eq!((outcome.faults.len(), outcome.failed, outcome.left), (10, 0, 0));
        assert_eq!((table.rows.len(), table.missing), (990, 10));
        assert!(outcome.faults.iter().all(|fault| fault.failure.kind == FailureKind::Host));
        assert!(outcome.faults[0].point.contains("n 3"), "{:?}", outcome.faults[0]);
    }
    assert_eq!(Store::new(folder.path()).results().unwrap().len(), 990);
}

#[test]
fn a_host_failure_while_retrying_a_failed_point_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = SLOW.replace("takes_ms = 1000", "let_down_at = 2");
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(&text, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    let store = Store::new(folder.path());
    let failed = Record::new(&campaign.points[1], Err(Failure::failed("long ago")), 0.0);
    store.writer().unwrap().append(&failed).unwrap();
    let options = Options { retry_failed: true, ..Options::default() };
    let outcome = campaign.run(&store, &registry, &options, &(), &Stop::default()).unwrap();
    assert_eq!((outcome.ran, outcome.left, outcome.failed, outcome.faults.len()), (2, 0, 1, 1));
}

#[test]
fn a_point_that_fails_on_this_host_and_runs_in_another_campaign_has_a_result() {
    let folder = tempfile::tempdir().unwrap();
    /// Another campaign runs the point before this one ends.
    struct Another<'a>(&'a Store);
    impl Observer for Another<'_> {
        fn fault(&self, point: &Point, _: &Failure) {
            let metrics = Metrics { results: BTreeMap::from([("rate".into(), 1.0)]), ..Metrics::default() };
            self.0.writer().unwrap().append(&Record::new(point, Ok(metrics), 0.0)).unwrap();
        }
    }
    let text = SLOW.replace("takes_ms = 1000", "let_down_at = 2");
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(&text, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    let store = Store::new(folder.path());
    let another = Another(&store);
    let outcome = campaign.run(&store, &registry, &Options::default(), &another, &Stop::default()).unwrap();
    assert_eq!((outcome.ran, outcome.left, outcome.faults.len(), outcome.results.len()), (2, 0, 0, 3));
}

#[test]
fn a_campaign_killed_twenty_times_stores_the_same_bytes() {
    let (whole, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = Instant::now();
    run(THOUSAND, whole.path(), &Options::default()).unwrap();
    let usual = start.elapsed().max(Duration::from_millis(5));
    let (mut kills, mut seed) = (0, 0x9e37_79b9_7f4a_7c15u64);
    while kills < 20 {
        let mut running = child(killed.path()).spawn().unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Kill at a random time of the run. Later runs find more and more results.
        std::thread::sleep(usual.mul_f64((seed >> 40) as f64 / (1u64 << 24) as f64 * 0.8));
        running.kill().unwrap();
        if running.wait().unwrap().success() {
            // It finished before the signal: start over, so that there is something to kill.
            fs::remove_dir_all(killed.path().join("segments")).unwrap();
        }
        kills += 1;
    }
    let output = child(killed.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(table_bytes(killed.path()), table_bytes(whole.path()));
}

#[test]
fn a_repeated_campaign_runs_nothing_and_rewrites_no_table() {
    let folder = tempfile::tempdir().unwrap();
    run(THOUSAND, folder.path(), &Options::default()).unwrap();
    let table = fs::metadata(folder.path().join("thousand.parquet")).unwrap().ino();
    let (outcome, _) = run(THOUSAND, folder.path(), &Options::default()).unwrap();
    assert_eq!((outcome.ran, outcome.reused), (0, 1000));
    let again = fs::metadata(folder.path().join("thousand.parquet")).unwrap().ino();
    assert_eq!(again, table, "an unchanged table is not written again");
}

#[test]
fn two_workers_on_one_store_and_shards_on_several_give_the_same_table() {
    let (whole, both, shards) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(THOUSAND, whole.path(), &Options::default()).unwrap();
    let workers: Vec<_> = (0..3).map(|_| child(both.path()).spawn().unwrap()).collect();
    let mut ran = 0;
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success());
        ran += points_run_by(&output);
    }
    assert_eq!(ran, 1000, "each point is run by one of them");
    run(THOUSAND, both.path(), &Options::default()).unwrap();
    assert_eq!(table_bytes(both.path()), table_bytes(whole.path()));

    let mut ran = 0;
    for index in 1..=3 {
        let folder = shards.path().join(index.to_string());
        let shard = format!("{index}/3").parse().unwrap();
        ran += run(THOUSAND, &folder, &Options { shard, ..Options::default() }).unwrap().0.ran;
    }
    assert_eq!(ran, 1000);
    let merged = Store::new(shards.path().join("all"));
    for index in 1..=3 {
        merged.merge(&Store::new(shards.path().join(index.to_string()))).unwrap();
    }
    let (outcome, _) = run(THOUSAND, merged.folder(), &Options::default()).unwrap();
    assert_eq!(outcome.ran, 0);
    assert_eq!(table_bytes(merged.folder()), table_bytes(whole.path()));
}

#[test]
fn a_full_disk_is_reported_and_stored_results_remain() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = child(folder.path());
    // SAFETY: between fork and exec the closure only calls signal and setrlimit, which are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            // A file size limit simulates a full disk without privileges. SIGXFSZ would hide the error.
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let output = command.output().unwrap();
    let message =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        message.contains("cannot add a result") && message.contains("earlier results are safe"),
        "{message}"
    );
    let kept = Store::new(folder.path()).results().unwrap();
    assert!(kept.len() > 100 && kept.len() < 1000, "{}", kept.len());
    assert!(kept.damage.is_empty());
    let (outcome, _) = run(THOUSAND, folder.path(), &Options::default()).unwrap();
    assert_eq!((outcome.reused, outcome.ran), (kept.len(), 1000 - kept.len()));
}

#[test]
fn a_read_only_folder_provides_its_results_and_rejects_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    run(THOUSAND, folder.path(), &Options { shard: "1/2".parse().unwrap(), ..Options::default() }).unwrap();
    let segments = folder.path().join("segments");
    fs::set_permissions(&segments, fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = child(folder.path());
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } == 0 {
        // Root can write to read-only directories, so run as another user.
        command.uid(65_534).gid(65_534);
    }
    let output = command.output();
    fs::set_permissions(&segments, fs::Permissions::from_mode(0o755)).unwrap();
    let output = output.unwrap();
    let message =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("cannot write results to"), "{message}");
    assert!(message.contains("Permission denied") && message.contains("--store"), "{message}");
    assert_eq!(Store::new(folder.path()).results().unwrap().len(), 500);
}

#[test]
fn a_corrupted_file_loses_only_the_corrupted_lines_and_their_points_run_again() {
    let folder = tempfile::tempdir().unwrap();
    run(THOUSAND, folder.path(), &Options::default()).unwrap();
    let before = table_bytes(folder.path());
    let path = segments(folder.path()).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 0x40;
    bytes.truncate(bytes.len() - 10);
    fs::write(&path, &bytes).unwrap();
    let results = Store::new(folder.path()).results().unwrap();
    assert_eq!((results.len(), results.damage.len()), (998, 2));
    assert!(results.damage[0].to_string().contains("its checksum does not match"), "{}", results.damage[0]);
    assert!(results.damage[1].to_string().contains("interrupted"), "{}", results.damage[1]);
    let (outcome, _) = run(THOUSAND, folder.path(), &Options::default()).unwrap();
    assert_eq!((outcome.ran, outcome.reused), (2, 998));
    assert_eq!(table_bytes(folder.path()), before);
}

#[test]
fn a_point_that_fails_or_panics_is_kept_with_its_error_and_run_again_only_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{THOUSAND}\n[parameters]\nfails_at = 3\npanics_at = 5\n");
    let (outcome, table) = run(&text, folder.path(), &Options::default()).unwrap();
    assert_eq!((outcome.ran, outcome.failed), (1000, 20));
    let failure = |n: i64| {
        let row = table.rows.iter().find(|row| row.settings[0] == Setting::Integer(n)).unwrap();
        row.failure.clone().unwrap()
    };
    assert_eq!(failure(3), "told to fail");
    assert!(failure(5).contains("told to panic"));
    assert_eq!(run(&text, folder.path(), &Options::default()).unwrap().0.ran, 0);
    let again = Options { retry_failed: true, ..Options::default() };
    assert_eq!(run(&text, folder.path(), &again).unwrap().0.ran, 20);
}

#[test]
fn a_stopped_campaign_stores_only_the_points_that_ran() {
    let folder = tempfile::tempdir().unwrap();
    let (registry, runs) = synthetic::registry();
    let experiment = synthetic::experiment(THOUSAND, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    let stop = Stop::default();
    struct StopAt<'a>(&'a Stop, usize, std::sync::atomic::AtomicUsize);
    impl Observer for StopAt<'_> {
        fn point(&self, _: &Point, _: &Record) {
            if self.2.fetch_add(1, Ordering::Relaxed) + 1 == self.1 {
                self.0.request();
            }
        }
    }
    let observer = StopAt(&stop, 100, Default::default());
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &observer, &stop).unwrap();
    assert_eq!(outcome.ran, runs.load(Ordering::Relaxed));
    assert_eq!(outcome.ran + outcome.left, 1000);
    assert!((100..110).contains(&outcome.ran), "{}", outcome.ran);
    assert_eq!(store.results().unwrap().len(), outcome.ran);
}

#[test]
fn a_key_is_the_digest_of_the_sorted_json_of_what_determines_the_result() {
    let (registry, _) = synthetic::registry();
    let text = "format = 1\nname = \"keys\"\ntitle = \"t\"\nworkload = \"synthetic\"\n[parameters]\nnotes = { b = \"2\", a = \"1\" }\n\
        [sweep]\nsize = [\"8 KiB\"]\nmode = [\"fast\"]\n\"notes.c\" = [3]\n[metrics.rate]\nunit = \"x\"\n";
    let point = synthetic::experiment(text, &registry).points(false, &registry, "7").unwrap().remove(0);
    let json = "{\"inputs\":{},\"machine\":null,\"parameters\":{\"fails_at\":-1,\"let_down_at\":-1,\"mode\":\"fast\",\"n\":1,\
        \"notes\":{\"a\":\"1\",\"b\":\"2\",\"c\":\"3\"},\"panics_at\":-1,\"size\":\"8 KiB\",\"takes_ms\":0},\"revision\":REVISION,\"version\":\"7\",\
        \"workload\":\"synthetic\"}";
    let json = json.replace("REVISION", &registry.get("synthetic").unwrap().revision().to_string());
    assert_eq!(point.key.as_str(), &longma_lab::digest(json.as_bytes())[..32], "{json}");
}

#[test]
fn a_million_points_are_counted_without_setting_up_all_of_them() {
    let (registry, _) = synthetic::registry();
    let count = |sweep: &str| {
        let text = format!(
            "format = 1\nname = \"many\"\ntitle = \"t\"\nworkload = \"synthetic\"\n{sweep}\n[metrics.rate]\nunit = \"x\"\n"
        );
        let experiment = synthetic::experiment(&text, &registry);
        let begin = std::time::Instant::now();
        let count = experiment.count_points(false, &registry, "1").unwrap();
        (count, begin.elapsed())
    };
    let many = "[sweep]\nn = { from = 1, to = 1000 }\ntakes_ms = { from = 1, to = 1000 }";
    let (counted, took) = count(many);
    assert_eq!(counted, 1_000_000);
    // Setting up all of them takes a minute in a debug build.
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    let some = "require = [\"n <= takes_ms\"]\n[sweep]\nn = { from = 1, to = 200 }\ntakes_ms = { from = 1, to = 200 }";
    assert_eq!(count(some).0, 200 * 201 / 2);
    assert_eq!(count(&some.replace("200", "20")).0, 20 * 21 / 2);
}

#[test]
fn a_key_changes_exactly_with_the_inputs_that_can_change_the_result() {
    let (registry, _) = synthetic::registry();
    let keys = |text: &str, version: &str| -> BTreeMap<String, Key> {
        let experiment = synthetic::experiment(text, &registry);
        let points = experiment.points(false, &registry, version).unwrap();
        points.into_iter().map(|point| (point.label(), point.key)).collect()
    };
    let with = |machine: &str, rest: &str| {
        format!(
            "format = 1\nname = \"keys\"\ntitle = \"t\"\nworkload = \"synthetic\"\nmachines = [\"{machine}\"]\n[sweep]\nn = [1, 2]\n[metrics.rate]\nunit = \"x\"\n{rest}"
        )
    };
    let base = keys(&with("loongson-3a5000", ""), "1");
    assert_eq!(base, keys(&with("loongson-3a5000", "[metrics.latency]\nunit = \"ns\"\n"), "1"));
    assert_eq!(
        base,
        keys(&with("loongson-3a5000", "[parameters]\nmode = \"plain\"\n"), "1"),
        "a default written out"
    );
    let others = [
        keys(&with("loongson-3a4000", ""), "1"),
        keys(&with("loongson-3a5000", ""), "2"),
        keys(&with("loongson-3a5000", "[parameters]\nmode = \"fast\"\n"), "1"),
    ];
    for other in others {
        assert!(base.iter().all(|(label, key)| other[label] != *key));
    }
    let swept = with("loongson-3a5000", "")
        .replace("n = [1, 2]", "\"machine.caches.l3.size\" = [\"16 MiB\", \"8 MiB\"]");
    let points = synthetic::experiment(&swept, &registry).points(false, &registry, "1").unwrap();
    let plain = with("loongson-3a5000", "").replace("n = [1, 2]", "n = [1]");
    let plain = synthetic::experiment(&plain, &registry).points(false, &registry, "1").unwrap();
    assert_eq!(points[0].key, plain[0].key, "16 MiB is what the machine file says");
    assert_ne!(points[1].key, plain[0].key);
}

use std::os::unix::fs::PermissionsExt;

/// A rate that depends on three mechanisms, one of which sets two parameters.
const MECHANISMS: &str = r#"
format = 1
name = "mechanisms"
title = "Mechanisms"
workload = "synthetic"
[sweep]
n = [2, 6]
size = ["4 KiB", "16 KiB"]
mode = ["plain", "fast"]
[metrics.rate]
unit = "MB/s"
[metrics.latency]
unit = "ns"
[explain]
at = { n = 2 }
[explain.mechanisms.fast]
title = "fast mode"
off = { mode = "plain" }
on = { mode = "fast" }
[explain.mechanisms.large]
off = { size = "4 KiB", "notes.a" = "small" }
on = { size = "16 KiB", "notes.a" = 16 }
"#;

fn explain(text: &str, selection: &Selection, check: &dyn Fn(&Explanation<'_>, &Results)) {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(text, &registry);
    let explanation = Explanation::plan(&experiment, false, selection, &registry, "test").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let outcome = explanation.campaign.run(&store, &registry, &Options::default(), &(), &Stop::default());
    check(&explanation, &outcome.unwrap().results);
}

#[test]
fn every_subset_of_the_mechanisms_runs_and_each_mechanism_gets_its_share() {
    explain(MECHANISMS, &Selection::default(), &|explanation, results| {
        let titles: Vec<_> = explanation.switches.iter().map(|switch| switch.title.as_str()).collect();
        assert_eq!(titles, ["fast mode", "large"]);
        assert_eq!((explanation.contexts.len(), explanation.campaign.points.len()), (1, 4));
        let notes: Vec<_> =
            explanation.campaign.points.iter().map(|p| p.parameter("notes").unwrap().to_string()).collect();
        assert_eq!(notes, ["a=small", "a=small", "a=16", "a=16"]);
        let of = |metric| explanation.game(&explanation.contexts[0], metric, results).unwrap();
        // rate = speed * 2 / 1.25 * 1000 with speed 1 or 3, independent of the size.
        let rate = of("rate").contributions();
        assert_eq!((rate[0].alone, rate[0].last, rate[0].shapley), (3200.0, 3200.0, 3200.0));
        assert_eq!(rate[1], Contribution::default());
        // latency = sqrt(size in KiB) + 2/3.
        assert!((of("latency").contributions()[1].shapley - 2.0).abs() < 1e-9);
    });
}

#[test]
fn a_swept_parameter_with_two_values_can_be_a_mechanism_and_each_place_is_explained() {
    let text = MECHANISMS.split("[explain]").next().unwrap();
    let selection =
        Selection { mechanisms: vec!["mode".into()], at: BTreeMap::from([("n".into(), "6".into())]) };
    explain(text, &selection, &|explanation, results| {
        let contexts: Vec<_> =
            explanation.contexts.iter().map(|place| format!("{:?}", place.settings)).collect();
        assert_eq!(contexts.len(), 2, "a place for each size: {contexts:?}");
        for place in &explanation.contexts {
            let game = explanation.game(place, "rate", results).unwrap();
            assert_eq!(game.all(), 3.0 * game.none());
        }
    });
}

#[test]
fn explain_reports_a_remedy_if_it_cannot_run() {
    let (registry, _) = synthetic::registry();
    let text = MECHANISMS.split("[explain]").next().unwrap();
    let message = |text: &str, mechanism: &[&str], at: &[(&str, &str)]| {
        let experiment = synthetic::experiment(text, &registry);
        let mechanisms = mechanism.iter().map(ToString::to_string).collect();
        let at = at.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let planned = Explanation::plan(&experiment, false, &Selection { mechanisms, at }, &registry, "test");
        planned.err().unwrap().to_string()
    };
    assert!(message(text, &[], &[]).contains("add [explain.mechanisms.NAME]"));
    assert!(message(MECHANISMS, &["lage"], &[]).contains("did you mean `large`?"));
    assert!(message(MECHANISMS, &[], &[("n", "3")]).contains("it takes 2, 6"));
    assert!(message(MECHANISMS, &[], &[("m", "3")]).contains("`m` does not vary"));
}
