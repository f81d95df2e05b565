//! Checks sources: every part cites one, every cited source exists and is used, and estimates and measurements give
//! their reasoning.

use crate::parts::{MachineFile, SourceKind};
use crate::read::{Cited, Map, Problems, SourcePositions, nearest, suggestion};
use std::collections::BTreeSet;

struct Check<'a> {
    file: &'a MachineFile,
    cited: BTreeSet<String>,
    problems: &'a mut Problems,
}

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    let mut check = Check { file, cited: BTreeSet::new(), problems };
    check.parts();
    let cited = check.cited;
    for (name, source) in &file.sources {
        let needs_reason = matches!(source.kind, SourceKind::Estimate | SourceKind::Measurement);
        if needs_reason
            && source.marks.sound(&["kind", "reasoning"])
            && source.reasoning.as_deref().unwrap_or("").trim().is_empty()
        {
            let help = "add `reasoning = \"...\"`: how it was measured, or why the value is plausible".into();
            problems.error(
                source.marks.at(),
                format!("source `{name}` has no reasoning"),
                "missing here",
                help,
            );
        }
        if !cited.contains(name) && source.marks.sound(&[]) {
            let help = "cite it in a `source` or remove it".into();
            problems.warn(source.marks.at(), format!("source `{name}` is not cited"), "defined here", help);
        }
    }
}

/// The keys of all sources that the parts of `file` cite.
pub(crate) fn cited(file: &MachineFile) -> BTreeSet<String> {
    let mut check = Check { file, cited: BTreeSet::new(), problems: &mut Problems::default() };
    check.parts();
    check.cited
}

impl Check<'_> {
    fn names(&mut self, cited: &Cited) {
        for name in &cited.0 {
            if self.file.sources.contains_key(&**name) {
                self.cited.insert(name.to_string());
            } else {
                let help = suggestion(name, self.file.sources.keys().map(String::as_str), "source");
                self.problems.error(name.span(), format!("there is no source `{name}`"), "not defined", help);
            }
        }
    }

    /// Checks a part that must cite a source.
    fn require(&mut self, part: &str, marks: &SourcePositions, cited: &Cited) {
        if cited.0.is_empty() && marks.sound(&["source"]) {
            let help =
                "add `source = \"KEY\"`, where [sources.KEY] describes the source of the numbers".into();
            self.problems.error(marks.at(), format!("{part} has no source"), "missing here", help);
        }
        self.names(cited);
    }

    /// Checks the sources of single keys.
    fn of(&mut self, keys: &[&'static str], of: &Map<Cited>, marks: &SourcePositions) {
        for (key, cited) in of {
            if !keys.contains(&key.as_str()) {
                let help = match nearest(key, keys.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("keys are: {}", keys.join(", ")),
                };
                let span = cited.0.first().map_or(marks.key("source_of"), |n| n.span());
                self.problems.error(
                    span,
                    format!("`source_of` names a key `{key}` that the part does not have"),
                    "cited for it",
                    help,
                );
            }
            self.names(cited);
        }
    }

    fn parts(&mut self) {
        let file = self.file;
        for (name, core) in &file.cores {
            self.require(&format!("core `{name}`"), &core.marks, &core.source);
            self.of(crate::parts::Core::KEYS, &core.source_of, &core.marks);
            core.branch.iter().for_each(|p| self.names(&p.source));
            core.memory_order.iter().for_each(|p| self.require("the memory order", &p.marks, &p.source));
            core.tlbs.iter().for_each(|p| self.names(&p.source));
            core.operations.values().for_each(|p| self.names(&p.source));
            core.store.iter().for_each(|p| self.require("the in-core store", &p.marks, &p.source));
            if let Some(idma) = &core.idma {
                self.require("the IDMA engine", &idma.marks, &idma.source);
                self.of(crate::parts::Idma::KEYS, &idma.source_of, &idma.marks);
            }
            if let Some(cam) = &core.cam {
                self.require("the CAM", &cam.marks, &cam.source);
                self.of(crate::parts::Cam::KEYS, &cam.source_of, &cam.marks);
            }
        }
        for (name, cache) in &file.caches {
            self.require(&format!("cache `{name}`"), &cache.marks, &cache.source);
            self.of(crate::parts::Cache::KEYS, &cache.source_of, &cache.marks);
            cache.lock.iter().for_each(|p| self.require("the cache lock", &p.marks, &p.source));
            cache.dca.iter().for_each(|p| self.require("the DCA", &p.marks, &p.source));
            cache.prefetcher.iter().for_each(|p| self.require("the prefetcher", &p.marks, &p.source));
        }
        for (name, memory) in &file.memories {
            self.require(&format!("memory `{name}`"), &memory.marks, &memory.source);
            self.of(crate::parts::Memory::KEYS, &memory.source_of, &memory.marks);
        }
        for (name, chip) in &file.chips {
            self.require(&format!("chip `{name}`"), &chip.marks, &chip.source);
            self.of(crate::parts::Chip::KEYS, &chip.source_of, &chip.marks);
            for crossbar in &chip.crossbars {
                self.require(&format!("crossbar `{}`", crossbar.name), &crossbar.marks, &crossbar.source);
                self.of(crate::parts::Crossbar::KEYS, &crossbar.source_of, &crossbar.marks);
            }
            for port in &chip.ports {
                self.require(&format!("port `{}`", port.name), &port.marks, &port.source);
                self.of(crate::parts::Port::KEYS, &port.source_of, &port.marks);
            }
            chip.address_windows
                .iter()
                .for_each(|p| self.require("the address windows", &p.marks, &p.source));
        }
        for (name, device) in &file.devices {
            self.require(&format!("device `{name}`"), &device.marks, &device.source);
            let kinds: Vec<_> =
                device_keys(device).iter().chain(crate::parts::Device::KEYS).copied().collect();
            self.of(&kinds, &device.source_of, &device.marks);
        }
        self.hosts();
    }

    fn hosts(&mut self) {
        let file = self.file;
        for host in &file.hosts {
            self.require(&format!("host `{}`", host.name), &host.marks, &host.source);
            for link in &host.links {
                self.require(&format!("link `{}`", link.name), &link.marks, &link.source);
            }
            for bus in &host.buses {
                self.require(&format!("bus `{}`", bus.name), &bus.marks, &bus.source);
                self.of(crate::parts::Bus::KEYS, &bus.source_of, &bus.marks);
            }
            if let Some(distances) = &host.distances {
                self.require("distances", &distances.marks, &distances.source);
                self.of(crate::parts::Distances::KEYS, &distances.source_of, &distances.marks);
            }
            if let Some(os) = &host.os {
                self.require("the operating system", &os.marks, &os.source);
                self.of(crate::parts::Os::KEYS, &os.source_of, &os.marks);
            }
            host.bandwidths.iter().for_each(|p| self.require("a measured bandwidth", &p.marks, &p.source));
            host.core_to_core.iter().for_each(|p| self.require("core to core", &p.marks, &p.source));
        }
        for switch in &file.switches {
            self.require(&format!("switch `{}`", switch.name), &switch.marks, &switch.source);
            self.of(crate::parts::Switch::KEYS, &switch.source_of, &switch.marks);
        }
        file.cables.iter().for_each(|c| self.require("a cable", &c.marks, &c.source));
    }
}

/// The keys of the table that describes a device.
fn device_keys(device: &crate::parts::Device) -> &'static [&'static str] {
    match device.kind() {
        "ethernet" => crate::parts::Ethernet::KEYS,
        "myrinet" => crate::parts::Myrinet::KEYS,
        "zoned" => crate::parts::Zoned::KEYS,
        "block" => crate::parts::Block::KEYS,
        "dma" => crate::parts::DmaEngine::KEYS,
        _ => &[],
    }
}
