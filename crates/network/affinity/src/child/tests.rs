//! Tests of `child`.

use super::*;

#[test]
fn a_child_has_this_processs_environment_or_none() {
    let mut start = Start::new(&["/usr/bin/env"], Duration::from_secs(20));
    assert!(start.run().unwrap().out.contains("PATH="));
    start.has_environment = false;
    assert_eq!(start.run().unwrap().out, "");
}

fn shell(script: &str, limit: f64) -> Start {
    Start::new(&["sh", "-c", script], Duration::from_secs_f64(limit))
}

#[test]
fn a_child_over_its_time_limit_is_killed_with_its_descendants() {
    let begin = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    let child = shell(&format!("sleep 60 & echo $! > {}; wait", file.display()), 1.0).spawn().unwrap();
    assert!(matches!(child.end(&AtomicBool::new(false)), Err(ChildError::TooLong { .. })));
    assert!(begin.elapsed() < Duration::from_secs(20));
    ends(&std::fs::read_to_string(file).unwrap());
}

/// Returns whether a process is running. A zombie does not count.
fn runs(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.trim())).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn ends(process: &str) {
    let patience = Instant::now();
    while runs(process) {
        assert!(patience.elapsed() < Duration::from_secs(10), "process {process} still runs");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn background_processes_are_killed_at_the_end_of_their_child() {
    let left = shell("sleep 60 > /dev/null & echo $!", 20.0).run().unwrap().out;
    ends(&left);
}

/// Closes the pipe explicitly; the kernel closes it when this process is killed.
#[test]
fn descendants_are_killed_at_the_end_of_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    let mut child = shell(&format!("sleep 60 & echo $! > {}; wait", file.display()), 60.0).spawn().unwrap();
    while std::fs::read_to_string(&file).unwrap_or_default().is_empty() {
        std::thread::sleep(POLL_INTERVAL);
    }
    drop(child.guard.0.stdin.take());
    ends(&std::fs::read_to_string(&file).unwrap());
    ends(&child.id().to_string());
}

#[test]
fn a_child_over_the_output_limit_is_killed() {
    let begin = Instant::now();
    let error = shell("exec cat /dev/zero", 20.0).run().unwrap_err();
    assert!(matches!(error, ChildError::TooMuch { .. }) && begin.elapsed() < Duration::from_secs(10));
    let much = format!("head -c {} /dev/zero", MAX_OUTPUT_BYTES + 1);
    assert!(matches!(shell(&much, 20.0).run(), Err(ChildError::TooMuch { .. })));
}

#[test]
fn a_child_is_bound_to_its_cpus_and_its_output_is_kept() {
    let mut start = shell("grep Cpus_allowed_list /proc/self/status; echo oh >&2", 20.0);
    let cpu = rustix::thread::sched_getcpu() as u32;
    start.cpus = Some(CpuSet::one(cpu));
    let ended = start.run().unwrap();
    assert_eq!((ended.out, ended.err.as_str()), (format!("Cpus_allowed_list:\t{cpu}\n"), "oh\n"));
}

#[test]
fn failures_name_the_program_and_the_reason() {
    let failed = shell("echo first >&2; echo last >&2; exit 3", 20.0).run().unwrap_err().to_string();
    assert!(failed.contains("last") && failed.contains('3'), "{failed}");
    let missing = Start::new(&["no-such-program-here"], Duration::from_secs(1)).run().unwrap_err();
    assert!(missing.to_string().contains("cannot start `no-such-program-here`"));
    let mut elsewhere = shell("true", 1.0);
    elsewhere.cpus = Some(CpuSet::one(8000));
    assert!(matches!(elsewhere.run(), Err(ChildError::Start { .. })));
}

#[test]
fn a_killed_child_is_reported_with_process_id_and_signal() {
    for (script, how) in [("kill -9 $$", "was killed by SIGKILL"), ("kill -15 $$", "was killed by SIGTERM")] {
        let child = shell(&format!("echo 5; {script}"), 20.0).spawn().unwrap();
        let process = child.id();
        let error = child.end(&AtomicBool::new(false)).unwrap_err().to_string();
        assert_eq!(error, format!("`sh` (process {process}) {how}"));
    }
    let status = |code: i32| how_it_ended(ExitStatus::from_raw(code << 8));
    assert_eq!(status(3), "ended with status 3");
    assert_eq!(status(137), "ended with status 137, as if killed by SIGKILL");
}

#[test]
fn a_child_is_killed_on_request() {
    let stop = AtomicBool::new(true);
    let mut child = shell("sleep 60", 100.0).spawn().unwrap();
    assert!(!child.runs_until(Duration::from_secs(50), &stop));
    assert!(matches!(child.end(&stop), Err(ChildError::Stopped { .. })));
}
