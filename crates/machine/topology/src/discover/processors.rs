//! Adds published data of known processors to a discovered host: cores, cache timing and memory. Sizes, counts and
//! sharing stay as the system reports them. Each file under `processors/` cites its sources.

use super::sysfs::Identity;
use crate::parts::*;
use crate::read::{Cited, Map, Problems, Value, part};
use toml::de::DeTable;

part! {
    /// A family of processors with one type of core.
    pub struct Processor = "processor" {
        /// The core's name.
        title: String,
        /// The vendor, as CPUID spells it.
        vendor: String,
        /// The CPUID family, extended family added.
        family: u32,
        /// The CPUID models, extended model included.
        models: Vec<u32>,
        /// Where the numbers come from.
        sources: Map<Source>,
        /// The core; the host determines its clock.
        core: Core,
        /// Its caches as `l1i`, `l1d`, `l2`, `l3`; the host determines their sizes.
        caches: Map<Cache>,
        /// Its memory controllers.
        memory: Option<Memory>,
    }
}

/// The known processors. The last entry is used for a processor that no other entry matches.
const TEXTS: [(&str, &str); 7] = [
    ("golden-cove", include_str!("processors/golden-cove.toml")),
    ("sunny-cove", include_str!("processors/sunny-cove.toml")),
    ("skylake-server", include_str!("processors/skylake-server.toml")),
    ("zen2", include_str!("processors/zen2.toml")),
    ("zen3", include_str!("processors/zen3.toml")),
    ("zen4", include_str!("processors/zen4.toml")),
    ("generic", include_str!("processors/generic.toml")),
];

fn read(text: &str) -> (Processor, Problems) {
    let mut problems = Problems::default();
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        problems.error(error.span().unwrap_or(0..0), error.message().into(), "here", String::new());
    }
    (Processor::read_table(table.get_ref(), 0..0, &mut problems), problems)
}

/// The processor with this identity, or the generic one.
fn of(identity: Option<&Identity>) -> Processor {
    let all = TEXTS.iter().map(|(_, text)| read(text).0);
    let names = |p: &Processor, i: &Identity| {
        p.vendor == i.vendor && p.family == i.family && p.models.contains(&i.model)
    };
    let mut known = None;
    for processor in all {
        let found = identity.is_some_and(|i| names(&processor, i));
        known = Some(processor);
        if found {
            break;
        }
    }
    // TEXTS is not empty.
    known.unwrap_or_else(Processor::placeholder)
}

/// Copies the listed keys from `from` to `to`, each with its source. Keys that `to` already has stay unchanged.
macro_rules! complete {
    ($to:expr, $from:expr, $($key:ident),* $(,)?) => {
        $(if $to.$key.is_absent() && !$from.$key.is_absent() {
            $to.$key = $from.$key.clone();
            cite(&mut $to.source_of, stringify!($key), &$from.source_of, &$from.source);
        })*
    };
}

/// Copies the listed keys from `from` to `to`, each with its source, even if `to` has them: discovery can only guess
/// these keys.
macro_rules! replace {
    ($to:expr, $from:expr, $($key:ident),* $(,)?) => {
        $(
            $to.$key = $from.$key.clone();
            cite(&mut $to.source_of, stringify!($key), &$from.source_of, &$from.source);
        )*
    };
}

fn cite(to: &mut Map<Cited>, key: &str, from: &Map<Cited>, default: &Cited) {
    to.insert(key.into(), from.get(key).unwrap_or(default).clone());
}

/// Completes a discovered host with the published data of its processor; adds a note if the processor is unknown.
pub(super) fn complete(file: &mut MachineFile, identity: Option<&Identity>, notes: &mut Vec<String>) {
    let processor = of(identity);
    if processor.models.is_empty() {
        let processor_name = identity.map_or("the processor".into(), |i| {
            format!("{} family {} model {}", i.vendor, i.family, i.model)
        });
        notes.push(format!(
            "{processor_name} is not in the table of known processors: a generic core is assumed"
        ));
    }
    for (name, core) in &mut file.cores {
        // The table does not describe the efficiency cores of hybrid processors.
        let kind_of_core = if name.starts_with("efficiency") { &of(None) } else { &processor };
        complete_core(core, &kind_of_core.core);
        add_sources(&mut file.sources, kind_of_core);
    }
    for cache in file.caches.values_mut() {
        if let Some(known) = processor.caches.get(&cache.short_name().to_lowercase()) {
            complete!(cache, known, latency, bandwidth, mshrs, prefetcher);
            replace!(cache, known, replacement, inclusion, write);
        }
    }
    // The last cache that cores share keeps the directory, at any level.
    let shared: Vec<String> = last_caches(file);
    for name in shared {
        if let Some(cache) = file.caches.get_mut(&name) {
            cache.coherence = Coherence::Directory;
            let known = processor.caches.get("l3");
            let source = known.map_or_else(|| processor.core.source.clone(), |c| c.source.clone());
            cache.source_of.insert("coherence".into(), source);
        }
    }
    if let Some(known) = &processor.memory {
        for memory in file.memories.values_mut() {
            memory.technology = known.technology;
            memory.channels = known.channels;
            memory.ranks = known.ranks;
            cite(&mut memory.source_of, "technology", &known.source_of, &known.source);
            cite(&mut memory.source_of, "channels", &known.source_of, &known.source);
            complete!(
                memory,
                known,
                rate,
                width,
                banks,
                row_buffer,
                cl,
                trcd,
                trp,
                tras,
                trefi,
                trfc,
                queue_entries
            );
        }
    }
    add_sources(&mut file.sources, &processor);
    let cited = crate::check::cited(file);
    file.sources.retain(|key, _| cited.contains(key));
}

fn complete_core(core: &mut Core, published: &Core) {
    complete!(
        core,
        published,
        fetch_width,
        decode_width,
        issue_width,
        retire_width,
        rob_entries,
        int_queue_entries,
        fp_queue_entries,
        memory_queue_entries,
        load_queue_entries,
        store_queue_entries,
        int_registers,
        fp_registers,
        vector_width,
        page_size,
        branch,
        memory_order,
        units,
        operations,
        tlbs,
    );
    if core.title.is_none() {
        core.title.clone_from(&published.title);
    }
}

/// The caches of a cluster, node or chip whose misses go to memory.
fn last_caches(file: &MachineFile) -> Vec<String> {
    let nodes = file.chips.values().flat_map(|c| &c.nodes);
    let clusters = nodes.clone().flat_map(|n| &n.clusters).flat_map(|c| &c.caches);
    let shared =
        file.chips.values().flat_map(|c| &c.caches).chain(nodes.flat_map(|n| &n.caches)).chain(clusters);
    let last = |name: &String| file.caches.get(name).is_some_and(|c| &*c.next == "memory");
    shared.map(|n| n.to_string()).filter(last).collect()
}

fn add_sources(sources: &mut Map<Source>, processor: &Processor) {
    for (key, source) in &processor.sources {
        sources.insert(key.clone(), source.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(vendor: &str, family: u32, model: u32) -> Identity {
        Identity { vendor: vendor.into(), family, model }
    }

    #[test]
    fn every_processor_file_is_valid_and_defines_the_sources_it_cites() {
        for (name, text) in TEXTS {
            let (processor, problems) = read(text);
            assert!(problems.list.is_empty(), "{name}: {:?}", problems.list);
            let of = |of: &Map<Cited>, whole: &Cited| {
                of.values().chain([whole]).flat_map(|c| c.0.clone()).collect::<Vec<_>>()
            };
            let mut cited = of(&processor.core.source_of, &processor.core.source);
            cited.extend(processor.caches.values().flat_map(|c| of(&c.source_of, &c.source)));
            cited.extend(processor.core.operations.values().flat_map(|o| o.source.0.clone()));
            cited.extend(processor.core.tlbs.iter().flat_map(|t| t.source.0.clone()));
            cited.extend(processor.memory.iter().flat_map(|m| of(&m.source_of, &m.source)));
            assert!(cited.len() > 20, "{name}");
            for key in cited {
                assert!(processor.sources.contains_key(&*key), "{name} cites {key}");
            }
        }
    }

    #[test]
    fn every_processor_times_every_class_of_operations() {
        for (name, text) in TEXTS {
            let (processor, _) = read(text);
            for (word, _) in Operation::WORDS {
                assert!(processor.core.operations.contains_key(*word), "{name} does not time {word}");
            }
        }
    }

    #[test]
    fn a_processor_is_identified_by_vendor_family_and_model() {
        let title = |i: Identity| of(Some(&i)).title;
        assert_eq!(title(identity("GenuineIntel", 6, 207)), "Golden Cove");
        assert_eq!(title(identity("GenuineIntel", 6, 106)), "Sunny Cove");
        assert_eq!(title(identity("AuthenticAMD", 25, 1)), "Zen 3");
        assert_eq!(title(identity("AuthenticAMD", 25, 17)), "Zen 4");
        assert_eq!(title(identity("AuthenticAMD", 6, 207)), "Generic core");
        assert_eq!(of(None).title, "Generic core");
    }

    #[test]
    fn no_model_belongs_to_two_processors() {
        let mut models_seen = std::collections::BTreeSet::new();
        for (name, text) in TEXTS {
            let (processor, _) = read(text);
            for model in processor.models {
                assert!(
                    models_seen.insert((processor.vendor.clone(), processor.family, model)),
                    "{name}: {model}"
                );
            }
        }
    }
}
