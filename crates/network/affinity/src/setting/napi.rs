//! The values of an interface's NAPI instances, and CPUs and scheduling of the threads that poll the instances. Changes
//! of the interface's own settings overwrite these values: a timeout of the interface is written to all instances, and
//! offloads, rings or threaded NAPI may create new instances and threads. The values are therefore recorded before such a
//! change, and restored after it.
//!
//! Source: Linux Documentation/networking/napi.rst (persistent configuration, threaded NAPI), net/core/dev.c
//! (netdev_set_gro_flush_timeout, netif_set_threaded, napi_kthread_create: `napi/NAME-ID`), proc(5).

use crate::host::Host;
use crate::schedule::Schedule;
use crate::threads;
use longma_cpu_set::CpuSet;
use longma_linux_network::napi::{NapiInstance, NapiValues};
use serde::{Deserialize, Serialize};
use std::io;

/// A recorded instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Recorded {
    id: u32,
    values: NapiValues,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<ThreadState>,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ThreadState {
    cpus: String,
    schedule: Schedule,
}

/// The instances in ascending order of their numbers, as JSON.
///
/// # Errors
/// The error of the operating system; `NotFound` if there are none.
pub(super) fn read(host: &dyn Host, interface: &str) -> io::Result<String> {
    let recorded: Vec<Recorded> = instances(host, interface)?
        .into_iter()
        .map(|NapiInstance { id, thread, values }| Recorded {
            id,
            values,
            thread: thread.and_then(|thread| state(host, thread)),
        })
        .collect();
    Ok(serde_json::to_string(&recorded)?)
}

/// Sets the instances to the values in `text`, by their numbers. Recreated instances receive the values of missing
/// ones, in order.
///
/// # Errors
/// The error of the operating system; `NotFound` if there are more or fewer instances.
pub(super) fn write(host: &dyn Host, interface: &str, text: &str) -> io::Result<()> {
    let mut recorded: Vec<Recorded> = serde_json::from_str(text)?;
    let now = instances(host, interface)?;
    if now.len() != recorded.len() {
        let words = format!("it has {} NAPI instances, but {} are recorded", now.len(), recorded.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    let is_there = |of: &Recorded| now.iter().any(|instance| instance.id == of.id);
    let mut missing = recorded.iter().filter(|of| !is_there(of)).cloned().collect::<Vec<_>>().into_iter();
    recorded.retain(is_there);
    for instance in now {
        let known = recorded.iter().find(|of| of.id == instance.id).cloned();
        let Some(wanted) = known.or_else(|| missing.next()) else { continue };
        let differing = differing(&instance.values, &wanted.values);
        if differing != NapiValues::default() {
            host.set_napi(interface, instance.id, &differing)?;
        }
        if let Some((thread, wanted)) = instance.thread.zip(wanted.thread) {
            set_state(host, thread, &wanted)?;
        }
    }
    Ok(())
}

/// Returns whether two texts have the same values in the same order. Numbers of instances may differ.
pub(super) fn means_same(one: &str, other: &str) -> bool {
    let values = |text: &str| -> Option<Vec<Recorded>> {
        let mut all: Vec<Recorded> = serde_json::from_str(text).ok()?;
        all.iter_mut().for_each(|of| of.id = 0);
        Some(all)
    };
    values(one).zip(values(other)).is_some_and(|(one, other)| one == other)
}

/// The timeouts for which interrupts stay suspended: one number if they are the same for all instances, else one for each,
/// separated by commas.
///
/// # Errors
/// The error of the operating system; `NotFound` if there are none.
pub(super) fn suspend_timeout(host: &dyn Host, interface: &str) -> io::Result<String> {
    let error = || {
        let words = "it has no NAPI instance, or the kernel does not report its timeout (Linux 6.13)";
        io::Error::new(io::ErrorKind::NotFound, words)
    };
    let timeouts =
        instances(host, interface)?.into_iter().map(|instance| instance.values.irq_suspend_timeout);
    let mut timeouts: Vec<u64> = timeouts.collect::<Option<_>>().ok_or_else(error)?;
    if timeouts.iter().all(|timeout| *timeout == timeouts[0]) {
        timeouts.truncate(1);
    }
    Ok(timeouts.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
}

/// Sets the timeouts, in the form of [`suspend_timeout`].
///
/// # Errors
/// The error of the operating system; `InvalidInput` for another form.
pub(super) fn set_suspend_timeout(host: &dyn Host, interface: &str, text: &str) -> io::Result<()> {
    let timeouts: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    let timeouts = timeouts.map_err(|_| io::ErrorKind::InvalidInput)?;
    let instances = instances(host, interface)?;
    if timeouts.len() != 1 && timeouts.len() != instances.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (instance, timeout) in instances.iter().zip(timeouts.iter().cycle()) {
        let values = NapiValues { irq_suspend_timeout: Some(*timeout), ..NapiValues::default() };
        host.set_napi(interface, instance.id, &values)?;
    }
    Ok(())
}

/// The instances as the kernel lists them, or by the names of their threads if it does not (before Linux 6.8).
fn instances(host: &dyn Host, interface: &str) -> io::Result<Vec<NapiInstance>> {
    let mut all = match host.napi(interface) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => {
            by_threads(host, interface)
        }
        listed => listed?,
    };
    if all.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no NAPI instance"));
    }
    all.sort_by_key(|instance| instance.id);
    Ok(all)
}

fn by_threads(host: &dyn Host, interface: &str) -> Vec<NapiInstance> {
    let prefix = format!("napi/{interface}-");
    let all = host.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let instance = |thread: u32| {
        let name = host.read(&format!("proc/{thread}/comm")).ok()?;
        let id = name.strip_prefix(&prefix)?.parse().ok()?;
        Some(NapiInstance { id, thread: Some(thread), values: NapiValues::default() })
    };
    all.filter_map(instance).collect()
}

/// The state of a NAPI thread; `None` if it is not visible. The kernel reports thread IDs of the initial PID namespace; in
/// another namespace, another thread may have the ID.
fn state(host: &dyn Host, thread: u32) -> Option<ThreadState> {
    let name = host.read(&format!("proc/{thread}/comm")).ok()?;
    if !name.starts_with("napi/") {
        return None;
    }
    let schedule = threads::schedule(host, thread)?;
    Some(ThreadState { cpus: host.thread_cpus(thread).ok()?.to_string(), schedule })
}

fn set_state(host: &dyn Host, thread: u32, wanted: &ThreadState) -> io::Result<()> {
    let now = state(host, thread).ok_or(io::ErrorKind::NotFound)?;
    if now.cpus != wanted.cpus {
        let cpus: CpuSet = wanted.cpus.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        host.bind_thread(thread, &cpus)?;
    }
    if now.schedule != wanted.schedule {
        host.set_schedule(thread, &wanted.schedule)?;
    }
    Ok(())
}

/// The values of `wanted` that differ from those of `now`.
fn differing(now: &NapiValues, wanted: &NapiValues) -> NapiValues {
    NapiValues {
        defer_hard_irqs: wanted.defer_hard_irqs.filter(|_| now.defer_hard_irqs != wanted.defer_hard_irqs),
        gro_flush_timeout: wanted
            .gro_flush_timeout
            .filter(|_| now.gro_flush_timeout != wanted.gro_flush_timeout),
        irq_suspend_timeout: wanted
            .irq_suspend_timeout
            .filter(|_| now.irq_suspend_timeout != wanted.irq_suspend_timeout),
        threaded: wanted.threaded.filter(|_| now.threaded != wanted.threaded),
    }
}

#[cfg(test)]
mod tests;
