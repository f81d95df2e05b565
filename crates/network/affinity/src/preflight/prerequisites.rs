//! Checks the prerequisites of sweeps and the tuner on this system: programs, permissions, and system calls that a
//! container or a filter may block. Each prerequisite is tried without lasting effects.
//!
//! Source: capabilities(7), unshare(2), sched_setaffinity(2), seccomp(2).

use super::{Findings, Severity};
use crate::host::Host;
use crate::interface::Nic;
use crate::setting::Setting;
use std::io;
use std::path::PathBuf;

/// A required program, its package, the features that need it, and those that work without it.
const PROGRAMS: [(&str, &str, &str, &str); 3] = [
    (
        "iperf3",
        "iperf3",
        "--lab and --connect",
        "a custom load (sweep --interface NAME -- COMMAND), `report`, `advise` from topology or a file, \
            `tune`, `show` and `restore`",
    ),
    ("ip", "iproute2", "--lab", "sweeps with --interface and everything else"),
    ("cat", "coreutils", "--lab", "sweeps with --interface and everything else"),
];

/// Capabilities that root may lack in a container: number, name, and the features that need it.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "no --lab, and no --vary of offloads, rings, delays and packet sizes"),
    (21, "CAP_SYS_ADMIN", "no --lab"),
    (23, "CAP_SYS_NICE", "`tune` cannot bind threads of other users"),
    (19, "CAP_SYS_PTRACE", "`tune` cannot find the owners of other users' flows"),
];

/// Checks the system that this program runs on.
pub fn check(host: &dyn Host, findings: &mut Findings) {
    if let Err(error) = host.read("proc/self/status") {
        findings.bad(
            "proc",
            Severity::Prevents,
            format!("/proc does not show this process ({error})"),
            "mount -t proc proc /proc; `report`, and `advise` from topology or a file, work without it",
        );
    }
    programs(findings);
    capabilities(host, findings);
    match in_a_thread(unshare) {
        Ok(()) => findings.good("namespaces", "network namespaces can be created"),
        Err(error) => findings.bad(
            "namespaces",
            Severity::Note,
            format!("none can be created ({error})"),
            "--lab needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN, and a seccomp filter that allows \
                unshare; sweeps with --interface work without them",
        ),
    }
    match in_a_thread(bind) {
        Ok(()) => findings.good("binding", "programs can be bound to CPUs"),
        Err(error) => findings.bad(
            "binding",
            Severity::Prevents,
            format!("no program can be bound to CPUs ({error})"),
            "let the container's seccomp filter allow sched_setaffinity; `report`, `advise` from topology \
                or a file, and `show` work without it",
        ),
    }
    if let Err(error) = host.sockets() {
        let advice =
            "`tune` reads flows from /proc/net/tcp and gives all the same weight; nothing else needs it";
        findings.bad("connections", Severity::Note, format!("sock_diag failed ({error})"), advice);
    }
}

/// Checks whether the settings that steer an interface's flows are writable.
pub fn steering(host: &dyn Host, nic: &Nic, findings: &mut Findings) {
    let refused = |settings: Vec<Setting>| {
        let paths = settings.into_iter().filter_map(|setting| setting.path());
        let of = |path: String| Some(format!("/{path}: {}", host.may_write(&path).err()?));
        paths.map(of).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().next())
    };
    let irqs = refused(nic.irqs.iter().map(|irq| Setting::Irq(irq.number)).collect());
    let rps = |queue: &u32| Setting::Rps { interface: nic.name.clone(), queue: *queue };
    let queues = refused(nic.rx_queues.iter().map(rps).collect());
    let has_queues = !nic.rx_queues.is_empty();
    match (irqs, queues) {
        (Some(why), None) if has_queues => findings.bad(
            "writing",
            Severity::Note,
            format!("no interrupt can be moved ({why})"),
            "sweep with --software; `tune` can still move applications to the interrupts' CPUs; to move \
                interrupts, run as root with a writable /proc",
        ),
        (irqs, Some(why)) if irqs.is_some() || nic.irqs.is_empty() => findings.bad(
            "writing",
            Severity::Prevents,
            format!("no setting that steers flows is writable ({})", irqs.unwrap_or(why)),
            "run it as root outside the container, where /proc and /sys are writable; --lab, `report`, \
                `advise` from topology or a file, and `show` work without this",
        ),
        _ => {}
    }
}

fn programs(findings: &mut Findings) {
    if !has_program("sh") {
        let advice = "add it to PATH: it starts and stops every load; `report`, `advise` from topology or \
            a file, `tune` and `show` work without it";
        findings.bad("sh", Severity::Prevents, "not found in PATH", advice);
    }
    let mut found = Vec::new();
    for (name, package, needs, rest) in PROGRAMS {
        if has_program(name) {
            found.push(name);
            continue;
        }
        let advice = format!("install the package {package} for {needs}; {rest} work without it");
        findings.bad(name, Severity::Note, "not found in PATH", advice);
    }
    if !found.is_empty() {
        findings.good("programs", found.join(", "));
    }
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let can_run =
        |file: PathBuf| file.is_file() && rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok();
    std::env::split_paths(&path).any(|folder| can_run(folder.join(name)))
}

/// Reports missing capabilities of root. For other users, another finding reports the missing privilege.
fn capabilities(host: &dyn Host, findings: &mut Findings) {
    let status = host.read("proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(mask) = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (_, name, what) in CAPABILITIES.into_iter().filter(|(number, ..)| mask >> number & 1 == 0) {
        let advice = format!("{what}: grant the container the capability, or run outside it");
        findings.bad("capabilities", Severity::Note, format!("root without {name}"), advice);
    }
}

/// Runs a call on a separate thread, so that its effects end with that thread.
fn in_a_thread(call: fn() -> io::Result<()>) -> io::Result<()> {
    let thread = std::thread::Builder::new().spawn(call)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it panicked")))
}

fn unshare() -> io::Result<()> {
    // SAFETY: a system call with constants. It affects only the calling thread, which opens no descriptors and
    // then ends.
    crate::child::check(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) })
}

/// Sets the calling thread's affinity to its current value.
fn bind() -> io::Result<()> {
    let now = match rustix::thread::sched_getaffinity(None) {
        // The host has more CPUs than the library's set. Loads are bound with a larger set, so this is not an error.
        Err(rustix::io::Errno::INVAL) => return Ok(()),
        now => now?,
    };
    Ok(rustix::thread::sched_setaffinity(None, &now)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::interface;
    use crate::preflight::Finding;

    fn found(refused: &[&str]) -> Vec<Finding> {
        let irq = "proc/irq/38/smp_affinity_list";
        let rps = "sys/class/net/eth0/queues/rx-0/rps_cpus";
        let mut host = FakeHost::with(&[
            ("sys/class/net/eth0/mtu", "1500"),
            (rps, "0"),
            (irq, "0-1"),
            ("proc/interrupts", " CPU0\n 38: 0 PCI eth0-TxRx-0"),
        ]);
        host.refused = refused.iter().map(|path| path.to_string()).collect();
        let nic = interface::read(&host, &"eth0".parse().unwrap()).unwrap();
        let mut findings = Findings(Vec::new());
        steering(&host, &nic, &mut findings);
        findings.0
    }

    #[test]
    fn unwritable_settings_are_reported_with_alternatives() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&["sys/class/net/eth0/queues/rx-0/rps_cpus"]), []);
        let [note] = &found(&["proc/irq/38/smp_affinity_list"])[..] else { panic!() };
        assert_eq!(note.weight, Severity::Note);
        assert!(
            note.found.contains("/proc/irq/38/") && note.advice.as_ref().unwrap().contains("--software"),
            "{note:?}"
        );
        let both = found(&["proc/irq/38/smp_affinity_list", "sys/class/net/eth0/queues/rx-0/rps_cpus"]);
        let [prevents] = &both[..] else { panic!("{both:?}") };
        assert_eq!(prevents.weight, Severity::Prevents);
        assert!(prevents.advice.as_ref().unwrap().contains("--lab"), "{prevents:?}");
    }

    #[test]
    fn a_program_is_looked_for_where_the_system_looks() {
        assert!(has_program("sh") && !has_program("no-such-program"));
    }
}
