//! The workload `vm`: a guest program that represents a virtual machine, which the scheduler places on the machine's
//! host. Its threads are the virtual CPUs. Threads and memory are bound according to the policies or placed at random.
//! VM exits and nested page tables are not modelled. `program` runs the program.
//!
//! Source: He Mujun et al. (High Technology Letters 2021) for the scenarios; `guests/c/vcpu.h` for the placement of
//! threads.

use super::{host_of, number, parameter};
use crate::program::Program;
use longma_lab::{
    Failure, InputFile, Kind, Measure, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload, digest,
};
use longma_locks::IgnorePoison;
use longma_placement::audit::intended_pins;
use longma_placement::fleet::Rng;
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement::{CpuSet, Host, Placement, Policy, Request, Scheduler};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const BINDINGS: &[&str] = &["exclusive", "range", "none"];
const MEMORIES: &[&str] = &["strict", "preferred", "unbound"];
const PLACES: &[&str] = &["own", "neighbour", "other-neighbour", "remote"];
const DRIFTS: &[&str] = &["threads", "together"];
/// Parameters shared with `program`.
const FORWARDED: [&str; 6] = ["program", "folder", "variant", "arguments", "prints", "environment"];
/// Environment variable with the list of CPUs.
const VARIABLE: &str = "vcpus";

/// A guest program in a virtual machine.
pub struct Guest {
    program: Program,
    parameters: Vec<Parameter>,
    runs: Mutex<BTreeMap<String, SharedResult>>,
}

/// The result of a scenario, shared by all points with that scenario.
type SharedResult = Arc<Mutex<Option<Metrics>>>;

impl Guest {
    /// Creates the workload. `longma` is the path of the command.
    pub fn new(longma: impl Into<std::path::PathBuf>) -> Self {
        let program = Program::new(longma);
        let mut parameters: Vec<Parameter> =
            program.parameters().iter().filter(|p| FORWARDED.contains(&p.name)).cloned().collect();
        let whole = |name, value: i64, about| parameter(name, Kind::Integer, Some(value.into()), about);
        parameters.extend([
            whole("vcpus", 4, "virtual CPUs, each a thread of the program"),
            parameter("memory", Kind::Size, Some("1 GiB".into()), "requested memory"),
            parameter(
                "cpu",
                Kind::Word(BINDINGS),
                Some("range".into()),
                "binding of virtual CPUs: one core each, the cores of the node, or any core of the host",
            ),
            parameter(
                "bound",
                Kind::Word(MEMORIES),
                Some("strict".into()),
                "binding of memory: that node only, that node preferred, or first touch",
            ),
            parameter(
                "on",
                Kind::Word(PLACES),
                Some("own".into()),
                "node of bound memory: the virtual CPUs' own, the first or second nearest, or the farthest",
            ),
            parameter(
                "drift",
                Kind::Word(DRIFTS),
                Some("threads".into()),
                "without CPU binding, what the host places: each virtual CPU separately, or all on one node",
            ),
            whole("steps", 2, "number of times the host places the virtual CPUs; the program triggers it"),
            whole(
                "unbound_runs",
                0,
                "runs without any binding for comparison, each with different random places",
            ),
            whole("seed", 1, "seed of the random places"),
        ]);
        Self { program, parameters, runs: Mutex::default() }
    }

    /// The point for `program`. Parameters have their defaults, except those that this workload forwards or sets.
    fn of_program(&self, point: &Point, layout: &Layout) -> Point {
        let mut inner = self.program.point_of(point, &FORWARDED);
        let mut set = |name: &str, value: Setting| inner.parameters.insert(name.into(), value);
        set("level", "timing".into());
        set("roi", Setting::Flag(true));
        set("numa", Setting::Text(layout.numa.clone()));
        if let Some(Setting::Named(variables)) = inner.parameters.get_mut("environment") {
            variables.insert(VARIABLE.into(), layout.steps.clone());
        }
        inner
    }

    /// The program's metrics in a scenario.
    fn measured(&self, point: &Point, layout: &Layout, stop: &Stop) -> Result<Metrics, Failure> {
        let machine = point.machine.as_ref().map(|machine| digest(machine.text.as_bytes()));
        let values = FORWARDED.map(|name| point.parameter(name).map(ToString::to_string));
        let key = format!("{machine:?} {values:?} {} {}", layout.numa, layout.steps);
        let mut runs = self.runs.lock().ignore_poison();
        let slot = runs.entry(key).or_default().clone();
        drop(runs);
        let mut slot = slot.lock().ignore_poison();
        if let Some(known) = &*slot {
            return Ok(known.clone());
        }
        let metrics = self.program.run(&self.of_program(point, layout), stop)?;
        Ok(slot.insert(metrics).clone())
    }
}

impl Workload for Guest {
    fn name(&self) -> &str {
        "vm"
    }

    fn description(&self) -> &str {
        "a guest program in a virtual machine placed on the machine's host"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn location_parameters(&self) -> &'static [&'static str] {
        &["folder"]
    }

    fn inputs(&self, point: &Point) -> Result<BTreeMap<String, String>, Failure> {
        self.program.inputs(point)
    }

    fn files(&self, point: &Point) -> Result<Vec<InputFile>, Failure> {
        self.program.files(point)
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        let setup = Setup::of(point)?;
        let inner = self.program.rehearse(&self.of_program(point, &setup.bound()))?;
        let mut measures = inner.measures.unwrap_or_default();
        for name in prints(point).filter(|_| setup.unbound_runs > 0) {
            let about = [
                ("unbound", "", "without any binding, mean of the runs"),
                ("least_unbound", "", "without any binding, minimum of the runs"),
                ("most_unbound", "", "without any binding, maximum of the runs"),
                ("promotion", "%", "(bound - unbound) / unbound, with the mean"),
            ];
            measures
                .extend(about.map(|(what, unit, about)| Measure::new(format!("{name}_{what}"), unit, about)));
        }
        Ok(Rehearsal { measures: Some(measures), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let setup = Setup::of(point)?;
        let mut metrics = self.measured(point, &setup.bound(), stop)?;
        let runs: Vec<Metrics> = (0..setup.unbound_runs)
            .map(|draw| self.measured(point, &setup.unbound(draw), stop))
            .collect::<Result<_, _>>()?;
        for name in prints(point).filter(|_| !runs.is_empty()) {
            let bound = metrics.results.get(name).copied();
            let unbound: Vec<f64> = runs.iter().filter_map(|run| run.results.get(name).copied()).collect();
            let mean = unbound.iter().sum::<f64>() / unbound.len() as f64;
            let Some(bound) = bound.filter(|_| mean > 0.0) else { continue };
            metrics.result(&format!("{name}_unbound"), mean);
            metrics
                .result(&format!("{name}_least_unbound"), unbound.iter().copied().fold(f64::MAX, f64::min));
            metrics.result(&format!("{name}_most_unbound"), unbound.iter().copied().fold(f64::MIN, f64::max));
            metrics.result(&format!("{name}_promotion"), 100.0 * (bound - mean) / mean);
        }
        Ok(metrics)
    }
}

fn prints(point: &Point) -> impl Iterator<Item = &str> {
    match point.parameter("prints") {
        Some(Setting::Named(prints)) => Some(prints.keys().map(String::as_str)),
        _ => None,
    }
    .into_iter()
    .flatten()
}

/// Location of a run's threads and memory.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    /// Memory policy in the syntax of `longma run --numa`; empty for first touch.
    numa: String,
    /// CPU of each virtual CPU at each step, in the guest's syntax.
    steps: String,
}

/// Validated parameters of a point, with the scheduler's placement.
struct Setup {
    host: Host,
    placement: Placement,
    vcpus: usize,
    steps: usize,
    unbound_runs: u64,
    seed: u64,
    binding: &'static str,
    together: bool,
    bound: String,
    memory_node: u32,
}

impl Setup {
    fn of(point: &Point) -> Result<Self, Failure> {
        let (_, host) = host_of(point)?;
        let host = with_one_thread_per_core(host);
        let vcpus = number(point, "vcpus", 1.0)? as usize;
        let binding = BINDINGS.iter().find(|known| **known == point.text("cpu")).unwrap_or(&BINDINGS[1]);
        let cpu = match *binding {
            "exclusive" => CpuPolicy::Exclusive,
            "range" => CpuPolicy::Range,
            _ => CpuPolicy::None,
        };
        let memory = match point.text("bound") {
            "strict" => MemoryPolicy::Strict,
            _ => MemoryPolicy::Preferred { within_distance: 255 },
        };
        let mib = number(point, "memory", 1.0)? as u64 >> 20;
        let request = Request {
            cpu,
            memory,
            virtual_nodes: Some(1),
            ..Request::new("guest", vcpus as u32, mib.max(1))
        };
        let refused = |error: &dyn std::fmt::Display| Failure::refused(error.to_string());
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).map_err(|error| refused(&error))?;
        let placement = scheduler.place(&request).map_err(|error| refused(&error))?;
        let memory_node = node_at(&host, placement.cells[0].node, point.text("on"))
            .ok_or_else(|| Failure::refused("the machine has no node at such a distance"))?;
        Ok(Self {
            host,
            placement,
            vcpus,
            steps: number(point, "steps", 1.0)? as usize,
            unbound_runs: number(point, "unbound_runs", 0.0)? as u64,
            seed: number(point, "seed", 0.0)? as u64,
            binding,
            together: point.text("drift") == "together",
            bound: point.text("bound").into(),
            memory_node,
        })
    }

    /// Threads and memory bound according to the policies.
    fn bound(&self) -> Layout {
        let numa = match &*self.bound {
            "strict" => format!("bind:{}", self.memory_node),
            "preferred" => format!("preferred:{}", self.memory_node),
            _ => String::new(),
        };
        let pins = intended_pins(&self.host, &[], &self.placement);
        let mut random = Rng::new(self.seed);
        let steps = (0..self.steps).map(|_| match self.binding {
            "exclusive" => pins.vcpus.iter().filter_map(|cpus| cpus.iter().next()).collect(),
            "range" => distinct(&mut random, &pins.vcpus[0], self.vcpus),
            _ => self.random_cpus(&mut random),
        });
        Layout { numa, steps: format_steps(steps) }
    }

    /// Neither CPUs nor memory bound: memory is allocated where the threads first run.
    fn unbound(&self, draw: u64) -> Layout {
        let mut random = Rng::new(self.seed.wrapping_add(1 + draw).wrapping_mul(0x9e37_79b9));
        let steps = (0..self.steps).map(|_| self.random_cpus(&mut random));
        Layout { numa: String::new(), steps: format_steps(steps) }
    }

    /// Random cores of the host or of one node. No core is used twice, as with a load-balancing scheduler that has idle
    /// cores.
    fn random_cpus(&self, random: &mut Rng) -> Vec<u32> {
        let node = random.index(self.host.nodes.len());
        let nodes = if self.together { &self.host.nodes[node..=node] } else { &self.host.nodes };
        let cpus: CpuSet = nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
        distinct(random, &cpus, self.vcpus)
    }
}

/// Draws `count` of `cpus` in random order. CPUs repeat only if there are fewer than `count`.
fn distinct(random: &mut Rng, cpus: &CpuSet, count: usize) -> Vec<u32> {
    let all: Vec<u32> = cpus.iter().collect();
    let mut left = Vec::new();
    (0..count)
        .map(|_| {
            if left.is_empty() {
                left.clone_from(&all);
            }
            left.swap_remove(random.index(left.len()))
        })
        .collect()
}

fn format_steps(steps: impl Iterator<Item = Vec<u32>>) -> String {
    let step = |cpus: Vec<u32>| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    steps.map(step).collect::<Vec<_>>().join(";")
}

/// Reduces each core to one hardware thread, because simulated cores run one thread each.
fn with_one_thread_per_core(mut host: Host) -> Host {
    for core in host.nodes.iter_mut().flat_map(|node| &mut node.cores) {
        *core = core.iter().take(1).collect();
    }
    host
}

/// The node at the distance from `own` that `word` describes.
fn node_at(host: &Host, own: u32, word: &str) -> Option<u32> {
    let row = host.nodes.iter().position(|node| node.id == own)?;
    let mut others: Vec<(u32, u32)> =
        host.nodes.iter().zip(&host.distances[row]).map(|(node, distance)| (*distance, node.id)).collect();
    others.retain(|(_, node)| *node != own);
    others.sort_unstable();
    let at_least = |others: &[(u32, u32)], nth: usize| {
        others.iter().filter(|other| other.0 == others[0].0).nth(nth).map(|other| other.1)
    };
    match word {
        "neighbour" => at_least(&others, 0),
        "other-neighbour" => at_least(&others, 1),
        "remote" => others.iter().find(|other| Some(other.0) == others.last().map(|o| o.0)).map(|o| o.1),
        _ => Some(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_topology::Machine;

    fn setup(binding: &'static str, cpu: CpuPolicy) -> Setup {
        let machine = Machine::open("hygon-8node").unwrap();
        let host = with_one_thread_per_core(Host::of_machine(&machine, "h").unwrap());
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).unwrap();
        let placement = scheduler.place(&Request { cpu, ..Request::new("guest", 4, 1024) }).unwrap();
        let memory_node = placement.cells[0].node;
        Setup {
            host,
            placement,
            vcpus: 4,
            steps: 6,
            unbound_runs: 0,
            seed: 1,
            binding,
            together: false,
            bound: "strict".into(),
            memory_node,
        }
    }

    fn nodes(layout: &Layout) -> Vec<Vec<u32>> {
        let step = |step: &str| step.split(',').map(|cpu| cpu.parse::<u32>().unwrap() / 8).collect();
        layout.steps.split(';').map(step).collect()
    }

    #[test]
    fn bound_virtual_cpus_stay_and_unbound_ones_are_placed_at_random() {
        let exclusive = setup("exclusive", CpuPolicy::Exclusive);
        let steps: Vec<String> = exclusive.bound().steps.split(';').map(String::from).collect();
        assert!(steps.len() == 6 && steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        let range = setup("range", CpuPolicy::Range);
        let own = range.placement.cells[0].node;
        assert!(nodes(&range.bound()).iter().flatten().all(|node| *node == own));
        assert_eq!(range.bound().numa, format!("bind:{own}"));
        let unbound: Vec<u32> = nodes(&range.unbound(0)).concat();
        assert!(unbound.iter().any(|node| *node != unbound[0]));
        assert_ne!(range.unbound(0), range.unbound(1));
        assert_eq!(range.unbound(0), range.unbound(0));
    }

    #[test]
    fn threads_that_drift_together_are_on_one_node() {
        let setup = Setup { together: true, ..setup("none", CpuPolicy::None) };
        let steps = nodes(&setup.unbound(3));
        assert!(steps.iter().all(|step| step.iter().all(|node| *node == step[0])), "{steps:?}");
        assert!(steps.iter().any(|step| step[0] != steps[0][0]), "{steps:?}");
    }

    #[test]
    fn nodes_are_selected_by_distance() {
        let machine = Machine::open("hygon-8node").unwrap();
        let host = Host::of_machine(&machine, "h").unwrap();
        let at = |own, word| node_at(&host, own, word).unwrap();
        assert_eq!(
            [at(0, "own"), at(0, "neighbour"), at(0, "other-neighbour"), at(0, "remote")],
            [0, 1, 2, 4]
        );
        assert_eq!([at(5, "neighbour"), at(5, "other-neighbour"), at(5, "remote")], [4, 6, 0]);
    }
}
