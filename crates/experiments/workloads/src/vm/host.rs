//! The workload `vm-host`: virtual machines on one modelled host become busy, and their memory bandwidth is measured
//! some time later. The load balancer (`Switcher`) is optional. Placement, store, reconciliation and moves use the code
//! of the placement service; only the host is modelled. Each virtual CPU reads memory continuously.

use super::modelled::{ModelledHost, TICK_S, Tick};
use super::{host_of, number, parameter};
use longma_lab::{Failure, Kind, Measure, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload};
use longma_placement::hypervisor::domain_name;
use longma_placement::reconcile::{move_vm, reconcile};
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement::store::{VmId, VmQuery};
use longma_placement::switcher::{SwitchPolicy, Switcher};
use longma_placement::{Allocator, Host, Hypervisor, Policy, Request, SqlStore, Store};
use longma_topology::Machine;
use std::collections::BTreeMap;
use std::sync::Arc;

const CPUS: &[&str] = &["none", "range", "exclusive"];
const MEMORIES: &[&str] = &["strict", "preferred"];
/// Interval in seconds at which the agent reports and the switcher runs, as in the service.
const REPORT_S: f64 = 2.0;
/// Length in seconds of the final interval that is averaged.
const WINDOW_S: f64 = 0.1;

const MEASURES: [(&str, &str, &str); 6] = [
    ("bandwidth", "GB/s", "read by all virtual machines over the last 0.1 s"),
    ("least", "GB/s", "read by the slowest virtual machine"),
    ("first", "GB/s", "read by the first virtual machine"),
    ("remote", "%", "of accesses to another node than the virtual CPU's"),
    ("moves", "moves", "of virtual machines, begun so far"),
    ("moved", "GiB", "of memory moved so far"),
];

/// The workload `vm-host`.
pub struct VmHost {
    parameters: Vec<Parameter>,
}

impl Default for VmHost {
    fn default() -> Self {
        let whole = |name, value: i64, about| parameter(name, Kind::Integer, Some(value.into()), about);
        let parameters = vec![
            whole("vms", 4, "virtual machines"),
            whole("vcpus", 8, "virtual CPUs of each"),
            parameter("memory", Kind::Size, Some("8 GiB".into()), "of each"),
            parameter("cpu", Kind::Word(CPUS), Some("range".into()), "binding of virtual CPUs"),
            parameter("bound", Kind::Word(MEMORIES), Some("strict".into()), "binding of memory"),
            parameter("switcher", Kind::Flag, Some(Setting::Flag(true)), "whether to balance the load"),
            parameter(
                "busy",
                Kind::Time,
                Some("10 s".into()),
                "when all but the first become busy; the first is busy from the start",
            ),
            parameter("at", Kind::Time, Some("20 s".into()), "sampling time"),
            whole("overcommit_percent", 200, "virtual CPUs per hundred shared CPUs"),
        ];
        Self { parameters }
    }
}

/// Validated parameters of a point.
struct Setup {
    machine: Machine,
    host: Host,
    requests: Vec<Request>,
    overcommit_percent: u32,
    switcher: bool,
    busy_s: f64,
    at_s: f64,
}

impl Setup {
    fn of(point: &Point) -> Result<Self, Failure> {
        let (machine, host) = host_of(point)?;
        let cpu = match point.text("cpu") {
            "none" => CpuPolicy::None,
            "exclusive" => CpuPolicy::Exclusive,
            _ => CpuPolicy::Range,
        };
        let memory = match point.text("bound") {
            "preferred" => MemoryPolicy::Preferred { within_distance: 255 },
            _ => MemoryPolicy::Strict,
        };
        let vcpus = number(point, "vcpus", 1.0)? as u32;
        let mib = number(point, "memory", 1.0)? as u64 >> 20;
        let vms = number(point, "vms", 1.0)? as u64;
        let request = |at: u64| Request {
            cpu,
            memory,
            virtual_nodes: Some(1),
            ..Request::new(&format!("vm{at}"), vcpus, mib.max(1))
        };
        Ok(Self {
            machine,
            host,
            requests: (0..vms).map(request).collect(),
            overcommit_percent: number(point, "overcommit_percent", 1.0)? as u32,
            switcher: point.parameter("switcher") == Some(&Setting::Flag(true)),
            busy_s: number(point, "busy", 0.0)? / 1e12,
            at_s: number(point, "at", 0.0)? / 1e12,
        })
    }
}

impl Workload for VmHost {
    fn name(&self) -> &str {
        "vm-host"
    }

    fn description(&self) -> &str {
        "virtual machines on one modelled host over time, with the placement service's load balancer"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        let setup = Setup::of(point)?;
        ModelledHost::new(&setup.machine, &setup.host).map_err(Failure::refused)?;
        let measures = MEASURES.map(|(name, unit, about)| Measure::new(name, unit, about));
        Ok(Rehearsal { measures: Some(measures.to_vec()), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let setup = Setup::of(point)?;
        let record = setup.simulate(stop)?;
        let mut metrics = Metrics::default();
        for (name, value) in record.measured() {
            metrics.result(name, value);
        }
        Ok(metrics)
    }
}

/// Record of a run.
struct RunRecord {
    ticks: Vec<Tick>,
    vms: Vec<VmId>,
    moves: u64,
}

impl RunRecord {
    fn measured(&self) -> [(&'static str, f64); MEASURES.len()] {
        let window = ((WINDOW_S / TICK_S).round() as usize).clamp(1, self.ticks.len().max(1));
        let last = &self.ticks[self.ticks.len().saturating_sub(window)..];
        let seconds = window as f64 * TICK_S;
        let rate = |vm: &VmId| last.iter().filter_map(|tick| tick.read.get(vm)).sum::<f64>() / seconds / 1e9;
        let rates: Vec<f64> = self.vms.iter().map(rate).collect();
        let moved: f64 = self.ticks.iter().map(|tick| tick.moved).sum();
        [
            ("bandwidth", rates.iter().sum()),
            ("least", rates.iter().copied().filter(|rate| *rate > 0.0).fold(f64::MAX, f64::min)),
            ("first", rates.first().copied().unwrap_or_default()),
            ("remote", 100.0 * last.iter().map(|tick| tick.remote).sum::<f64>() / window as f64),
            ("moves", self.moves as f64),
            ("moved", moved / f64::from(1 << 30)),
        ]
    }
}

impl Setup {
    fn simulate(&self, stop: &Stop) -> Result<RunRecord, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
        let folder = tempfile::tempdir().map_err(|error| Failure::host(error.to_string()))?;
        let store = SqlStore::open_file(&folder.path().join("placement.db"))
            .map_err(|error| Failure::host(error.to_string()))?;
        let store: Arc<dyn Store> = Arc::new(store);
        store.put_host(&self.host, self.overcommit_percent).map_err(|error| failed(&error))?;
        let policy = Policy { overcommit_percent: self.overcommit_percent, ..Policy::default() };
        let mut allocator = Allocator::open(store.clone(), policy, 1).map_err(|error| failed(&error))?;
        let mut vms = Vec::new();
        for request in &self.requests {
            vms.push(
                allocator.place(request, None).map_err(|error| Failure::refused(error.to_string()))?.vm.id,
            );
        }
        let mut hypervisor = ModelledHost::new(&self.machine, &self.host).map_err(Failure::refused)?;
        reconcile(&*store, &mut hypervisor, &self.host).map_err(|error| failed(&error))?;
        for (at, vm) in vms.iter().enumerate() {
            hypervisor.become_busy_at(*vm, if at == 0 { 0.0 } else { self.busy_s });
        }
        let mut switcher = Switcher::new(SwitchPolicy::default());
        let mut moves = 0;
        let mut used: BTreeMap<VmId, f64> = BTreeMap::new();
        let mut reported_s = 0.0;
        for report in 1.. {
            let due_s = f64::from(report) * REPORT_S;
            if due_s > self.at_s || stop.is_requested() {
                break;
            }
            // A move may have taken longer than the reporting interval.
            hypervisor.advance_to(due_s);
            let (now_s, mut cpus) = (hypervisor.now_s(), BTreeMap::new());
            for vm in &vms {
                let all = hypervisor.cpu_seconds(&domain_name(*vm)).ok().flatten().unwrap_or_default();
                let before = used.insert(*vm, all).unwrap_or_default();
                cpus.insert(*vm, (all - before) / (now_s - reported_s).max(TICK_S));
            }
            reported_s = now_s;
            if !self.switcher {
                continue;
            }
            allocator.apply_changes().map_err(|error| failed(&error))?;
            let stored = store
                .vms(&VmQuery { host: Some(self.host.name.clone()), ..VmQuery::default() })
                .map_err(|error| failed(&error))?;
            let now = now_s as u64;
            let plan = switcher.plan(now, &self.host, &stored, &cpus, allocator.scheduler());
            let Some(plan) = plan else { continue };
            switcher.moved(now, plan.vm);
            let report = move_vm(&*store, &mut hypervisor, &self.host, plan.vm, &plan.target)
                .map_err(|error| failed(&error))?;
            moves += report.done.len() as u64;
        }
        if stop.is_requested() {
            return Err(Failure::stopped());
        }
        hypervisor.advance_to(self.at_s);
        // A move may end after `at_s`; drop the ticks after it.
        let mut ticks = hypervisor.history();
        ticks.truncate((self.at_s / TICK_S).round() as usize);
        Ok(RunRecord { ticks, vms, moves })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulate(cpu: CpuPolicy, switcher: bool, at_s: f64) -> BTreeMap<&'static str, f64> {
        let machine = Machine::open("hygon-8node").unwrap();
        let host = Host::of_machine(&machine, "host").unwrap();
        let request =
            |at| Request { cpu, virtual_nodes: Some(1), ..Request::new(&format!("vm{at}"), 8, 8192) };
        let requests = (0..4).map(request).collect();
        let setup = Setup { machine, host, requests, overcommit_percent: 200, switcher, busy_s: 4.0, at_s };
        setup.simulate(&Stop::default()).unwrap().measured().into()
    }

    #[test]
    fn busy_neighbours_take_bandwidth_and_the_switcher_restores_it() {
        let alone = simulate(CpuPolicy::Range, true, 3.9)["first"];
        let crowded = simulate(CpuPolicy::Range, true, 5.0)["first"];
        let unbalanced = simulate(CpuPolicy::Range, false, 30.0);
        let balanced = simulate(CpuPolicy::Range, true, 30.0);
        assert!((crowded / alone - 0.25).abs() < 0.01, "{crowded} of {alone}");
        assert!(unbalanced["first"] == crowded && unbalanced["moves"] == 0.0, "{unbalanced:?}");
        assert!(
            balanced["first"] > 0.99 * alone && balanced["moves"] == 3.0 && balanced["moved"] > 23.9,
            "{balanced:?}"
        );
        assert!(balanced["remote"] < 1e-6, "{balanced:?}");
    }

    #[test]
    fn exclusive_virtual_machines_stay_local_and_unbound_ones_run_remotely() {
        let exclusive = simulate(CpuPolicy::Exclusive, true, 10.0);
        let none = simulate(CpuPolicy::None, false, 10.0);
        assert!(exclusive["moves"] == 0.0 && exclusive["remote"] == 0.0, "{exclusive:?}");
        assert!(none["remote"] > 50.0, "{none:?}");
    }
}
