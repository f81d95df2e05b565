//! The chapter of the machine: nested boxes with the run's utilization of each part.

use std::fmt::Write as _;

use longma_lab::report::escape;
use longma_runner::simulation::Traffic;
use longma_sim::{Statistics, Value};
use longma_topology::{
    HostInstance,
    parts::{Cache, CacheKind},
};

use super::{RunPage, memory::utilisation, name, percent, put};
use crate::caches::{CacheAccesses, cache};

/// Maximum number of cores that are drawn.
const MAX_CORES: usize = 64;
/// Maximum number of NUMA nodes that are drawn.
const MAX_NODES: usize = 64;

/// A part of the machine.
struct Part {
    class: &'static str,
    title: String,
    facts: Vec<String>,
    /// The utilization or hit rate, 0 to 1; `None` if unknown.
    fill: Option<f64>,
}

impl Part {
    fn write(&self, out: &mut String) {
        let fill = self.fill.map_or(0.0, |fill| 100.0 * fill.clamp(0.0, 1.0));
        put!(
            out,
            "<div class=\"part {}\" style=\"--fill:{fill:.1}%\"><b>{}</b>",
            self.class,
            escape(&self.title)
        );
        for fact in &self.facts {
            put!(out, "<span>{}</span>", escape(fact));
        }
        out.push_str("</div>\n");
    }
}

/// A drawing in progress.
struct Drawing<'a> {
    run: &'a RunPage<'a>,
    host: &'a HostInstance,
    cores: usize,
}

pub(super) fn write(run: &RunPage<'_>, out: &mut String) {
    let Some(host) = run.machine.layout().hosts.first() else { return };
    let mut drawing = Drawing { run, host, cores: 0 };
    put!(
        out,
        "<p class=\"about\">Filled: of a core, the cycles in which it was not idle; of a cache, the accesses that hit; of memory, the bandwidth used.</p>\n<div class=\"machine\"><div class=\"box\"><b>{}</b>\n",
        name(&run.machine.title)
    );
    for (number, _) in host.nodes.iter().enumerate().take(MAX_NODES) {
        drawing.node(number, out);
    }
    if host.nodes.len() > MAX_NODES {
        put!(out, "<p class=\"note\">{} more NUMA nodes</p>\n", host.nodes.len() - MAX_NODES);
    }
    out.push_str("</div></div>\n");
}

fn count(statistics: &Statistics, name: &str) -> Option<u64> {
    match statistics.get(name)?.value {
        Value::Counter(count) => Some(count.value()),
        _ => None,
    }
}

fn hit_rate(accesses: &CacheAccesses) -> f64 {
    1.0 - percent(accesses.missed as f64, accesses.all as f64) / 100.0
}

impl Drawing<'_> {
    fn statistics(&self) -> &Statistics {
        &self.run.result.statistics
    }

    fn node(&mut self, number: usize, out: &mut String) {
        let host = self.host;
        let node = &host.nodes[number];
        let chip = host.chips.get(node.chip).map_or("", String::as_str);
        put!(
            out,
            "<div class=\"box node\"><b>NUMA node {number}</b><span> on chip {} ({})</span>\n<div class=\"parts\">",
            node.chip,
            name(chip)
        );
        let first: usize = host.nodes[..number].iter().map(|node| node.memories.len()).sum();
        for (index, memory) in node.memories.iter().enumerate() {
            self.memory(memory, first + index).write(out);
        }
        for (index, instance) in host.caches.iter().enumerate() {
            let is_here = instance.cores.first().is_some_and(|core| node.cores.contains(core));
            if is_here && self.is_shared(index) {
                self.shared_cache(index).write(out);
            }
        }
        out.push_str("</div>\n<div class=\"cores\">");
        let mut idle = 0;
        for &core in &node.cores {
            match count(self.statistics(), &format!("core{core}.instructions")) {
                Some(instructions) if self.cores < MAX_CORES => {
                    self.cores += 1;
                    self.core(core, instructions, out);
                }
                Some(_) => idle += 1,
                None => idle += 1,
            }
        }
        if idle > 0 {
            let what = if self.cores < MAX_CORES { "not used" } else { "not drawn" };
            put!(
                out,
                "<div class=\"part core idle\"><b>{idle} core{} {what}</b></div>",
                if idle == 1 { "" } else { "s" }
            );
        }
        out.push_str("</div></div>\n");
    }

    /// Whether a cache is drawn with its node instead of with its core.
    fn is_shared(&self, cache: usize) -> bool {
        let instance = &self.host.caches[cache];
        let level = self.kind_of(cache).map_or(1, |cache| cache.level);
        instance.cores.len() > 1 || level > 2
    }

    fn kind_of(&self, cache: usize) -> Option<&Cache> {
        self.run.machine.caches.get(self.host.caches[cache].cache.as_str())
    }

    fn memory(&self, kind: &str, controller: usize) -> Part {
        let statistics = format!("memory.controller{controller}");
        let traffic = self.run.result.traffic.iter().find(|part| part.name == statistics);
        let parts = self.run.machine.memories.get(kind);
        let mut facts: Vec<String> =
            parts.into_iter().map(|memory| memory.technology.word().to_uppercase()).collect();
        let seconds = self.run.result.summary.time.seconds();
        let is_timed = self.run.result.summary.stack.is_some() && seconds > 0.0;
        let used = |part: &Traffic| {
            let rates =
                [part.bytes as f64 / seconds, part.peak_bytes_per_second as f64].map(|rate| rate / 1e9);
            format!("{:.2} of {:.1} GB/s", rates[0], rates[1])
        };
        facts.extend(traffic.filter(|_| is_timed).map(used));
        let fill = traffic.filter(|_| is_timed).map(|part| utilisation(part, seconds));
        Part { class: "memory", title: format!("memory {controller}"), facts, fill }
    }

    fn shared_cache(&self, index: usize) -> Part {
        let instance = &self.host.caches[index];
        let Some(kind) = self.kind_of(index) else {
            return Part { class: "cache", title: instance.cache.clone(), facts: Vec::new(), fill: None };
        };
        let alike = |other: usize| {
            self.is_shared(other) && self.kind_of(other).is_some_and(|k| k.level == kind.level)
        };
        let number = (0..index).filter(|other| alike(*other)).count();
        let level = kind.level;
        let named = [format!("l{level}-{number}"), format!("l{level}")];
        let accesses = named.iter().find_map(|part| cache(self.statistics(), part));
        let mut part = cache_part(kind, accesses.as_ref());
        if instance.cores.len() > 1 {
            part.facts.push(format!("of {} cores", instance.cores.len()));
        }
        part
    }

    fn core(&self, core: usize, instructions: u64, out: &mut String) {
        let of = |name: &str| count(self.statistics(), &format!("core{core}.{name}"));
        let instance = &self.host.cores[core];
        let (cycles, idle) = (of("cycles"), of("idle_cycles").unwrap_or(0));
        let busy = cycles.map(|cycles| cycles.saturating_sub(idle));
        let mut facts = Vec::new();
        if let (Some(cycles), Some(busy)) = (cycles, busy) {
            facts.push(format!("{:.0} % busy", percent(busy as f64, cycles as f64)));
            facts.push(format!("IPC {:.2}", instructions as f64 / busy.max(1) as f64));
        } else {
            facts.push(format!("{instructions} instructions"));
        }
        let fill = cycles.zip(busy).map(|(cycles, busy)| busy as f64 / cycles.max(1) as f64);
        out.push_str("<div class=\"box core\">");
        Part { class: "core", title: format!("core {core}"), facts, fill }.write(out);
        for &index in instance.caches.iter().filter(|index| !self.is_shared(**index)) {
            let Some(kind) = self.kind_of(index) else { continue };
            let unit = match (kind.level, kind.kind) {
                (1, CacheKind::Data) => "l1d".into(),
                (1, CacheKind::Instruction) => "l1i".into(),
                (level, _) => format!("l{level}"),
            };
            let accesses = cache(self.statistics(), &format!("core{core}.{unit}"));
            cache_part(kind, accesses.as_ref()).write(out);
        }
        out.push_str("</div>\n");
    }
}

fn cache_part(kind: &Cache, accesses: Option<&CacheAccesses>) -> Part {
    let facts = accesses.map(|accesses| format!("{:.1} % hit", 100.0 * hit_rate(accesses)));
    Part {
        class: "cache",
        title: format!("{} {}", kind.short_name(), kind.size),
        facts: facts.into_iter().collect(),
        fill: accesses.map(hit_rate),
    }
}
