//! Threads of a process: the last CPU, CPU time, the descriptor each one waits for, and the CPUs of its cpuset.
//!
//! Source: proc(5) (/proc/PID/task/TID/stat, /proc/PID/syscall), cgroups(7), cpuset.cpus.effective in Linux
//! Documentation/admin-guide/cgroup-v2.rst.

use crate::host::Host;
use crate::schedule::Schedule;
use longma_cpu_set::{CpuSet, MAX_CPU};

/// Statistics of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name.
    pub name: String,
    /// Whether it has ended: a process stays as a zombie until its parent waits for it.
    pub has_ended: bool,
    /// Process group: the number of the process that leads it, which may have ended.
    pub group: u32,
    /// Session: the number of the process that leads it, which may have ended.
    pub session: u32,
    /// CPU time in ticks.
    pub ticks: u64,
    /// Start time in ticks since boot.
    pub started: u64,
    /// CPU that it last ran on.
    pub cpu: u32,
}

/// System calls whose first argument is the descriptor to read from or write to.
#[cfg(target_arch = "x86_64")]
const TRANSFERS: [u64; 12] = [0, 1, 19, 20, 40, 44, 45, 46, 47, 275, 299, 307];
/// Numbers of the generic system call table (AArch64, RISC-V, LoongArch).
#[cfg(not(target_arch = "x86_64"))]
const TRANSFERS: [u64; 12] = [63, 64, 65, 66, 71, 206, 207, 211, 212, 76, 243, 269];

/// Reads the statistics of a thread; `None` if it has ended.
pub fn stat(host: &dyn Host, process: u32, thread: u32) -> Option<Stat> {
    let text = host.read(&format!("proc/{process}/task/{thread}/stat")).ok()?;
    // The name may contain spaces and parentheses.
    let (head, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The first field after the name is field 3 in proc(5).
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        name: head.split_once('(')?.1.into(),
        has_ended: matches!(fields.first(), Some(&("Z" | "X"))),
        group: number(5).and_then(|group| u32::try_from(group).ok()).unwrap_or(0),
        session: number(6).and_then(|session| u32::try_from(session).ok()).unwrap_or(0),
        ticks: number(14)?.saturating_add(number(15)?),
        started: number(22)?,
        cpu: u32::try_from(number(39)?).ok().filter(|cpu| *cpu < MAX_CPU)?,
    })
}

/// Scheduling of a thread; `None` if it has ended.
pub fn schedule(host: &dyn Host, thread: u32) -> Option<Schedule> {
    let text = host.read(&format!("proc/{thread}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |field: usize| fields.get(field - 3);
    Some(Schedule {
        nice: field(19)?.parse().ok()?,
        priority: field(40)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
    })
}

/// Threads of a process in ascending order; empty if it has ended.
pub fn of_process(host: &dyn Host, process: u32) -> Vec<u32> {
    let mut threads: Vec<u32> =
        host.names(&format!("proc/{process}/task")).iter().filter_map(|name| name.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

/// Children of a process, if the kernel lists them.
pub fn children(host: &dyn Host, process: u32) -> Vec<u32> {
    let of_thread =
        |thread: u32| host.read(&format!("proc/{process}/task/{thread}/children")).unwrap_or_default();
    let all = of_process(host, process).into_iter().map(of_thread).collect::<Vec<_>>().join(" ");
    all.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The descriptor that a thread is blocked on in a read or write.
pub fn waits_for(host: &dyn Host, process: u32, thread: u32) -> Option<u32> {
    let text = host.read(&format!("proc/{process}/task/{thread}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let call: u64 = words.next()?.parse().ok()?;
    let descriptor = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    TRANSFERS.contains(&call).then(|| u32::try_from(descriptor).ok()).flatten()
}

/// The CPUs of `online` that the process's cpuset allows; all of them if no cpuset is visible.
pub fn open_to(host: &dyn Host, process: u32, online: &CpuSet) -> CpuSet {
    let groups = host.read(&format!("proc/{process}/cgroup")).unwrap_or_default();
    let path_of = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => Some(("sys/fs/cgroup".to_string(), path.to_string(), "cpuset.cpus.effective")),
            list if list.split(',').any(|word| word == "cpuset") => {
                Some(("sys/fs/cgroup/cpuset".into(), path.into(), "cpuset.effective_cpus"))
            }
            _ => None,
        }
    };
    for (base, path, file) in groups.lines().filter_map(path_of) {
        // A group without the controller uses its parent's CPUs.
        let mut path = path.trim_end_matches('/');
        loop {
            if let Ok(text) = host.read(&format!("{base}{path}/{file}"))
                && let Ok(cpus) = text.parse::<CpuSet>()
                && !cpus.is_empty()
            {
                return online.iter().filter(|cpu| cpus.contains(*cpu)).collect();
            }
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    online.clone()
}

#[cfg(test)]
mod tests;
