//! Contents of /proc files in simulated time. They describe the modelled machine and are equal in all runs. Source:
//! proc_meminfo(5), proc_stat(5), proc_uptime(5), proc_loadavg(5), proc_pid_stat(5), proc_pid_status(5).

use std::fmt::Write;

use longma_guest::PAGE_BYTES;

use crate::Process;
use crate::fixed_identity::USER;
use crate::open_files;
use crate::simulated::Simulation;
use crate::simulated::clocks::{EPOCH_S, UP_S};
use crate::simulated::identity::FIRST_ID;

const PS_PER_SECOND: u64 = 1_000_000_000_000;
/// USER_HZ as in times(2).
const PS_PER_TICK: u64 = PS_PER_SECOND / 100;

/// The uptime of the simulated machine in picoseconds.
fn up_ps(simulation: &Simulation) -> u64 {
    simulation.counter_ps()
}

/// The total run time on all cores in picoseconds.
fn run_ps(simulation: &Simulation) -> u64 {
    simulation.scheduler.run_time(None).ps()
}

/// /proc/meminfo, with all memory free.
pub(super) fn memory(simulation: &Simulation) -> String {
    let all = simulation.memory_bytes / 1024;
    let mut text = String::new();
    for (name, kib) in [
        ("MemTotal", all),
        ("MemFree", all),
        ("MemAvailable", all),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("CommitLimit", all),
        ("Committed_AS", 0),
    ] {
        writeln!(text, "{:<15} {kib:>8} kB", format!("{name}:")).expect("writing to a string cannot fail");
    }
    text
}

/// /proc/uptime: uptime and the idle time of all cores, in seconds.
pub(super) fn uptime(simulation: &Simulation) -> String {
    let up = up_ps(simulation);
    let cores = simulation.scheduler.cores() as u64;
    let idle = up.saturating_mul(cores).saturating_sub(run_ps(simulation));
    let seconds =
        |ps: u64| format!("{}.{:02}", ps / PS_PER_SECOND, ps % PS_PER_SECOND / (PS_PER_SECOND / 100));
    format!("{} {}\n", seconds(up), seconds(idle))
}

/// /proc/loadavg, with no load and one process.
pub(super) fn load() -> String {
    format!("0.00 0.00 0.00 1/1 {FIRST_ID}\n")
}

/// /proc/stat, as if the cores had run only this process. Its run time is divided equally among the cores.
pub(super) fn kernel(simulation: &Simulation) -> String {
    let cores = simulation.scheduler.cores() as u64;
    let (up, run) = (up_ps(simulation) / PS_PER_TICK, run_ps(simulation) / PS_PER_TICK);
    let idle = up.saturating_mul(cores).saturating_sub(run);
    let mut text = format!("cpu  {run} 0 0 {idle} 0 0 0 0 0 0\n");
    for core in 0..cores {
        let (run, idle) = (run / cores, idle / cores);
        writeln!(text, "cpu{core} {run} 0 0 {idle} 0 0 0 0 0 0").expect("writing to a string cannot fail");
    }
    text + &format!(
        "intr 0\nctxt 0\nbtime {}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n",
        EPOCH_S - UP_S
    )
}

/// The fields of /proc/self/stat from the third on, without the memory fields that the caller adds. `bytes` is the size
/// of all mappings.
pub(super) fn process_fields(process: &Process, simulation: &Simulation, bytes: u64) -> Vec<String> {
    /// RLIM_INFINITY, the value of field rsslim.
    const NO_LIMIT: u64 = u64::MAX;
    let threads = process.threads.load(std::sync::atomic::Ordering::Acquire);
    let nice = i64::from(simulation.sched_attributes.of_first().nice);
    let mut fields = vec!["0".to_owned(); 50];
    let mut set = |field: usize, value: String| fields[field - 3] = value;
    set(3, "R".into());
    set(4, "1".into());
    set(5, FIRST_ID.to_string());
    set(6, "1".into());
    set(8, "-1".into());
    set(14, (run_ps(simulation) / PS_PER_TICK).to_string());
    set(18, (20 + nice).to_string());
    set(19, nice.to_string());
    set(20, threads.to_string());
    set(22, (UP_S * 100).to_string());
    set(24, (bytes / PAGE_BYTES).to_string());
    set(25, NO_LIMIT.to_string());
    set(38, libc::SIGCHLD.to_string());
    fields
}

/// /proc/self/status. `bytes` is the size of all mappings.
pub(super) fn status(process: &Process, simulation: &Simulation, name: &str, bytes: u64) -> String {
    let threads = process.threads.load(std::sync::atomic::Ordering::Acquire);
    let cores = simulation.scheduler.cores();
    let ids = [USER; 4].map(|id| format!("\t{id}")).concat();
    let kib = bytes / 1024;
    let mask = open_files::umask();
    format!(
        "Name:\t{name}\nUmask:\t{mask:04o}\nState:\tR (running)\nTgid:\t{FIRST_ID}\nNgid:\t0\nPid:\t{FIRST_ID}\nPPid:\t1\n\
         TracerPid:\t0\nUid:{ids}\nGid:{ids}\nFDSize:\t64\nGroups:\t{USER} \nVmPeak:\t{kib:8} kB\nVmSize:\t{kib:8} kB\n\
         VmLck:\t       0 kB\nVmPin:\t       0 kB\nVmHWM:\t{kib:8} kB\nVmRSS:\t{kib:8} kB\nVmSwap:\t       0 kB\n\
         Threads:\t{threads}\nNoNewPrivs:\t0\nSeccomp:\t0\nCpus_allowed_list:\t0-{}\nMems_allowed_list:\t0\n\
         voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n",
        cores.saturating_sub(1)
    )
}
