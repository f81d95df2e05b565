//! Checks kernel features and services, and describes the host for a bug report.

use crate::programs;
use crate::reason::reason;
use rustix::process::{Resource, getrlimit};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Checks whether binfmt_misc is mounted and enabled.
pub fn binfmt() -> Result<String, String> {
    let status = fs::read_to_string("/proc/sys/fs/binfmt_misc/status");
    match status.as_deref().map(str::trim) {
        Ok("enabled") => Ok("mounted and enabled".into()),
        Ok(_) => Err("disabled".into()),
        Err(_) => Err("not mounted".into()),
    }
}

/// Counts zoned block devices.
pub fn zoned_devices() -> Result<String, String> {
    let devices = fs::read_dir("/sys/block").map_err(|error| format!("/sys/block: {}", reason(&error)))?;
    let is_zoned = |path: &Path| {
        let model = fs::read_to_string(path.join("queue/zoned")).unwrap_or_default();
        matches!(model.trim(), "host-managed" | "host-aware")
    };
    let zoned = devices.flatten().filter(|device| is_zoned(&device.path())).count();
    if zoned == 0 { Err("no zoned block device".into()) } else { Ok(format!("{zoned} found")) }
}

/// Checks whether null_blk is loaded, built into the kernel, or installed as a module.
pub fn null_blk() -> Result<String, String> {
    if Path::new("/sys/module/null_blk").exists() {
        return Ok("loaded".into());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let module_list =
        |list: &str| fs::read_to_string(format!("/lib/modules/{release}/{list}")).unwrap_or_default();
    let has = |list| {
        module_list(list)
            .lines()
            .any(|line| line.split(':').next().is_some_and(|path| path.contains("/null_blk.ko")))
    };
    if has("modules.dep") || has("modules.builtin") {
        Ok("the module is installed".into())
    } else {
        Err(format!("kernel {release} has no null_blk module"))
    }
}

/// Checks whether this process may use KVM.
pub fn kvm() -> Result<String, String> {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    opened.map(|_| "/dev/kvm can be opened".into()).map_err(|error| format!("/dev/kvm: {}", reason(&error)))
}

/// Looks for virsh and for a socket of the libvirt daemon.
pub fn libvirt() -> Result<String, String> {
    let version = programs::version("virsh", &["--version"])?;
    let sockets = ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"];
    if sockets.iter().any(|socket| Path::new(socket).exists()) {
        Ok(format!("version {version}, and the daemon runs"))
    } else {
        Err(format!("virsh {version} is installed, but no daemon listens in /run/libvirt"))
    }
}

/// Describes the kernel, the distribution, the processor, memory and kernel settings.
pub fn host() -> String {
    let mut text = String::new();
    let name = rustix::system::uname();
    // Omit the other fields of uname, one of which is the host's name.
    for (what, value) in
        [("kernel", name.release()), ("built", name.version()), ("architecture", name.machine())]
    {
        let _ = writeln!(text, "{what}: {}", value.to_string_lossy());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    for line in release.lines().filter(|line| line.starts_with("ID=") || line.starts_with("VERSION_ID=")) {
        let _ = writeln!(text, "distribution {line}");
    }
    text.push_str(&processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let wanted = ["MemTotal:", "MemAvailable:", "SwapTotal:", "HugePages_Total:", "Hugepagesize:"];
    for line in memory.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))) {
        let _ = writeln!(text, "{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    for (name, path) in SETTINGS {
        if let Ok(value) = fs::read_to_string(path) {
            let _ = writeln!(text, "{name}: {}", value.trim());
        }
    }
    text
}

/// Kernel settings that affect longma.
const SETTINGS: &[(&str, &str)] = &[
    ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("max_map_count", "/proc/sys/vm/max_map_count"),
    ("mmap_min_addr", "/proc/sys/vm/mmap_min_addr"),
    ("perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
    ("io_uring_disabled", "/proc/sys/kernel/io_uring_disabled"),
    ("unprivileged_bpf_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled"),
    ("unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone"),
    ("randomize_va_space", "/proc/sys/kernel/randomize_va_space"),
    ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("security modules", "/sys/kernel/security/lsm"),
];

/// Fields of the first CPU in `/proc/cpuinfo`, and the number of CPUs.
fn processor(cpuinfo: &str) -> String {
    let wanted = ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "bugs"];
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let mut text = format!("CPUs: {count}\n");
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    for (name, value) in first.lines().filter_map(|line| line.split_once(':')) {
        if wanted.contains(&name.trim()) {
            let _ = writeln!(text, "{}: {}", name.trim(), value.trim());
        }
    }
    text
}

/// Resource limits of this process and of its cgroups.
pub fn limits() -> String {
    let mut text = String::new();
    let resources = [
        ("address space (-v)", Resource::As),
        ("core files (-c)", Resource::Core),
        ("CPU time (-t)", Resource::Cpu),
        ("data (-d)", Resource::Data),
        ("file size (-f)", Resource::Fsize),
        ("locked memory (-l)", Resource::Memlock),
        ("open files (-n)", Resource::Nofile),
        ("processes (-u)", Resource::Nproc),
        ("stack (-s)", Resource::Stack),
    ];
    let shown = |limit: Option<u64>| limit.map_or("unlimited".into(), |limit| limit.to_string());
    for (name, resource) in resources {
        let limit = getrlimit(resource);
        let _ = writeln!(text, "{name}: {} soft, {} hard", shown(limit.current), shown(limit.maximum));
    }
    text.push_str(&cgroup_limits());
    text
}

/// Limits of the cgroups. Their paths are omitted, because they contain names of users and services.
fn cgroup_limits() -> String {
    let files = [
        "cpu.max",
        "cpu.weight",
        "cpuset.cpus.effective",
        "cpuset.mems.effective",
        "memory.max",
        "memory.high",
        "memory.current",
        "memory.swap.max",
        "pids.max",
        "pids.current",
        "hugetlb.2MB.max",
    ];
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return "cgroup: no cgroup v2\n".into();
    };
    let folder = Path::new("/sys/fs/cgroup").join(path);
    let mut text = String::new();
    // Ancestor cgroups may have limits too.
    for (level, folder) in
        folder.ancestors().take_while(|above| above.starts_with("/sys/fs/cgroup")).enumerate()
    {
        let name = if level == 0 { "cgroup".to_string() } else { format!("cgroup ancestor {level}") };
        for file in files {
            if let Ok(value) = fs::read_to_string(folder.join(file)) {
                let _ = writeln!(text, "{name}: {file}: {}", value.trim());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_omits_serial_numbers_and_further_cpus() {
        let text = "processor\t: 0\nmodel name\t: A\nserial\t: 1234\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(processor(text), "CPUs: 2\nmodel name: A\nflags: fpu avx2\n");
    }
}
