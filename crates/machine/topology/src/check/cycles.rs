//! Rejects circular references: cache misses, buses on buses, crossbars into crossbars. See `names` and `wiring` for
//! references to parts that do not exist.

use crate::parts::MachineFile;
use crate::read::Problems;
use std::collections::BTreeMap;
use std::ops::Range;

/// The outgoing edges of each name, with the position of the edge in the file.
type Graph = BTreeMap<String, Vec<(String, Range<usize>)>>;

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    let arrow = |(name, cache): (&String, &crate::parts::Cache)| {
        (name.clone(), vec![(cache.next.to_string(), cache.next.span())])
    };
    report(&file.caches.iter().map(arrow).collect(), "a cache miss never reaches memory", "`next`", problems);
    for host in &file.hosts {
        let buses = host.buses.iter().map(|b| (b.name.clone(), vec![(b.on.to_string(), b.on.span())]));
        report(&buses.collect(), "a bus is attached to itself", "`on`", problems);
    }
    for chip in file.chips.values() {
        let crossbars = chip.crossbars.iter();
        let slaves =
            |x: &crate::parts::Crossbar| x.slaves.iter().map(|s| (s.to_string(), s.span())).collect();
        report(
            &crossbars.map(|x| (x.name.clone(), slaves(x))).collect(),
            "a request never arrives",
            "`slaves`",
            problems,
        );
    }
}

/// Reports each cycle once, at its last edge. The depth-first search is iterative, because a hostile file could
/// overflow the stack.
fn report(graph: &Graph, relation: &str, key: &str, problems: &mut Problems) {
    let mut finished: BTreeMap<&str, bool> = BTreeMap::new();
    for start in graph.keys() {
        if finished.contains_key(start.as_str()) {
            continue;
        }
        let mut path: Vec<(&str, usize)> = vec![(start, 0)];
        finished.insert(start, false);
        while let Some((name, next)) = path.last_mut() {
            let arrows = graph.get(*name).map_or(&[][..], |a| a);
            let Some((to, span)) = arrows.get(*next) else {
                finished.insert(name, true);
                path.pop();
                continue;
            };
            *next += 1;
            match finished.get(to.as_str()) {
                Some(false) => {
                    let from = path.iter().position(|p| p.0 == to).unwrap_or(0);
                    let names: Vec<_> = path[from..].iter().map(|p| p.0).chain([to.as_str()]).collect();
                    let message = format!("{relation}: {}", names.join(" -> "));
                    problems.error(
                        span.clone(),
                        message,
                        "closes the cycle",
                        format!("change one {key} of this cycle"),
                    );
                }
                Some(true) => {}
                None if graph.contains_key(to) => {
                    finished.insert(to, false);
                    path.push((to, 0));
                }
                None => {}
            }
        }
    }
}
