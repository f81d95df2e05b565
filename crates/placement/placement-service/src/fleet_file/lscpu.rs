//! Hosts from the output of `lscpu --parse=CPU,CORE,SOCKET,NODE`.

use super::Fault;
use longma_placement::CpuSet;
use longma_placement::cpus::MAX_CPU;
use longma_placement::host::{Host, MAX_NODE_CPUS, MAX_NODES, Node, Pool};
use std::collections::BTreeMap;

/// Columns of the table, in order.
const COLUMNS: [&str; 4] = ["CPU", "Core", "Socket", "Node"];

/// Parses the table of `lscpu --parse=CPU,CORE,SOCKET,NODE`. Every node has `node_mib` MiB, because lscpu prints no
/// memory, and all other nodes are equally distant.
///
/// # Errors
/// The line and column at fault.
pub fn parse(text: &str, name: &str, node_mib: u64) -> Result<Host, Fault> {
    // Cores by node, socket and core: core numbers may repeat on other sockets.
    let mut nodes = BTreeMap::<u32, BTreeMap<(u32, u32), CpuSet>>::new();
    let mut seen = CpuSet::new();
    for (line, row) in (1u64..).zip(text.lines()) {
        if row.starts_with('#') || row.trim().is_empty() {
            continue;
        }
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        if cells.len() < COLUMNS.len() {
            let problem = format!(
                "has {} columns; expected CPU, core, socket and node, as `lscpu --parse=CPU,CORE,SOCKET,NODE` prints them",
                cells.len()
            );
            return Err(Fault::at(Some(line), "", problem));
        }
        let number = |at: usize| match cells[at] {
            // Without NUMA, the node is empty.
            "" if at > 1 => Ok(0),
            cell => {
                let limit = if at == 0 { MAX_CPU } else { 1 << 20 };
                cell.parse::<u32>().ok().filter(|number| *number < limit).ok_or_else(|| {
                    let problem = format!("{:?} is not a number below {limit}", shortened(cell));
                    Fault::at(Some(line), COLUMNS[at], problem)
                })
            }
        };
        let (cpu, core, socket, node) = (number(0)?, number(1)?, number(2)?, number(3)?);
        if !seen.insert(cpu) {
            return Err(Fault::at(Some(line), COLUMNS[0], format!("CPU {cpu} is listed twice")));
        }
        let cores = nodes.entry(node).or_default();
        cores.entry((socket, core)).or_default().insert(cpu);
        if cores.values().map(CpuSet::len).sum::<usize>() > MAX_NODE_CPUS {
            return Err(Fault::at(
                Some(line),
                COLUMNS[3],
                format!("node {node} has more than {MAX_NODE_CPUS} CPUs"),
            ));
        }
        if nodes.len() > MAX_NODES {
            return Err(Fault::at(Some(line), COLUMNS[3], format!("there are more than {MAX_NODES} nodes")));
        }
    }
    let memory = || vec![Pool { page_kib: 4, mib: node_mib }];
    let node = |(id, cores): (u32, BTreeMap<_, CpuSet>)| Node {
        id,
        cores: cores.into_values().collect(),
        memory: memory(),
    };
    let nodes: Vec<Node> = nodes.into_iter().map(node).collect();
    let host = Host::new(name, nodes);
    host.check().map_err(|error| Fault::at(None, "", error.problem))?;
    Ok(host)
}

/// The beginning of a text, for messages.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
