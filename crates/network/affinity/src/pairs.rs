//! Classifies the topological relation between the CPU of a flow and the CPU of its application.
//!
//! Source: the three classes of Hanford et al. 2014, extended by hardware threads and by several last-level caches in a
//! socket.

use longma_topology::{CpuLocation, Machine};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A CPU for the flow's interrupts and protocol processing, and one for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pair {
    /// The flow's CPU.
    pub flow: u32,
    /// The application's CPU.
    pub application: u32,
}

/// Topological relation of two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Different cores that share a last-level cache.
    SharedCache,
    /// Different cores of one socket without a shared last-level cache.
    SameSocket,
    /// Two hardware threads of one core.
    Siblings,
    /// Cores of different sockets.
    OtherSocket,
    /// The same CPU for both.
    SameCpu,
}

impl Class {
    /// All classes, in the order of expected performance.
    pub const ALL: [Class; 5] =
        [Self::SharedCache, Self::SameSocket, Self::Siblings, Self::OtherSocket, Self::SameCpu];

    /// Name in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::SharedCache => "shared-cache",
            Self::SameSocket => "same-socket",
            Self::Siblings => "siblings",
            Self::OtherSocket => "other-socket",
            Self::SameCpu => "same-cpu",
        }
    }

    /// Short description.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::SharedCache => "two cores, shared last-level cache",
            Self::SameSocket => "one socket, two last-level caches",
            Self::Siblings => "two threads of one core",
            Self::OtherSocket => "different sockets",
            Self::SameCpu => "one CPU for both",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.flow, self.application)
    }
}

/// Class of a pair; `None` if one of its CPUs is not in `places`.
pub fn classify(places: &[CpuLocation], pair: Pair) -> Option<Class> {
    let find = |cpu| places.iter().find(|place| place.cpu == cpu);
    let (flow, application) = (find(pair.flow)?, find(pair.application)?);
    Some(if flow.cpu == application.cpu {
        Class::SameCpu
    } else if flow.core.contains(&application.cpu) {
        Class::Siblings
    } else if flow.socket != application.socket {
        Class::OtherSocket
    } else if flow.last_cache.as_ref().is_none_or(|cache| cache.contains(&application.cpu)) {
        // If the system reports no caches, assume one per socket.
        Class::SharedCache
    } else {
        Class::SameSocket
    })
}

/// All ordered pairs of these CPUs, sorted by the flow's CPU.
pub fn all_pairs(cpus: &[u32]) -> Vec<Pair> {
    pairs_of(cpus, cpus)
}

/// All pairs of a flow CPU and an application CPU. The lists may differ, because a cpuset restricts programs but not
/// interrupts.
pub fn pairs_of(flows: &[u32], applications: &[u32]) -> Vec<Pair> {
    let pairs = flows.iter().flat_map(|flow| applications.iter().map(move |to| (*flow, *to)));
    pairs.map(|(flow, application)| Pair { flow, application }).collect()
}

/// CPU topology of a machine file's first host. CPUs are numbered as on most Linux servers: the first threads of all
/// cores come first.
pub fn of_machine(machine: &Machine) -> Vec<CpuLocation> {
    let Some(host) = machine.layout().hosts.first() else { return Vec::new() };
    let cores = host.cores.len() as u32;
    let threads_of =
        |core: usize| machine.cores.get(&host.cores[core].core).map_or(1, |of| of.threads.max(1));
    let cpus = |core: usize| (0..threads_of(core)).map(move |thread| core as u32 + thread * cores);
    let mut places = Vec::new();
    for (index, core) in host.cores.iter().enumerate() {
        let last = core.caches.last().map(|cache| {
            let mut shared: Vec<u32> =
                host.caches[*cache].cores.iter().flat_map(|core| cpus(*core)).collect();
            shared.sort_unstable();
            shared
        });
        places.extend(cpus(index).map(|cpu| CpuLocation {
            cpu,
            core: cpus(index).collect(),
            last_cache: last.clone(),
            socket: core.chip as u32,
            node: core.node as u32,
        }));
    }
    places.sort_by_key(|place| place.cpu);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(machine: &str) -> Vec<(Class, usize)> {
        let places = of_machine(&Machine::open(machine).unwrap());
        let cpus: Vec<u32> = places.iter().map(|place| place.cpu).collect();
        let classes: Vec<_> =
            all_pairs(&cpus).into_iter().map(|pair| classify(&places, pair).unwrap()).collect();
        let count = |class: Class| classes.iter().filter(|found| **found == class).count();
        Class::ALL.into_iter().map(|class| (class, count(class))).collect()
    }

    #[test]
    fn the_published_host_has_144_pairs_in_three_classes() {
        let classes = counted("sandybridge-2x6");
        let expected = [
            (Class::SharedCache, 60),
            (Class::SameSocket, 0),
            (Class::Siblings, 0),
            (Class::OtherSocket, 72),
            (Class::SameCpu, 12),
        ];
        assert_eq!(classes, expected);
    }

    #[test]
    fn smt_siblings_and_separate_last_level_caches_are_distinguished() {
        // 64 cores in two sockets, four cores per L3 cache, two threads per core.
        let classes = counted("hygon-8node");
        let of = |class| classes.iter().find(|(found, _)| *found == class).unwrap().1;
        assert_eq!((of(Class::SameCpu), of(Class::Siblings)), (128, 128));
        assert_eq!(of(Class::SharedCache), 128 * 6);
        assert_eq!(of(Class::OtherSocket), 128 * 64);
        assert_eq!(of(Class::SameSocket), 128 * (64 - 8));
    }

    #[test]
    fn a_missing_cpu_has_no_class() {
        let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
        assert_eq!(classify(&places, Pair { flow: 0, application: 99 }), None);
    }
}
