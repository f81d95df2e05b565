//! Queues of interfaces: the CPU that processes each one, its load, and whether another program controls it.
//!
//! Source: Linux Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c for affinity_hint and
//! effective_affinity.

use super::{Observation, Queue};
use crate::host::Host;
use crate::interface::{Irq, Nic};
use crate::setting::{Interface, Setting};
use longma_cpu_set::CpuSet;
use longma_linux_network::rss_table::queue_of_irq;
use std::collections::{BTreeMap, BTreeSet};

/// Count of each interrupt by number and CPU.
pub type Interrupts = BTreeMap<u32, BTreeMap<u32, u64>>;

/// Parses /proc/interrupts.
pub fn interrupts(table: &str) -> Interrupts {
    let mut lines = table.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<u32> =
        head.split_whitespace().filter_map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let line = |line: &str| {
        let (number, rest) = line.trim().split_once(':')?;
        let counts = rest.split_whitespace().map_while(|word| word.parse().ok());
        Some((number.parse().ok()?, cpus.iter().copied().zip(counts).collect()))
    };
    lines.filter_map(line).collect()
}

/// The queues of the interfaces, with the interrupts since `counts.0`.
pub fn of(
    host: &dyn Host,
    nics: &[&Nic],
    counts: Option<(&Interrupts, &Interrupts)>,
    observation: &Observation,
    missing: &mut Vec<String>,
) -> Vec<Queue> {
    let usual =
        host.read("proc/irq/default_smp_affinity").ok().and_then(|text| CpuSet::from_mask(&text).ok());
    let mut queues = Vec::new();
    for nic in nics.iter().copied() {
        if nic.kind.is_layer() {
            missing.push(format!(
                "{} is {}, and the interfaces below it are not visible here: only its applications can be moved",
                nic.name,
                nic.kind.words()
            ));
            continue;
        }
        let irqs: Vec<&Irq> = nic.irqs.iter().filter(|irq| irq.cpus.is_some()).collect();
        if irqs.is_empty() && nic.rx_queues.is_empty() {
            missing.push(format!(
                "{} has neither interrupts nor receive queues: only its applications can be moved",
                nic.name
            ));
        }
        if irqs.is_empty() && !nic.irqs.is_empty() {
            missing.push(format!(
                "the interrupts of {} cannot be read: its packets are steered in software",
                nic.name
            ));
        }
        match irqs.is_empty() {
            false => queues.extend(
                irqs.iter().map(|irq| of_irq(host, nic, irq, counts, usual.as_ref(), observation.seconds)),
            ),
            true => queues.extend(nic.rx_queues.iter().map(|queue| of_rps(host, nic, *queue))),
        }
    }
    queues
}

fn of_irq(
    host: &dyn Host,
    nic: &Nic,
    irq: &Irq,
    counts: Option<(&Interrupts, &Interrupts)>,
    usual: Option<&CpuSet>,
    seconds: f64,
) -> Queue {
    let grown = counts.and_then(|(before, after)| {
        let (before, after) = (before.get(&irq.number)?, after.get(&irq.number)?);
        let growth = |(cpu, count): (&u32, &u64)| {
            (count.saturating_sub(before.get(cpu).copied().unwrap_or(*count)), *cpu)
        };
        Some(after.iter().map(growth).collect::<Vec<_>>())
    });
    let all: u64 = grown.iter().flatten().map(|(count, _)| count).sum();
    let file = |name: &str| host.read(&format!("proc/irq/{}/{name}", irq.number)).ok();
    let effective = file("effective_affinity_list").and_then(|text| text.parse::<CpuSet>().ok());
    // The CPU that handled the interrupt last; before the first interrupt, the CPU selected by the kernel.
    let took = grown.iter().flatten().filter(|(count, _)| *count > 0).max().map(|(_, cpu)| *cpu);
    let sent = effective.as_ref().or(irq.cpus.as_ref()).and_then(|cpus| cpus.iter().next());
    let hint =
        file("affinity_hint").and_then(|text| CpuSet::from_mask(&text).ok()).filter(|cpus| !cpus.is_empty());
    let cpus = irq.cpus.clone().unwrap_or_default();
    let is_narrowed =
        usual.is_some_and(|usual| cpus != *usual && usual.iter().any(|cpu| !cpus.contains(cpu)));
    // Drivers distribute their interrupts among CPUs, and publish this distribution as a hint. An affinity that is
    // neither the default nor the hint was set by another program.
    let taken = (is_narrowed && hint.as_ref() != Some(&cpus))
        .then(|| format!("another program has bound it to CPUs {cpus}"));
    Queue {
        interface: nic.name.clone(),
        node: nic.node,
        setting: Setting::Irq(irq.number),
        name: format!("interrupt {} ({})", irq.number, irq.name),
        number: queue_of_irq(&irq.name),
        cpu: if cpus.iter().count() == 1 { cpus.iter().next() } else { took.or(sent) },
        interrupts: Some(if seconds > 0.0 { all as f64 / seconds } else { 0.0 }),
        load: 0.0,
        taken,
    }
}

fn of_rps(host: &dyn Host, nic: &Nic, queue: u32) -> Queue {
    let setting = Setting::Rps { interface: nic.name.clone(), queue };
    let cpus = setting.read(host).ok().and_then(|mask| CpuSet::from_mask(&mask).ok());
    let taken = match &cpus {
        None => Some("its packet steering cannot be read".into()),
        Some(cpus) if !cpus.is_empty() => {
            Some(format!("another program spreads its packets over CPUs {cpus}"))
        }
        Some(_) => None,
    };
    Queue {
        interface: nic.name.clone(),
        node: nic.node,
        name: format!("queue rx-{queue} of {} (RPS)", nic.name),
        number: Some(queue),
        setting,
        cpu: cpus.and_then(|cpus| cpus.iter().next()),
        interrupts: None,
        load: 0.0,
        taken,
    }
}

/// Divides the softirq time of each CPU among its queues with packets, by their interrupts. A queue whose interrupt did
/// not fire was polled all the time if flows arrive on it, and otherwise was idle.
pub fn share_load(queues: &mut [Queue], observation: &Observation) {
    let with_interrupts: BTreeSet<&Interface> =
        queues.iter().filter(|of| of.interrupts != Some(0.0)).map(|of| &of.interface).collect();
    let arrivals: BTreeSet<&(Interface, Option<u32>)> =
        observation.flows.iter().flat_map(|flow| &flow.arrives).collect();
    // The interfaces without interrupts by which flows arrive. Without `also_known`, only those of flows whose queue is
    // unknown.
    let of_any = |also_known: bool| -> BTreeSet<&Interface> {
        let of = arrivals.iter().filter(|(_, number)| also_known || number.is_none());
        of.map(|(interface, _)| interface).filter(|of| !with_interrupts.contains(of)).collect()
    };
    let (unknown, quiet) = (of_any(false), of_any(true));
    let is_target = |queue: &Queue| match queue.number {
        Some(number) => {
            unknown.contains(&queue.interface) || arrivals.contains(&(queue.interface.clone(), Some(number)))
        }
        None => quiet.contains(&queue.interface),
    };
    let has_packets: Vec<bool> =
        queues.iter().map(|queue| queue.interrupts != Some(0.0) || is_target(queue)).collect();
    let mut all: BTreeMap<u32, (f64, usize)> = BTreeMap::new();
    for (queue, _) in queues.iter().zip(&has_packets).filter(|(_, has_packets)| **has_packets) {
        if let Some(cpu) = queue.cpu {
            let (rate, count) = all.entry(cpu).or_default();
            *rate += queue.interrupts.unwrap_or(0.0);
            *count += 1;
        }
    }
    for (queue, _) in queues.iter_mut().zip(has_packets).filter(|(_, has_packets)| *has_packets) {
        let Some(cpu) = queue.cpu else { continue };
        let (Some((rate, count)), Some(shares)) = (all.get(&cpu), observation.cpus.get(&cpu)) else {
            continue;
        };
        let part = if *rate > 0.0 { queue.interrupts.unwrap_or(0.0) / rate } else { 1.0 / *count as f64 };
        queue.load = part * (shares.softirq + shares.irq);
    }
}
