//! /proc/self/smaps and smaps_rollup: the guest's mappings and their use of host memory. Source: proc_pid_smaps(5),
//! Linux fs/proc/task_mmu.c (order and names of fields).

use std::fmt::Write;
use std::ops::Range;

use super::proc_files::maps_line;
use crate::Process;
use longma_guest::Mapping;

/// The fields that the host counts, in the kernel's order.
const COUNTED: [&str; 18] = [
    "Rss",
    "Pss",
    "Pss_Dirty",
    "Shared_Clean",
    "Shared_Dirty",
    "Private_Clean",
    "Private_Dirty",
    "Referenced",
    "Anonymous",
    "LazyFree",
    "AnonHugePages",
    "ShmemPmdMapped",
    "FilePmdMapped",
    "Shared_Hugetlb",
    "Private_Hugetlb",
    "Swap",
    "SwapPss",
    "Locked",
];

/// Memory use in KiB, in the order of [`COUNTED`].
type Usage = [u64; COUNTED.len()];

/// A mapping of the emulator: its addresses and its memory use.
struct HostMapping {
    range: Range<u64>,
    usage: Usage,
}

/// The host's mappings. Empty in simulated time, where results must not depend on the host's memory.
fn host_mappings(process: &Process) -> Vec<HostMapping> {
    let text = match process.simulation() {
        Some(_) => String::new(),
        None => std::fs::read_to_string("/proc/self/smaps").unwrap_or_default(),
    };
    parse(&text)
}

fn parse(text: &str) -> Vec<HostMapping> {
    let mut mappings: Vec<HostMapping> = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if let Some(field) = COUNTED.iter().position(|counted| *counted == name) {
            let amount = value.split_whitespace().next().and_then(|amount| amount.parse().ok());
            if let Some(mapping) = mappings.last_mut() {
                mapping.usage[field] = amount.unwrap_or(0);
            }
        } else if let Some(range) = range_of(line) {
            mappings.push(HostMapping { range, usage: Usage::default() });
        }
    }
    mappings
}

/// The addresses at the start of a mapping's first line.
fn range_of(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// The memory that a range of host addresses uses. A range that covers part of a host mapping is charged the same
/// fraction of that mapping's memory.
fn usage_of(range: &Range<u64>, host: &[HostMapping]) -> Usage {
    let mut sum = Usage::default();
    for mapping in host {
        let overlap = range.start.max(mapping.range.start)..range.end.min(mapping.range.end);
        if overlap.is_empty() {
            continue;
        }
        let (part, total_bytes) = (overlap.end - overlap.start, mapping.range.end - mapping.range.start);
        for (total, used) in sum.iter_mut().zip(mapping.usage) {
            *total += (u128::from(used) * u128::from(part)).div_ceil(u128::from(total_bytes)) as u64;
        }
    }
    sum
}

fn usage_of_guest(process: &Process, range: &Range<u64>, host: &[HostMapping]) -> Usage {
    let base = process.memory().base() as u64;
    usage_of(&(base + range.start..base + range.end), host)
}

fn write_usage(text: &mut String, usage: &Usage) {
    for (name, amount) in COUNTED.iter().zip(usage) {
        writeln!(text, "{:<15}{amount:>9} kB", format!("{name}:")).expect("writing to a string cannot fail");
    }
}

/// /proc/self/smaps.
pub(super) fn smaps(process: &Process) -> String {
    let host = host_mappings(process);
    let page = process.space.page_bytes() / 1024;
    let mut text = String::new();
    for (range, mapping) in process.space.mappings() {
        text.push_str(&maps_line(process, &range, &mapping));
        let size = (range.end - range.start) / 1024;
        for (name, amount) in [("Size:", size), ("KernelPageSize:", page), ("MMUPageSize:", page)] {
            writeln!(text, "{name:<15}{amount:>9} kB").expect("writing to a string cannot fail");
        }
        write_usage(&mut text, &usage_of_guest(process, &range, &host));
        writeln!(text, "THPeligible:    0\nVmFlags: {}", flags(&mapping))
            .expect("writing to a string cannot fail");
    }
    text
}

/// /proc/self/smaps_rollup: the sums of all mappings.
pub(super) fn smaps_rollup(process: &Process) -> String {
    let host = host_mappings(process);
    let mappings = process.space.mappings();
    let mut sum = Usage::default();
    for (range, _) in &mappings {
        let usage = usage_of_guest(process, range, &host);
        sum.iter_mut().zip(usage).for_each(|(total, used)| *total += used);
    }
    let start = mappings.first().map_or(0, |(range, _)| range.start);
    let end = mappings.last().map_or(0, |(range, _)| range.end);
    let line = format!("{start:08x}-{end:08x} ---p 00000000 00:00 0 ");
    let mut text = format!("{line:<73}[rollup]\n");
    write_usage(&mut text, &sum);
    text
}

/// The kernel's two-letter names of a mapping's properties.
fn flags(mapping: &Mapping) -> String {
    let protection = mapping.protection;
    let all = [
        (protection.read, "rd "),
        (protection.write, "wr "),
        (protection.execute, "ex "),
        (mapping.shared, "sh "),
        (true, "mr mw me "),
        (mapping.shared, "ms "),
    ];
    all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_host_mapping_uses_the_same_part_of_its_memory() {
        let host = parse(
            "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss: 8 kB\nShared_Dirty: 4 kB\n\
             3000-4000 r--p 00000000 00:00 0 \nRss: 4 kB\n",
        );
        let usage_in = |name: &str, range| {
            usage_of(&range, &host)[COUNTED.iter().position(|counted| *counted == name).unwrap()]
        };
        assert_eq!(usage_in("Rss", 0x1000..0x4000), 12);
        assert_eq!(usage_in("Rss", 0x2000..0x4000), 8);
        assert_eq!(usage_in("Shared_Dirty", 0x1000..0x2000), 2);
        assert_eq!(usage_in("Rss", 0x4000..0x5000), 0);
    }
}
