//! Rejects impossible sizes: caches whose size is not ways x sets x lines, invalid TLBs, locks and zones, and counts of
//! 0.
//!
//! Source: cache geometry after Hennessy and Patterson; zones after the NVMe Zoned Namespace Command Set 1.1.

use crate::parts::{Cache, CacheIndex, Core, Ethernet, MachineFile, Tlb, TlbKind, TlbRefill, Zoned};
use crate::read::{Problems, SourcePositions};
use longma_cpu_set::{CpuSet, MAX_CPU};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    file.caches.iter().for_each(|(name, cache)| check_cache(file, name, cache, problems));
    for core in file.cores.values() {
        let m = &core.marks;
        positive(m, "threads", core.threads, problems);
        let widths = [
            ("fetch_width", core.fetch_width),
            ("decode_width", core.decode_width),
            ("issue_width", core.issue_width),
            ("retire_width", core.retire_width),
            ("rob_entries", core.rob_entries),
            ("page_walkers", Some(core.page_walkers)),
            ("int_registers", core.int_registers),
            ("fp_registers", core.fp_registers),
        ];
        widths.into_iter().for_each(|(key, value)| positive(m, key, value.unwrap_or(1), problems));
        core.units.iter().for_each(|u| positive(&u.marks, "count", u.count, problems));
        core.tlbs.iter().for_each(|t| check_tlb(t, problems));
        check_pages(core, problems);
        check_refill(core, problems);
        if let Some(branch) = &core.branch {
            positive(&branch.marks, "indirect_entries", branch.indirect_entries.unwrap_or(1), problems);
        }
        if let Some(idma) = &core.idma {
            positive(&idma.marks, "read_channels", idma.read_channels, problems);
            positive(&idma.marks, "write_channels", idma.write_channels, problems);
        }
        if let (Some(idma), None) = (&core.idma, &core.store) {
            let help = "add a `store` table, or remove `idma`".into();
            problems.warn(idma.marks.at(), "the core has IDMA but no in-core store".into(), "here", help);
        }
        for (key, value) in core.operations.iter() {
            if !crate::parts::Operation::WORDS.iter().any(|w| w.0 == key) {
                let words = crate::parts::Operation::WORDS.iter().map(|w| w.0);
                let help = crate::read::suggestion(key, words, "class");
                let message = format!("`{key}` is not a class of operations");
                problems.error(value.marks.at(), message, "unknown class", help);
            }
        }
    }
    for memory in file.memories.values() {
        positive(&memory.marks, "channels", memory.channels, problems);
        positive(&memory.marks, "ranks", memory.ranks, problems);
        positive(&memory.marks, "banks", memory.banks.unwrap_or(1), problems);
        positive(&memory.marks, "bank_groups", memory.bank_groups, problems);
        if let Some(size) = memory.interleave {
            power_of_two(&memory.marks, "interleave", size.bytes(), "channel interleave", problems);
        }
        if let Some(row) = memory.row_buffer {
            power_of_two(&memory.marks, "row_buffer", row.bytes(), "row buffer", problems);
        }
    }
    for node in file.chips.values().flat_map(|c| &c.nodes) {
        positive(&node.marks, "count", node.count, problems);
        node.clusters.iter().for_each(|c| {
            positive(&c.marks, "count", c.count, problems);
            positive(&c.marks, "cores", c.cores, problems);
            check_cpus(file, c, problems);
        });
        node.memory.iter().for_each(|m| positive(&m.marks, "count", m.count, problems));
    }
    file.hosts.iter().for_each(|h| positive(&h.marks, "count", h.count, problems));
    file.devices.values().filter_map(|d| d.ethernet.as_ref()).for_each(|e| check_ethernet(e, problems));
    file.devices.values().filter_map(|d| d.zoned.as_ref()).for_each(|z| check_zones(z, problems));
}

fn positive(marks: &SourcePositions, key: &str, value: u32, problems: &mut Problems) {
    if marks.sound(&[key]) && value == 0 {
        problems.error(marks.key(key), format!("`{key}` is 0"), "here", "give a number of at least 1".into());
    }
}

fn power_of_two(
    marks: &SourcePositions,
    key: &str,
    value: u64,
    quantity: &str,
    problems: &mut Problems,
) -> bool {
    if !marks.sound(&[key]) {
        return false;
    }
    if !value.is_power_of_two() {
        let message = format!("a {quantity} of {value} bytes is not a power of two");
        let next_power = value.max(1).checked_next_power_of_two().unwrap_or(1 << 63);
        problems.error(marks.key(key), message, "here", format!("the next power of two is {next_power}"));
        return false;
    }
    true
}

fn check_cache(file: &MachineFile, name: &str, cache: &Cache, problems: &mut Problems) {
    let m = &cache.marks;
    positive(m, "level", cache.level, problems);
    positive(m, "banks", cache.banks, problems);
    positive(m, "mshrs", cache.mshrs.unwrap_or(1), problems);
    cache
        .prefetcher
        .iter()
        .for_each(|prefetcher| positive(&prefetcher.marks, "degree", prefetcher.degree, problems));
    positive(m, "ways", cache.ways.unwrap_or(1), problems);
    if power_of_two(m, "line", cache.line.bytes(), "line", problems) && m.sound(&["size", "ways", "banks"]) {
        check_geometry(name, cache, problems);
    }
    if let Some(next) = file.caches.get(&*cache.next) {
        if m.sound(&["level", "next"]) && next.marks.sound(&["level"]) && next.level <= cache.level {
            let message = format!(
                "cache `{name}` of level {} misses into `{}` of level {}",
                cache.level, cache.next, next.level
            );
            problems.error(
                cache.next.span(),
                message,
                "not farther from the core",
                "levels must increase towards memory".into(),
            );
        }
        if m.sound(&["line"]) && next.marks.sound(&["line"]) && next.line < cache.line {
            let message = format!(
                "a line of `{name}` ({}) does not fit a line of `{}` ({})",
                cache.line, cache.next, next.line
            );
            problems.error(
                m.key("line"),
                message,
                "longer than that of the next level",
                "lines must not become shorter towards memory".into(),
            );
        }
    }
    let ways = cache.ways();
    if let Some(lock) = cache
        .lock
        .as_ref()
        .filter(|l| u64::from(l.min_unlocked_ways) > ways && l.marks.sound(&["min_unlocked_ways"]))
    {
        let message = format!("{} of {ways} ways must stay unlocked", lock.min_unlocked_ways);
        problems.error(
            lock.marks.key("min_unlocked_ways"),
            message,
            "more than the cache has",
            format!("give at most {ways}"),
        );
    }
    if let Some(dca) = cache.dca.as_ref().filter(|d| u64::from(d.ways) > ways && d.marks.sound(&["ways"])) {
        let message = format!("device writes may allocate {} of {ways} ways", dca.ways);
        problems.error(
            dca.marks.key("ways"),
            message,
            "more than the cache has",
            format!("give at most {ways}"),
        );
    }
}

/// size = banks x sets x ways x line, all whole, sets a power of two unless the index is hashed.
fn check_geometry(name: &str, cache: &Cache, problems: &mut Problems) {
    let (size, line, banks) = (cache.size.bytes(), cache.line.bytes(), u64::from(cache.banks));
    let unit = line.checked_mul(cache.ways()).and_then(|u| u.checked_mul(banks)).unwrap_or(0);
    if unit == 0 || size == 0 {
        if size == 0 {
            problems.error(
                cache.marks.key("size"),
                format!("the size of cache `{name}` is 0"),
                "here",
                String::new(),
            );
        }
        return;
    }
    let text = format!(
        "{} with {} ways, lines of {} and {banks} bank{}",
        cache.size,
        cache.ways(),
        cache.line,
        if banks == 1 { "" } else { "s" }
    );
    if !size.is_multiple_of(unit) {
        let message = format!("cache `{name}` cannot have {text}: no whole number of sets");
        let below = (size / unit).max(1) * unit;
        let help = format!(
            "ways x line x banks = {}; the size must be a multiple of it, such as {}",
            crate::units::Size::new(unit),
            crate::units::Size::new(below)
        );
        problems.error(cache.marks.key("size"), message, "impossible size", help);
    } else if cache.index == CacheIndex::Bits && !(size / unit).is_power_of_two() {
        let message = format!("cache `{name}` of {text} has {} sets a bank, not a power of two", size / unit);
        let help =
            "correct `size`, `ways` or `banks`, or set `index = \"hashed\"` if the vendor documents it"
                .into();
        problems.error(cache.marks.key("size"), message, "impossible size", help);
    }
}

fn check_tlb(tlb: &Tlb, problems: &mut Problems) {
    let m = &tlb.marks;
    positive(m, "entries", tlb.entries, problems);
    positive(m, "pages_per_entry", tlb.pages_per_entry, problems);
    positive(m, "ways", tlb.ways.unwrap_or(1), problems);
    let possible = |ways: u32| tlb.entries.is_multiple_of(ways) && (tlb.entries / ways).is_power_of_two();
    let ways = tlb.ways.filter(|w| *w > 0 && m.sound(&["entries", "ways"]));
    if let Some(ways) = ways.filter(|w| !possible(*w)) {
        let message = format!("a TLB of {} entries cannot have {ways} ways", tlb.entries);
        let help = "entries / ways must be a power of two".into();
        problems.error(m.key("entries"), message, "impossible size", help);
    }
    if tlb.page_sizes.iter().any(|s| !s.bytes().is_power_of_two()) {
        let help = "page sizes are powers of two, such as \"16 KiB\"".into();
        problems.error(m.key("page_sizes"), "a page size is not a power of two".into(), "here", help);
    }
}

/// The smallest MTU that IPv4 allows (RFC 791, section 3.2), bytes.
const MIN_MTU_BYTES: u64 = 68;
/// Ethernet header and frame check sequence, bytes.
const FRAME_OVERHEAD_BYTES: u64 = 18;

/// Checks the queues, the MTU, and that the receive FIFO can hold the largest frame.
fn check_ethernet(ethernet: &Ethernet, problems: &mut Problems) {
    let (marks, mtu) = (&ethernet.marks, ethernet.mtu_bytes());
    positive(marks, "queues", ethernet.queues, problems);
    if marks.sound(&["mtu"]) && mtu < MIN_MTU_BYTES {
        let message = format!("an MTU of {mtu} bytes is less than IPv4 allows");
        problems.error(marks.key("mtu"), message, "here", format!("give at least {MIN_MTU_BYTES} B"));
    }
    let fifo = ethernet.rx_fifo.filter(|fifo| fifo.bytes() < mtu + FRAME_OVERHEAD_BYTES);
    if let Some(fifo) = fifo.filter(|_| marks.sound(&["mtu", "rx_fifo"])) {
        let message =
            format!("a frame of {} bytes does not fit a receive FIFO of {fifo}", mtu + FRAME_OVERHEAD_BYTES);
        problems.error(
            marks.key("rx_fifo"),
            message,
            "here",
            "give a larger size, or a smaller `mtu`".into(),
        );
    }
}

/// The cost of the refill handler has no default: where an exception refills the TLBs, the last TLB of each kind must
/// state it.
fn check_refill(core: &Core, problems: &mut Problems) {
    let last =
        |tlb: &&Tlb| !core.tlbs.iter().any(|other| other.level > tlb.level && serves(other.kind, tlb.kind));
    if core.tlb_refill != TlbRefill::Exception {
        return;
    }
    for tlb in core.tlbs.iter().filter(last).filter(|tlb| tlb.miss.is_none()) {
        let help =
            "add `miss`: the time that a miss adds to a single load, as a microbenchmark measures it".into();
        problems.error(tlb.marks.at(), "the cost of the refill exception is missing".into(), "here", help);
    }
}

/// If any TLB states the cost of a miss, a TLB that holds pages of the core's size must state it too. Otherwise misses
/// would be almost free.
fn check_pages(core: &Core, problems: &mut Problems) {
    let Some(page) = core.page_size.filter(|_| core.marks.sound(&["page_size"])) else { return };
    if !power_of_two(&core.marks, "page_size", page.bytes(), "page", problems) {
        return;
    }
    let holds = |tlb: &Tlb| tlb.page_sizes.is_empty() || tlb.page_sizes.contains(&page);
    let says = |tlb: &&Tlb| tlb.miss.is_some();
    let first = core.tlbs.iter().find(says);
    if let Some(tlb) = first.filter(|_| !core.tlbs.iter().filter(says).any(holds)) {
        let message = format!("no TLB with a `miss` cost holds pages of {page}, the core's page size");
        let help = format!("add \"{page}\" to its `page_sizes`, or correct the core's `page_size`");
        problems.warn(tlb.marks.at(), message, "this TLB has `miss`", help);
    }
}

/// Whether a TLB of kind `further` also translates the accesses of a TLB of kind `kind`.
fn serves(further: TlbKind, kind: TlbKind) -> bool {
    further == TlbKind::Joint || further == kind || kind == TlbKind::Joint
}

/// `cpus` must list each hardware thread of the cluster once.
fn check_cpus(file: &MachineFile, cluster: &crate::parts::Cluster, problems: &mut Problems) {
    let Some(list) = &cluster.cpus else { return };
    let span = || cluster.marks.key("cpus");
    let Ok(cpus) = list.parse::<CpuSet>() else {
        let help = format!("write numbers below {MAX_CPU} and ranges, such as \"0-3,8\"");
        problems.error(span(), format!("\"{list}\" is not a list of CPUs"), "here", help);
        return;
    };
    let threads = file.cores.get(&*cluster.core).map_or(1, |c| u64::from(c.threads));
    let max = u64::from(cluster.cores).saturating_mul(threads);
    if cluster.count == 1 && cluster.marks.sound(&["cores", "core"]) && cpus.len() as u64 > max {
        let message = format!("{} CPUs are listed for {max} hardware threads", cpus.len());
        problems.error(span(), message, "too many", "correct `cpus`, `cores` or the core's `threads`".into());
    }
}

fn check_zones(zoned: &Zoned, problems: &mut Problems) {
    let m = &zoned.marks;
    power_of_two(m, "block", zoned.block.bytes(), "block", problems);
    positive(m, "zones", zoned.zones, problems);
    if m.sound(&["zone_size", "zone_capacity"]) && zoned.zone_capacity > zoned.zone_size {
        let message = format!("a zone of {} cannot hold {}", zoned.zone_size, zoned.zone_capacity);
        problems.error(
            m.key("zone_capacity"),
            message,
            "more than the zone's size",
            "the capacity must not exceed the size".into(),
        );
    }
    if m.sound(&["zone_size", "block"])
        && zoned.block.bytes() > 0
        && !zoned.zone_size.bytes().is_multiple_of(zoned.block.bytes())
    {
        let message = format!("a zone of {} is not a whole number of blocks", zoned.zone_size);
        problems.error(m.key("zone_size"), message, "here", format!("use a multiple of {}", zoned.block));
    }
    let latencies = [("read_latency", zoned.read_latency), ("write_latency", zoned.write_latency)];
    if let [(_, Some(_)), (key, None)] | [(key, None), (_, Some(_))] = latencies {
        let help = format!("add `{key}`, or remove both and describe the flash");
        problems.error(
            m.at(),
            format!("`{key}` is missing, although the other latency is given"),
            "here",
            help,
        );
    }
    let flash = [
        ("channels", zoned.channels.is_some()),
        ("luns_per_channel", zoned.luns_per_channel.is_some()),
        ("page", zoned.page.is_some()),
        ("read", zoned.read.is_some()),
        ("program", zoned.program.is_some()),
        ("erase", zoned.erase.is_some()),
        ("channel_rate", zoned.channel_rate.is_some()),
    ];
    if let Some((key, _)) = flash.iter().find(|(_, stated)| *stated && zoned.read_latency.is_some()) {
        let help = "describe the flash or give fixed latencies, not both".into();
        problems.error(
            m.key(key),
            format!("`{key}` has no effect on a device with `read_latency`"),
            "no effect",
            help,
        );
    }
    if zoned.reset_latency.is_some() && zoned.read_latency.is_none() {
        let help = "add `read_latency` and `write_latency`, or give the `erase` time of the flash".into();
        problems.error(
            m.key("reset_latency"),
            "`reset_latency` has no effect on a device with flash timing".into(),
            "no effect",
            help,
        );
    }
    if let (Some(open), Some(active)) = (zoned.max_open, zoned.max_active)
        && open > active
    {
        let help = "open zones are active: `max_open` must not exceed `max_active`".into();
        problems.error(
            m.key("max_open"),
            format!("{open} zones may be open, but only {active} may be active"),
            "here",
            help,
        );
    }
}
