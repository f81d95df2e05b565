//! Rejects sizes that cannot be modelled, for single parts and for all parts of a host together. Every limit is at
//! least a hundred times the size in real machines, except where a register or a bit mask determines it.

use crate::layout::{HostInstance, Layout};
use crate::parts::{Cache, Core, MachineFile};
use crate::read::{Problems, SourcePositions};

/// Entries of a queue, a table or a TLB.
const MAX_ENTRIES: u32 = 1 << 20;
/// Parts that work in parallel (ports, banks, channels, MSHRs), and operations per cycle. The model scans all MSHRs on
/// each miss.
const MAX_PARALLEL: u32 = 4096;
/// Lines and entries of all caches and cores of a host together. Each takes at least 8 bytes in the model.
const MAX_TOTAL: u64 = 1 << 27;
/// Queue pairs for which the modelled MAC has registers.
const MAX_QUEUES: u32 = 16;
/// Windows for which the cache lock has registers.
const MAX_WINDOWS: u32 = 16;
/// Cores that share a cache, and groups of such cores: each is a bit of a word.
const MAX_SHARERS: usize = 63;

fn at_most(marks: &SourcePositions, limit: u32, counts: &[(&str, Option<u32>)], problems: &mut Problems) {
    for (key, value) in counts.iter().filter_map(|(key, value)| Some((*key, (*value)?))) {
        if marks.sound(&[key]) && value > limit {
            let message = format!("`{key}` is {value}, which is too large to be modelled");
            problems.error(marks.key(key), message, "here", format!("give at most {limit}"));
        }
    }
}

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    file.cores.values().for_each(|core| check_core(core, problems));
    file.caches.values().for_each(|cache| check_cache(cache, problems));
    for ethernet in file.devices.values().filter_map(|device| device.ethernet.as_ref()) {
        at_most(&ethernet.marks, MAX_QUEUES, &[("queues", Some(ethernet.queues))], problems);
    }
    for memory in file.memories.values() {
        let m = &memory.marks;
        let parallel = [
            ("channels", Some(memory.channels)),
            ("ranks", Some(memory.ranks)),
            ("banks", memory.banks),
            ("bank_groups", Some(memory.bank_groups)),
        ];
        at_most(m, MAX_PARALLEL, &parallel, problems);
        at_most(m, MAX_ENTRIES, &[("queue_entries", memory.queue_entries)], problems);
    }
}

fn check_core(core: &Core, problems: &mut Problems) {
    let m = &core.marks;
    at_most(m, MAX_PARALLEL, &parallel_of(core), problems);
    at_most(m, MAX_ENTRIES, &entries_of(core), problems);
    if let Some(branch) = &core.branch {
        let entries = [
            ("btb_entries", branch.btb_entries),
            ("ras_entries", branch.ras_entries),
            ("table_entries", branch.table_entries),
            ("history_bits", branch.history_bits),
            ("indirect_entries", branch.indirect_entries),
        ];
        at_most(&branch.marks, MAX_ENTRIES, &entries, problems);
    }
    if let Some(order) = &core.memory_order {
        at_most(&order.marks, MAX_ENTRIES, &[("table_entries", order.table_entries)], problems);
        if order.marks.sound(&["table_entries"]) && order.table_entries == Some(0) {
            let message = "`table_entries` is 0".to_string();
            problems.error(
                order.marks.key("table_entries"),
                message,
                "here",
                "give at least 1, or omit the key".into(),
            );
        }
    }
    core.units.iter().for_each(|u| at_most(&u.marks, MAX_PARALLEL, &[("count", Some(u.count))], problems));
    for tlb in &core.tlbs {
        let entries = [("entries", Some(tlb.entries)), ("pages_per_entry", Some(tlb.pages_per_entry))];
        at_most(&tlb.marks, MAX_ENTRIES, &entries, problems);
    }
    if let Some(store) = &core.store {
        at_most(&store.marks, MAX_ENTRIES, &[("registers", Some(store.registers))], problems);
    }
    if let Some(idma) = &core.idma {
        let parallel =
            [("read_channels", Some(idma.read_channels)), ("write_channels", Some(idma.write_channels))];
        at_most(&idma.marks, MAX_PARALLEL, &parallel, problems);
        let entries = [("tags", Some(idma.tags)), ("outstanding", Some(idma.outstanding))];
        at_most(&idma.marks, MAX_ENTRIES, &entries, problems);
    }
    if let Some(cam) = &core.cam {
        at_most(&cam.marks, MAX_ENTRIES, &[("entries", Some(cam.entries))], problems);
    }
}

fn parallel_of(core: &Core) -> [(&'static str, Option<u32>); 6] {
    [
        ("threads", Some(core.threads)),
        ("fetch_width", core.fetch_width),
        ("decode_width", core.decode_width),
        ("issue_width", core.issue_width),
        ("retire_width", core.retire_width),
        ("page_walkers", Some(core.page_walkers)),
    ]
}

fn entries_of(core: &Core) -> [(&'static str, Option<u32>); 8] {
    [
        ("rob_entries", core.rob_entries),
        ("int_queue_entries", core.int_queue_entries),
        ("fp_queue_entries", core.fp_queue_entries),
        ("memory_queue_entries", core.memory_queue_entries),
        ("load_queue_entries", core.load_queue_entries),
        ("store_queue_entries", core.store_queue_entries),
        ("int_registers", core.int_registers),
        ("fp_registers", core.fp_registers),
    ]
}

fn check_cache(cache: &Cache, problems: &mut Problems) {
    let m = &cache.marks;
    at_most(m, MAX_PARALLEL, &[("banks", Some(cache.banks)), ("mshrs", cache.mshrs)], problems);
    if let Some(prefetcher) = &cache.prefetcher {
        let entries = [("degree", Some(prefetcher.degree)), ("distance", Some(prefetcher.distance))];
        // The model scans all streams on each miss.
        at_most(&prefetcher.marks, MAX_PARALLEL, &[("streams", Some(prefetcher.streams))], problems);
        at_most(&prefetcher.marks, MAX_ENTRIES, &entries, problems);
    }
    if let Some(lock) = &cache.lock {
        at_most(&lock.marks, MAX_WINDOWS, &[("windows", Some(lock.windows))], problems);
    }
}

/// Checks the totals of each host.
pub(super) fn check_totals(file: &MachineFile, layout: &Layout, problems: &mut Problems) {
    // The copies of a host are identical, so checking one is enough.
    for (of, part) in file.hosts.iter().enumerate() {
        let Some(host) = layout.hosts.iter().find(|host| host.of == of) else { continue };
        let total = total_entries(file, host);
        if total > MAX_TOTAL {
            let message = format!(
                "the caches and cores of host `{}` have {total} lines and entries in total",
                host.name
            );
            let help = format!("at most {MAX_TOTAL} can be modelled; check the sizes of its caches");
            problems.error(part.marks.at(), message, "defined here", help);
        }
        let sharers = host.caches.iter().map(|cache| cache.cores.len()).max().unwrap_or(0);
        if sharers > MAX_SHARERS {
            let message = format!("{sharers} cores of host `{}` share a cache", host.name);
            let help = format!(
                "programs can run on it only at level functional: at most {MAX_SHARERS} cores per cache can be modelled"
            );
            problems.warn(part.marks.at(), message, "defined here", help);
        }
    }
}

/// Lines of every cache and entries of every core of a host.
fn total_entries(file: &MachineFile, host: &HostInstance) -> u64 {
    let lines = |cache: &crate::layout::CacheInstance| {
        let part = file.caches.get(&*cache.cache);
        part.map_or(0, |part| {
            let registers = u64::from(part.mshrs.unwrap_or(0)).saturating_mul(part.banks.into());
            part.lines().saturating_add(registers)
        })
    };
    let entries = |core: &crate::layout::CoreInstance| {
        let part = file.cores.get(&*core.core);
        part.map_or(0, |part| {
            let core_entries =
                entries_of(part).iter().filter_map(|(_, value)| *value).map(u64::from).sum::<u64>();
            let tlbs = part.tlbs.iter().map(|tlb| u64::from(tlb.entries)).sum::<u64>();
            let tables = part.branch.as_ref().map_or(0, |branch| {
                let sizes =
                    [branch.btb_entries, branch.ras_entries, branch.table_entries, branch.indirect_entries];
                sizes.into_iter().flatten().map(u64::from).sum()
            });
            let order = part.memory_order.as_ref().and_then(|order| order.table_entries);
            core_entries + tlbs + tables + u64::from(order.unwrap_or(0))
        })
    };
    let caches = host.caches.iter().map(lines).fold(0, u64::saturating_add);
    host.cores.iter().map(entries).fold(caches, u64::saturating_add)
}
