//! Lists of CPUs as Linux writes them: "0-3,8".
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu.

use std::collections::BTreeSet;

/// The number of CPUs that a list may span, which is more than Linux supports. A list with a higher number is invalid.
pub(crate) const MAX_CPU: u32 = 65_536;

/// Parses "0-3,8"; `None` if the text is not a list of CPUs.
pub(crate) fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = BTreeSet::new();
    for range in text.trim().split(',').filter(|r| !r.is_empty()) {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to >= MAX_CPU {
            return None;
        }
        cpus.extend(from..=to);
    }
    Some(cpus.into_iter().collect())
}

/// Formats CPU numbers, given in ascending order, as "0-3,8".
pub fn format_cpu_list(cpus: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == cpu => range.1 = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |r: &(u32, u32)| if r.0 == r.1 { r.0.to_string() } else { format!("{}-{}", r.0, r.1) };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}
