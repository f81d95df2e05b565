//! Builds the memory system of a host from its machine file. The constants below are the defaults for parameters that
//! the file omits.

use super::MemorySystem;
use super::contention::Contention;
use super::core_port::LastPage;
use super::domain::{Bank, Directory, Domain, Shared};
use super::path::{Detail, FixedLatencies, Path, REQUEST_BYTES};
use super::private::{Level1, Level2, Private, PrivateBanks};
use super::promised::PromisedLines;
use super::report::Messages;
use crate::build_error::{BuildError, host_of};
use crate::cache::{
    Counters, Filter, InFlight, Index, LineLock, MAX_WAYS, MissRegisters, Partition, Policy, Tags,
};
use crate::coherence::{LineTable, MAX_HOLDERS};
use crate::dram::{Controllers, overhead};
use crate::interconnect::{BUCKET, Endpoint, Interconnect, MAX_SKEW};
use crate::placement::{AddressSpaces, FrameOrder, SpaceId};
use crate::prefetch::Prefetcher;
use crate::translation::Tlbs;
use longma_plugin::{CacheShape, PluginError};
use longma_sim::{Clock, Duration, Resource};
use longma_topology::parts::{
    self, Cache, CacheKind, Coherence, Inclusion, LEVEL1_CYCLES, LINE_BYTES, PrefetcherKind, Replacement,
    TlbRefill, WritePolicy,
};
use longma_topology::units::{Frequency, Latency};
use longma_topology::{CoreInstance, HostInstance, Machine};

/// Load-to-use latency of a private second level: 12 on Sandy Bridge (Intel 64 and IA-32 Architectures Optimization
/// Reference Manual, 248966), 14 on Zen and Loongson cores.
const LEVEL2_CYCLES: u64 = 14;
/// Load-to-use latency of a shared last level: an estimate between Sandy Bridge's 30 and the 50 to 70 of current
/// many-core servers.
const SHARED_CYCLES: u64 = 40;
/// Outstanding misses of a first-level cache: Sandy Bridge's ten line fill buffers (Intel 248966, section 2.3.5.1).
const LEVEL1_REGISTERS: usize = 10;
/// Outstanding misses of a second-level cache: an estimate, Sandy Bridge's superqueue of 16.
const LEVEL2_REGISTERS: usize = 16;
/// Bytes per cycle of a shared cache bank: half a typical line (Sandy Bridge's ring stop; the Loongson 3A5000's bank).
const BANK_BYTES_PER_CYCLE: u64 = 32;
/// Page size if neither the core nor the system states one: the default of LoongArch Linux.
const PAGE_BYTES: u64 = 16 << 10;
/// Minimum bucket width of a bank's calendar, in service times of a line. The width is also at least that of the
/// channels in front of it, so that the bank covers the same time range.
const BUCKET_LINES: u64 = 8;

/// The inputs for building one host.
struct Plan<'a> {
    machine: &'a Machine,
    host: &'a HostInstance,
    seed: u64,
    timing: bool,
    line_bits: u32,
    page_bytes: u64,
}

/// The caches of one core by role, as indices in the host's layout.
#[derive(Clone, Copy, Debug, Default)]
struct Stack {
    fetch: Option<usize>,
    data: Option<usize>,
    second: Option<usize>,
    shared: Option<usize>,
}

fn has_plugin(cache: &Cache) -> bool {
    let is_plugin = |prefetcher: &parts::Prefetcher| prefetcher.kind == PrefetcherKind::Plugin;
    cache.replacement == Replacement::Plugin || cache.prefetcher.as_ref().is_some_and(is_plugin)
}

fn impossible(problem: String, help: &str) -> BuildError {
    BuildError::Impossible { what: problem, help: help.into() }
}

impl MemorySystem {
    /// Creates the memory system of host number `host` of `machine`. `seed` determines random replacement and the order
    /// of page frames.
    ///
    /// # Errors
    /// If there is no such host, if it has no memory, or if the structure of its caches is not supported.
    pub fn new(machine: &Machine, host: usize, detail: Detail, seed: u64) -> Result<Self, BuildError> {
        let instance = host_of(machine, host)?;
        let plan = Plan::new(machine, instance, detail, seed)?;
        let stacks: Vec<_> = instance.cores.iter().map(|c| plan.stack(c)).collect::<Result<_, _>>()?;
        let mut domains = plan.domains(&stacks)?;
        let order = FrameOrder::Shuffled { seed };
        let mut path = Path {
            timing: plan.timing,
            line_bits: plan.line_bits,
            interconnect: Interconnect::new(machine, host)?,
            controllers: Controllers::new(machine, host)?,
            spaces: AddressSpaces::new(machine, host, plan.page_bytes, order)?,
            fixed_latencies: Vec::new(),
            memory_ps: Vec::new(),
            hop_ps: Vec::new(),
            latest_end_ps: 0,
        };
        let cores =
            (0..stacks.len()).map(|c| plan.core(c, &stacks, &domains)).collect::<Result<Vec<_>, _>>()?;
        path.fixed_latencies =
            (0..stacks.len()).map(|core| plan.fixed_latencies(core, &stacks[core], &mut path)).collect();
        plan.distances(&stacks, &mut path, &domains)?;
        for domain in &mut domains {
            domain.lookup_ps = domain.cores.iter().map(|core| cores[*core].probe_ps).max().unwrap_or(0);
        }
        let home = (domains.len() > 1).then(LineTable::default);
        let line_bits = plan.line_bits;
        let contention = Contention::new(cores.len());
        let has_plugins = (0..instance.caches.len()).any(|cache| has_plugin(plan.cache(cache)));
        Ok(Self {
            line_bits,
            cores,
            domains,
            home,
            path,
            messages: Messages::default(),
            contention,
            lead_ps: 0,
            stores: Vec::new(),
            has_plugins,
        })
    }
}

impl<'a> Plan<'a> {
    fn new(
        machine: &'a Machine,
        host: &'a HostInstance,
        detail: Detail,
        seed: u64,
    ) -> Result<Self, BuildError> {
        let first = host.cores.first().and_then(|c| machine.cores.get(&c.core));
        let core = first.ok_or_else(|| {
            impossible(format!("host `{}` has no cores", host.name), "give it a chip with cores")
        })?;
        let system = machine.hosts[host.of].os.as_ref().and_then(|os| os.page_size);
        let page_bytes = core.page_size.or(system).map_or(PAGE_BYTES, |size| size.bytes());
        let lines: Vec<u64> = host.caches.iter().map(|c| machine.caches[&c.cache].line.bytes()).collect();
        let line = lines.first().copied().unwrap_or(LINE_BYTES);
        if lines.iter().any(|other| *other != line) || !line.is_power_of_two() {
            let problem = format!("host `{}` has caches with lines of {lines:?} bytes", host.name);
            return Err(impossible(problem, "give all caches of a host the same line, a power of two"));
        }
        let timing = detail == Detail::Timing;
        Ok(Self { machine, host, seed, timing, line_bits: line.trailing_zeros(), page_bytes })
    }

    fn cache(&self, instance: usize) -> &'a Cache {
        &self.machine.caches[&self.host.caches[instance].cache]
    }

    fn clock(&self, core: usize) -> Frequency {
        self.machine.cores[&self.host.cores[core].core].clock
    }

    /// Assigns the caches that a core reaches to their roles: first level, one more private level, and one level that
    /// is shared or last.
    fn stack(&self, core: &CoreInstance) -> Result<Stack, BuildError> {
        let mut stack = Stack::default();
        let mut below = Vec::new();
        for instance in &core.caches {
            let cache = self.cache(*instance);
            match cache.kind {
                CacheKind::Instruction => stack.fetch = stack.fetch.or(Some(*instance)),
                CacheKind::Data => stack.data = stack.data.or(Some(*instance)),
                CacheKind::Unified if cache.level == 1 => stack.data = Some(*instance),
                CacheKind::Unified => below.push(*instance),
            }
        }
        below.sort_by_key(|instance| self.cache(*instance).level);
        let core_caches = &self.machine.cores[&core.core].caches;
        let private = |i: &usize| core_caches.iter().any(|name| **name == *self.host.caches[*i].cache);
        match below[..] {
            [] => {}
            [one] if private(&one) => stack.second = Some(one),
            [one] => stack.shared = Some(one),
            [one, last] if self.host.caches[one].cores.len() == 1 => {
                (stack.second, stack.shared) = (Some(one), Some(last));
            }
            _ => {
                let names: Vec<_> = below.iter().map(|i| self.host.caches[*i].cache.as_str()).collect();
                let problem = format!(
                    "core type `{}` has the caches {} below its first level",
                    core.core,
                    names.join(", ")
                );
                let help = "at most one private and one shared cache below the first level are modelled";
                return Err(impossible(problem, help));
            }
        }
        if stack.data.is_none() {
            let problem = format!("core type `{}` has no first-level cache for data", core.core);
            return Err(impossible(problem, "give it a cache of kind `data` or `unified` at level 1"));
        }
        Ok(stack)
    }

    fn tags(&self, instance: usize, bank_bit: Option<u32>, sharers: usize) -> Result<Tags, BuildError> {
        let cache = self.cache(instance);
        let ways = cache.ways();
        if ways == 0 || ways > MAX_WAYS || cache.sets() == 0 {
            let what = format!("cache `{}` has {ways} ways", self.host.caches[instance].cache);
            return Err(impossible(what, "1 to 64 ways are modelled: give `ways`"));
        }
        // A different random sequence for each cache.
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(instance as u64);
        let index = Index::new(cache, bank_bit);
        let shape =
            CacheShape { sets: index.sets() as u32, ways: ways as u32, line_bytes: 1 << self.line_bits };
        let policy = Policy::new(cache, shape)
            .map_err(|error| self.plugin_error("replacement policy", instance, &error))?;
        Ok(Tags::new(index, ways as usize, policy, sharers, seed))
    }

    fn prefetcher(&self, instance: usize) -> Result<Option<Prefetcher>, BuildError> {
        let page_lines = (self.page_bytes >> self.line_bits).max(1);
        let Some(parameters) = &self.cache(instance).prefetcher else { return Ok(None) };
        Prefetcher::new(parameters, 1 << self.line_bits, page_lines)
            .map(Some)
            .map_err(|error| self.plugin_error("prefetcher", instance, &error))
    }

    fn plugin_error(&self, role: &str, instance: usize, error: &PluginError) -> BuildError {
        let what = format!("the {role} of cache `{}` cannot run", self.host.caches[instance].cache);
        impossible(what, &error.to_string())
    }

    /// The latency of `cache` in cycles of `core`; 0 without timing.
    fn cycles(&self, cache: &Cache, core: usize, otherwise: u64) -> u64 {
        match cache.latency {
            _ if !self.timing => 0,
            None => otherwise,
            Some(latency) => latency.cycles(self.clock(core)),
        }
    }

    /// Maximum time difference between accesses, in cycles of `core`.
    fn out_of_step_cycles(&self, core: usize) -> u64 {
        self.clock(core).cycles_in_ps(MAX_SKEW.ps())
    }

    fn level1(&self, instance: usize, core: usize) -> Result<Level1, BuildError> {
        let cache = self.cache(instance);
        let tags = self.tags(instance, None, 0)?;
        Ok(Level1 {
            filter: Filter::new(tags.index().sets()),
            ready: vec![0; tags.len()],
            writable_at: vec![0; tags.len()],
            tags,
            registers: MissRegisters::new(cache.mshrs.map_or(LEVEL1_REGISTERS, |n| n.max(1) as usize)),
            prefetcher: self.prefetcher(instance)?,
            counters: Counters::default(),
            latency: self.cycles(cache, core, LEVEL1_CYCLES),
            slower: 0,
            write_through: cache.write == WritePolicy::Through,
        })
    }

    fn level2(&self, instance: usize, core: usize) -> Result<Level2, BuildError> {
        let cache = self.cache(instance);
        Ok(Level2 {
            tags: self.tags(instance, None, 0)?,
            in_flight: InFlight::new(self.out_of_step_cycles(core)),
            registers: MissRegisters::new(cache.mshrs.map_or(LEVEL2_REGISTERS, |n| n.max(1) as usize)),
            prefetcher: self.prefetcher(instance)?,
            counters: Counters::default(),
            latency: self.cycles(cache, core, LEVEL2_CYCLES),
            inclusion: cache.inclusion,
            write_through: cache.write == WritePolicy::Through,
            banks: cache.bandwidth.filter(|_| self.timing).map(|bandwidth| {
                let clock = self.clock(core);
                let rate = bandwidth.bytes_per_second(clock);
                PrivateBanks::new(cache.banks, 1 << self.line_bits, rate, clock.hz())
            }),
        })
    }

    fn core(&self, core: usize, stacks: &[Stack], domains: &[Domain]) -> Result<Private, BuildError> {
        let stack = stacks[core];
        let instance = &self.host.cores[core];
        let kind = &self.machine.cores[&instance.core];
        let hz = self.clock(core).hz();
        let clock = Clock::new(hz)
            .map_err(|error| impossible(format!("core {core}: {error}"), "correct its clock"))?;
        let part = domains.iter().position(|d| d.cores.contains(&core)).unwrap_or(0);
        let bit = domains[part].cores.iter().position(|c| *c == core).unwrap_or(0);
        // `stack` rejects cores without a data cache.
        let data = self.level1(stack.data.unwrap_or(0), core)?;
        let mut fetch = stack.fetch.map(|i| self.level1(i, core)).transpose()?;
        fetch.iter_mut().for_each(|fetch| fetch.slower = fetch.latency as i64 - data.latency as i64);
        Ok(Private {
            clock,
            fetch,
            data,
            second: stack.second.map(|i| self.level2(i, core)).transpose()?,
            promised: PromisedLines::new(),
            domain: part,
            bit,
            node: instance.node,
            probe_ps: self.private_ps(core, &stack),
            line_bits: self.line_bits,
            page_bits: self.page_bytes.trailing_zeros(),
            tlbs: Tlbs::new(kind, self.page_bytes),
            walkers: MissRegisters::new(kind.page_walkers.max(1) as usize),
            refills_by_exception: self.timing && kind.tlb_refill == TlbRefill::Exception,
            space: SpaceId::default(),
            last_page: [LastPage::NONE; 2],
            counted: [0; 2],
        })
    }

    /// Groups cores into domains by their shared cache, or by chip if they have none.
    fn domains(&self, stacks: &[Stack]) -> Result<Vec<Domain>, BuildError> {
        let key = |core: usize| match stacks[core].shared {
            Some(shared) => (Some(shared), 0),
            None => (None, self.host.cores[core].chip),
        };
        let mut groups: Vec<(Option<usize>, Vec<usize>)> = Vec::new();
        for (core, stack) in stacks.iter().enumerate() {
            match groups.iter_mut().find(|(_, cores)| key(cores[0]) == key(core)) {
                Some((_, cores)) => cores.push(core),
                None => groups.push((stack.shared, vec![core])),
            }
        }
        let too_many = groups.iter().map(|g| g.1.len()).chain([groups.len()]).find(|n| *n > MAX_HOLDERS);
        if let Some(n) = too_many {
            let problem = format!(
                "host `{}` has {n} cores that share a cache, or groups of such cores",
                self.host.name
            );
            return Err(impossible(problem, "at most 63 of either are modelled"));
        }
        groups.into_iter().map(|(shared, cores)| self.domain(shared, cores)).collect()
    }

    fn domain(&self, shared: Option<usize>, cores: Vec<usize>) -> Result<Domain, BuildError> {
        let first = &self.host.cores[cores[0]];
        let inclusive = shared.is_some_and(|i| self.cache(i).inclusion == Inclusion::Inclusive);
        let directory = if inclusive { Directory::InTags } else { Directory::Separate(LineTable::default()) };
        let coherence = |i: &usize| self.cache(*i).coherence;
        let snoops = first.caches.iter().any(|i| coherence(i) == Coherence::Snoop);
        let sharers = if inclusive { cores.len() } else { 0 };
        let built = shared.map(|i| self.shared(i, &cores, sharers)).transpose()?;
        Ok(Domain {
            node: first.node,
            chip: first.chip,
            lookup_ps: 0,
            shared: built,
            directory,
            snoops,
            cores,
        })
    }

    fn shared(&self, instance: usize, cores: &[usize], sharers: usize) -> Result<Shared, BuildError> {
        let cache = self.cache(instance);
        let chip = &self.machine.chips[&self.host.chips[self.host.cores[cores[0]].chip]];
        let bank_bit = chip.address_windows.as_ref().and_then(|w| w.bank_bit);
        let tags = self.tags(instance, bank_bit, sharers)?;
        let clock = self.clock(cores[0]);
        let otherwise = BANK_BYTES_PER_CYCLE.saturating_mul(clock.hz());
        let rate = cache.bandwidth.map_or(otherwise, |b| b.bytes_per_second(clock)).max(1);
        let lines_ps = (BUCKET_LINES << self.line_bits) as u128 * 1_000_000_000_000 / u128::from(rate);
        let bucket_ps = lines_ps.clamp(BUCKET.ps().into(), 1 << 30) as u64;
        let bank = |_| Bank {
            port: Resource::new(rate, Duration::from_ps(bucket_ps)),
            registers: cache.mshrs.map(|n| MissRegisters::new(n.max(1) as usize)),
        };
        Ok(Shared {
            banks: (0..tags.index().banks()).map(bank).collect(),
            tags,
            inclusion: cache.inclusion,
            instance,
            level: cache.level,
            in_flight: InFlight::new(MAX_SKEW.ps()),
            prefetcher: self.prefetcher(instance)?,
            partition: Partition::new(self.host.cores.len()),
            lock: cache.lock.as_ref().map(|l| LineLock::new(l.windows, l.min_unlocked_ways)),
            counters: Counters::default(),
        })
    }

    /// Load-to-use latency of the last private cache of `core`.
    fn private_ps(&self, core: usize, stack: &Stack) -> u64 {
        let (instance, otherwise) = match (stack.second, stack.data) {
            (Some(second), _) => (Some(second), LEVEL2_CYCLES),
            (None, data) => (data, LEVEL1_CYCLES),
        };
        let cycles = instance.map_or(otherwise, |i| self.cycles(self.cache(i), core, otherwise));
        Latency::Cycles(longma_topology::units::Cycles::new(cycles)).ps(self.clock(core))
    }

    fn shared_ps(&self, core: usize, shared: usize) -> u64 {
        let latency = self.cache(shared).latency;
        let otherwise = Latency::Cycles(longma_topology::units::Cycles::new(SHARED_CYCLES));
        latency.unwrap_or(otherwise).ps(self.clock(core))
    }

    /// Splits the stated latency of the shared cache: the part that is not modelled in the interconnect and the bank
    /// becomes a fixed time before and after them.
    fn fixed_latencies(&self, core: usize, stack: &Stack, path: &mut Path) -> FixedLatencies {
        let before_ps = self.private_ps(core, stack);
        let Some(shared) = stack.shared else { return FixedLatencies { before_ps, after_ps: 0 } };
        let rest = self.shared_ps(core, shared).saturating_sub(self.modelled_ps(core, shared, path));
        let before_ps = before_ps.min(rest);
        FixedLatencies { before_ps, after_ps: rest - before_ps }
    }

    /// Time that the interconnect and the bank take for a hit in `shared` on an idle machine.
    fn modelled_ps(&self, core: usize, shared: usize, path: &mut Path) -> u64 {
        let (core_endpoint, slice) = (Endpoint::Core(core), Endpoint::Cache(shared));
        let line = 1 << self.line_bits;
        let cache = self.cache(shared);
        let clock = self.clock(self.host.caches[shared].cores[0]);
        let otherwise = BANK_BYTES_PER_CYCLE.saturating_mul(clock.hz());
        let rate = cache.bandwidth.map_or(otherwise, |b| b.bytes_per_second(clock)).max(1);
        let bank = Resource::new(rate, Duration::from_ps(1)).service(line).ps();
        let interconnect = &mut path.interconnect;
        interconnect.idle_ps(core_endpoint, slice, REQUEST_BYTES)
            + interconnect.idle_ps(slice, core_endpoint, line)
            + bank
    }

    /// Computes the fixed part of every read from memory, so that an idle machine shows the stated latencies. If no
    /// distance is stated, a remote read takes longer than a local one by the latency of the interconnect.
    fn distances(&self, stacks: &[Stack], path: &mut Path, domains: &[Domain]) -> Result<(), BuildError> {
        let host = &self.machine.hosts[self.host.of];
        let stated = host.distances.as_ref().and_then(|d| d.latency.as_ref());
        let mut rows = Vec::new();
        for node in 0..self.host.nodes.len() {
            let row = (0..path.controllers.len()).map(|controller| {
                let to = path.controllers.node_of(controller);
                let stated = stated.and_then(|m| m.rows.get(node)?.get(to)).map(|time| time.ps());
                // A memory's own latency is stated for reads from its own node.
                let from = if stated.is_some() { node } else { to };
                let Some(latency) = self.read_latency(from, controller, stacks, path, domains) else { return Ok(0) };
                let stated = stated.or(path.controllers.stated_ps(controller));
                latency.fixed_ps(stated).map_err(|(own, total)| {
                    let (own, total) = (own as f64 / 1000.0, total as f64 / 1000.0);
                    let host = &self.host.name;
                    let problem = format!(
                        "host `{host}`: a read of node {to}'s memory by node {node} takes {own:.1} ns in caches and in the memory itself (CL, tRCD, \
                         tRP, refreshes), and its latency is {total:.1} ns in all"
                    );
                    impossible(problem, "correct the latency of the memory or of the host's distances, or the latencies that are part of it")
                })
            });
            rows.push(row.collect::<Result<Vec<_>, _>>()?);
        }
        path.memory_ps = rows;
        path.hop_ps = hops(&path.memory_ps, &path.controllers, self.host.nodes.len());
        Ok(())
    }

    /// Time that a read of a controller's memory by the first core of `node` takes on an idle machine; `None` if the
    /// node has no core.
    fn read_latency(
        &self,
        node: usize,
        controller: usize,
        stacks: &[Stack],
        path: &mut Path,
        domains: &[Domain],
    ) -> Option<ReadLatency> {
        let core = self.host.nodes[node].cores.first().copied()?;
        let domain_endpoint = domains.iter().find(|d| d.cores.contains(&core)).map(|d| d.endpoint_for(core));
        let (requester, memory) =
            (domain_endpoint.unwrap_or(Endpoint::Core(core)), Endpoint::Controller(controller));
        let line = 1 << self.line_bits;
        let FixedLatencies { before_ps, after_ps } = path.fixed_latencies[core];
        let shared_ps = stacks[core].shared.map_or(0, |shared| self.modelled_ps(core, shared, path));
        let interconnect = &mut path.interconnect;
        Some(ReadLatency {
            caches_ps: before_ps + shared_ps + after_ps,
            interconnect_ps: interconnect.idle_ps(requester, memory, REQUEST_BYTES)
                + interconnect.idle_ps(memory, requester, line),
            memory_ps: path.controllers.mean_random_ps(controller),
            burst_ps: path.controllers.burst_ps(controller, line),
        })
    }
}

/// Components of the latency of a memory read, picoseconds.
struct ReadLatency {
    caches_ps: u64,
    interconnect_ps: u64,
    /// In the controller, including the burst.
    memory_ps: u64,
    /// Burst time of a line on the memory bus. It may overlap with the transfer back, and transfers over the
    /// interconnect may overlap with each other.
    burst_ps: u64,
}

impl ReadLatency {
    /// Returns the part of the stated latency that is not modelled, picoseconds. Without a stated latency, uses the
    /// default, or 0 if the model takes longer than that. Fails if the components that cannot overlap exceed the stated
    /// latency; the error holds their sum and the stated latency.
    fn fixed_ps(&self, stated_ps: Option<u64>) -> Result<i64, (u64, u64)> {
        let path_ps = self.caches_ps + self.interconnect_ps;
        let min_ps = self.caches_ps + self.memory_ps.saturating_sub(self.burst_ps);
        match stated_ps {
            Some(total) if total < min_ps => Err((min_ps, total)),
            Some(total) => Ok(overhead::fixed_ps(total, path_ps, self.memory_ps)),
            None => Ok(overhead::fixed_ps(overhead::DEFAULT_LOAD_TO_USE_PS, path_ps, self.memory_ps).max(0)),
        }
    }
}

/// The fixed part of one crossing between nodes: half of the additional latency of a remote read that the interconnect
/// does not model.
fn hops(memory_ps: &[Vec<i64>], controllers: &Controllers, nodes: usize) -> Vec<Vec<u64>> {
    let of = |node: usize| (0..controllers.len()).find(|c| controllers.node_of(*c) == node);
    let hop = |from: usize, to: usize| {
        let Some(controller) = of(to) else { return 0 };
        (memory_ps[from][controller] - memory_ps[to][controller]).max(0) as u64 / 2
    };
    (0..nodes).map(|from| (0..nodes).map(|to| hop(from, to)).collect()).collect()
}
