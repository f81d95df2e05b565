//! Paths that lead back to where they began: cache misses, buses on buses, crossbars into crossbars.
//! Not dangling ends: see `names` and `wiring`.

use crate::parts::MachineFile;
use crate::read::Problems;
use std::collections::BTreeMap;
use std::ops::Range;

/// Arrows from each name, with the place of the arrow in the file.
type Graph = BTreeMap<String, Vec<(String, Range<usize>)>>;

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    let arrow = |(name, cache): (&String, &crate::parts::Cache)| {
        (name.clone(), vec![(cache.next.to_string(), cache.next.span())])
    };
    report(&file.caches.iter().map(arrow).collect(), "a miss never reaches memory", "`next`", problems);
    for host in &file.hosts {
        let buses = host.buses.iter().map(|b| (b.name.clone(), vec![(b.on.to_string(), b.on.span())]));
        report(&buses.collect(), "the bus hangs on itself", "`on`", problems);
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

/// Reports each cycle once, at its last arrow. Depth-first search with its own stack: files may be hostile.
fn report(graph: &Graph, what: &str, key: &str, problems: &mut Problems) {
    let mut done: BTreeMap<&str, bool> = BTreeMap::new();
    for start in graph.keys() {
        if done.contains_key(start.as_str()) {
            continue;
        }
        let mut path: Vec<(&str, usize)> = vec![(start, 0)];
        done.insert(start, false);
        while let Some((name, next)) = path.last_mut() {
            let arrows = graph.get(*name).map_or(&[][..], |a| a);
            let Some((to, span)) = arrows.get(*next) else {
                done.insert(name, true);
                path.pop();
                continue;
            };
            *next += 1;
            match done.get(to.as_str()) {
                Some(false) => {
                    let from = path.iter().position(|p| p.0 == to).unwrap_or(0);
                    let names: Vec<_> = path[from..].iter().map(|p| p.0).chain([to.as_str()]).collect();
                    let message = format!("{what}: {}", names.join(" -> "));
                    problems.error(
                        span.clone(),
                        message,
                        "leads back",
                        format!("change one {key} on this path"),
                    );
                }
                Some(true) => {}
                None if graph.contains_key(to) => {
                    done.insert(to, false);
                    path.push((to, 0));
                }
                None => {}
            }
        }
    }
}
