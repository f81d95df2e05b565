//! The kernel's view of a domain's QEMU process: process ID, memory by node, CPU time and thread affinity. Also
//! migrates its memory.
//!
//! Source: proc(5): maps, numa_maps, stat, status; migrate_pages(2).

use longma_placement::CpuSet;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Process ID of a domain on this machine.
pub(super) fn pid_of_domain(name: &str) -> Option<u32> {
    if name.contains('/') || name.contains('\0') {
        return None;
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|d| PathBuf::from(d).join("libvirt/qemu/run"));
    let folders = [Some(PathBuf::from("/run/libvirt/qemu")), user];
    // libvirt escapes the name in the file name as in XML.
    let written: String = name.chars().map(escaped).collect();
    let read = |folder: PathBuf| {
        [name, &written]
            .iter()
            .find_map(|name| fs::read_to_string(folder.join(format!("{name}.pid"))).ok()?.trim().parse().ok())
    };
    folders.into_iter().flatten().find_map(read)
}

fn escaped(letter: char) -> String {
    match letter {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '"' => "&quot;".into(),
        '\'' => "&apos;".into(),
        other => other.into(),
    }
}

/// CPU time used by a process, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&stat)? / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system ticks of a `stat` line. The command name may contain anything, so the fields are counted from its
/// closing parenthesis.
pub(super) fn ticks(stat: &str) -> Option<f64> {
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<f64>().ok();
    Some(number(11)? + number(12)?)
}

/// Actual affinity of the virtual CPU threads that deviate from `pins`. Offline CPUs in a pin are ignored, because the
/// kernel drops them.
pub(super) fn misplaced_vcpus(root: &Path, pid: u32, pins: &[CpuSet]) -> BTreeMap<u32, CpuSet> {
    misplaced_threads(root, vcpu_threads(root, pid), |vcpu| pins.get(vcpu as usize))
}

/// Like [`misplaced_vcpus`], for I/O threads.
pub(super) fn misplaced_io_threads(
    root: &Path,
    pid: u32,
    pins: &BTreeMap<u32, CpuSet>,
) -> BTreeMap<u32, CpuSet> {
    misplaced_threads(root, threads(root, pid, io_thread), |thread| pins.get(&thread))
}

fn misplaced_threads<'a>(
    root: &Path,
    threads: BTreeMap<u32, Thread>,
    pin: impl Fn(u32) -> Option<&'a CpuSet>,
) -> BTreeMap<u32, CpuSet> {
    let online = fs::read_to_string(root.join("sys/devices/system/cpu/online"));
    let Some(online) = online.ok().and_then(|list| list.trim().parse::<CpuSet>().ok()) else {
        return BTreeMap::new();
    };
    let misplaced_threads = |number: u32, allowed: &CpuSet| {
        let Some(pin) = pin(number) else { return false };
        let may: CpuSet = pin.iter().filter(|cpu| online.contains(*cpu)).collect();
        // Skip threads that cannot be read or have no pin.
        !allowed.is_empty() && !pin.is_empty() && may != *allowed
    };
    let threads = threads.into_iter().map(|(number, thread)| (number, thread.allowed));
    threads.filter(|(number, allowed)| misplaced_threads(*number, allowed)).collect()
}

/// A QEMU thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Thread {
    /// CPU time used, in ticks.
    pub ticks: f64,
    /// CPU that it last ran on.
    pub cpu: u32,
    /// CPUs that it may run on.
    pub allowed: CpuSet,
}

/// The virtual CPU threads of a process, by number. QEMU names them "CPU 0/KVM".
pub(super) fn vcpu_threads(root: &Path, pid: u32) -> BTreeMap<u32, Thread> {
    threads(root, pid, |name| name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok())
}

/// Number of an I/O thread. QEMU names it after libvirt's ID, "IO iothread1".
fn io_thread(name: &str) -> Option<u32> {
    name.trim().strip_prefix("IO iothread")?.parse().ok()
}

fn threads(root: &Path, pid: u32, number: fn(&str) -> Option<u32>) -> BTreeMap<u32, Thread> {
    let mut found = BTreeMap::new();
    let tasks = fs::read_dir(root.join(format!("proc/{pid}/task"))).into_iter().flatten().flatten();
    for folder in tasks.map(|t| t.path()) {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = read("comm").and_then(|name| number(&name));
        let (Some(number), Some(stat), Some(status)) = (number, read("stat"), read("status")) else {
            continue;
        };
        let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        let allowed = allowed.and_then(|l| l.trim().parse().ok()).unwrap_or_default();
        // Field 39 of the line, at index 36 after the name: the CPU it last ran on.
        let cpu = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(36)?.parse().ok());
        if let (Some(cpu), Some(ticks)) = (cpu, ticks(&stat)) {
            found.insert(number, Thread { ticks, cpu, allowed });
        }
    }
    found
}

/// Pages of a `numa_maps` line, in KiB by node.
fn pages(line: &str) -> BTreeMap<u32, u64> {
    let words = || line.split_whitespace().filter_map(|word| word.split_once('='));
    let page_kib =
        words().find(|w| w.0 == "kernelpagesize_kB").and_then(|w| w.1.parse::<u64>().ok()).unwrap_or(4);
    let node = |(key, pages): (&str, &str)| {
        let node = key.strip_prefix('N')?.parse::<u32>().ok()?;
        Some((node, pages.parse::<u64>().ok()?.saturating_mul(page_kib)))
    };
    words().filter_map(node).collect()
}

fn add(sum: &mut BTreeMap<u32, u64>, more: BTreeMap<u32, u64>) {
    more.into_iter().for_each(|(node, n)| *sum.entry(node).or_default() += n);
}

fn in_mib(kib: BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    kib.into_iter().map(|(node, kib)| (node, kib >> 10)).filter(|(_, mib)| *mib > 0).collect()
}

/// Guest memory in MiB by node, identified as the mappings that have the sizes of the virtual nodes. `None` if they are
/// not found.
pub(super) fn guest_memory(pid: u32, cells: &[u64]) -> Option<BTreeMap<u32, u64>> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    guest_memory_of(
        &fs::read_to_string(folder.join("maps")).ok()?,
        &fs::read_to_string(folder.join("numa_maps")).ok()?,
        cells,
    )
}

fn guest_memory_of(maps: &str, numa_maps: &str, cells: &[u64]) -> Option<BTreeMap<u32, u64>> {
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        // A code buffer of the translator may have the same size, but is executable.
        let plain = words.next()?.starts_with("rw-");
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        (plain && cells.contains(&to.checked_sub(from)?)).then_some(from)
    };
    let found: Vec<u64> = maps.lines().filter_map(mapping).collect();
    if found.len() < cells.len() {
        return None;
    }
    let mut kib = BTreeMap::new();
    for line in numa_maps.lines() {
        let from = line.split_whitespace().next().and_then(|w| u64::from_str_radix(w, 16).ok());
        if from.is_some_and(|from| found.contains(&from)) {
            add(&mut kib, pages(line));
        }
    }
    Some(in_mib(kib))
}

/// All memory of a process in MiB by node. `proc` is read below `root`.
pub(super) fn all_memory(root: &Path, pid: u32) -> io::Result<BTreeMap<u32, u64>> {
    let text = fs::read_to_string(root.join(format!("proc/{pid}/numa_maps")))?;
    let mut kib = BTreeMap::new();
    text.lines().for_each(|line| add(&mut kib, pages(line)));
    Ok(in_mib(kib))
}

/// Migrates a process's memory from all nodes outside `to` to the first node of `to`. Does nothing on a host with one
/// node.
pub(super) fn migrate(pid: u32, to: &[u32]) -> io::Result<()> {
    let online = fs::read_to_string("/sys/devices/system/node/online")?;
    let online: CpuSet =
        online.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{e}")))?;
    let from: Vec<u32> = online.iter().filter(|n| !to.contains(n)).collect();
    let Some(first) = to.first().filter(|_| !from.is_empty()) else { return Ok(()) };
    let mask = |nodes: &[u32]| {
        let mut words = [0u64; 16];
        nodes.iter().filter(|n| **n < 1024).for_each(|n| words[*n as usize / 64] |= 1 << (n % 64));
        words
    };
    let (old, new) = (mask(&from), mask(&[*first]));
    // SAFETY: migrate_pages(2) reads two masks of 1024 bits, which are alive during the call, and changes nothing in
    // this process.
    let moved = unsafe { libc::syscall(libc::SYS_migrate_pages, pid, 1024 + 1, old.as_ptr(), new.as_ptr()) };
    if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_memory_counts() {
        let maps = "55d0-55e0 rw-p 0 00:00 0 [heap]\n7f0000000000-7f0040000000 rw-p 0 00:00 0\n7f1000000000-7f1040000000 rwxp 0 00:00 0\n";
        let numa = "55d0 default heap N0=5 kernelpagesize_kB=4\n7f0000000000 bind:1 anon=262144 dirty=262144 N0=1024 N1=261120 kernelpagesize_kB=4\n7f1000000000 default N0=99999 kernelpagesize_kB=4\n";
        let memory = guest_memory_of(maps, numa, &[1 << 30]).unwrap();
        assert_eq!(memory, BTreeMap::from([(0, 4), (1, 1020)]));
        assert_eq!(guest_memory_of(maps, numa, &[2 << 30]), None);
        assert_eq!(pages("7f00 default N3=2 kernelpagesize_kB=2048"), BTreeMap::from([(3, 4096)]));
    }

    #[test]
    fn ticks_are_found_after_a_name_with_spaces() {
        let stat = "12 (CPU 0) KVM) S 1 2 3 4 5 6 7 8 9 10 100 50 0 0 20 0";
        assert_eq!(ticks(stat), Some(150.0));
        assert_eq!(ticks("12 (x"), None);
    }
}
