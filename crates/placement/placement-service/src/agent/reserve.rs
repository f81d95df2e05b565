//! Memory reserved for the host itself, which virtual machines must not use.

use longma_placement::Host;
use std::collections::BTreeMap;

/// Default reserve of each node: an eighth of its ordinary pages, but at most this many MiB.
const MAX_DEFAULT_MIB: u64 = 2048;

/// The memory in ordinary pages that is reserved for the host. Huge pages are not included: the kernel has already set
/// them aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryReserve {
    /// An eighth of each node, but at most 2 GiB.
    #[default]
    Usual,
    /// This many MiB of the whole host, divided among the nodes in proportion to their memory.
    Host(u64),
    /// This many MiB of each listed node; the others keep the usual reserve.
    Nodes(BTreeMap<u32, u64>),
}

impl MemoryReserve {
    /// Subtracts the reserve from the ordinary pages of `host`.
    ///
    /// # Errors
    /// If a node does not exist or has less memory than its reserve.
    pub fn apply(&self, host: &mut Host) -> Result<(), String> {
        let ordinary = |node: &longma_placement::host::Node| node.memory.first().map_or(0, |pool| pool.mib);
        let total: u64 = host.nodes.iter().map(ordinary).sum();
        if let Self::Nodes(nodes) = self
            && let Some(node) = nodes.keys().find(|id| host.nodes.iter().all(|node| node.id != **id))
        {
            return Err(format!("reserved memory: there is no node {node}"));
        }
        for node in &mut host.nodes {
            let mib = ordinary(node);
            let usual = MAX_DEFAULT_MIB.min(mib / 8);
            let reserve = match self {
                Self::Usual => usual,
                // Multiply in 128 bits, because the product may exceed 64 bits.
                Self::Host(all) => {
                    (u128::from(*all) * u128::from(mib)).div_ceil(u128::from(total.max(1))) as u64
                }
                Self::Nodes(nodes) => nodes.get(&node.id).copied().unwrap_or(usual),
            };
            if reserve > mib {
                return Err(format!(
                    "reserved memory: node {} has {mib} MiB in ordinary pages, {reserve} are to be reserved",
                    node.id
                ));
            }
            if let Some(pool) = node.memory.first_mut() {
                pool.mib -= reserve;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_topology::Machine;

    fn remaining_mib(reserve: &MemoryReserve) -> Result<Vec<u64>, String> {
        let mut host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h1").unwrap();
        host.nodes.truncate(3);
        host.nodes[1].memory[0].mib = 8192;
        host.nodes[2].memory[0].mib = 0;
        reserve.apply(&mut host)?;
        Ok(host.nodes.iter().map(|node| node.memory[0].mib).collect())
    }

    #[test]
    fn a_reserve_is_of_the_host_or_of_its_nodes() {
        let nodes = |all: &[(u32, u64)]| MemoryReserve::Nodes(all.iter().copied().collect());
        assert_eq!(remaining_mib(&MemoryReserve::Usual).unwrap(), [32768 - 2048, 8192 - 1024, 0]);
        assert_eq!(remaining_mib(&MemoryReserve::Host(5000)).unwrap(), [32768 - 4000, 8192 - 1000, 0]);
        assert_eq!(remaining_mib(&nodes(&[(1, 92)])).unwrap(), [32768 - 2048, 8100, 0]);
        assert_eq!(remaining_mib(&nodes(&[(0, 0), (1, 8192)])).unwrap(), [32768, 0, 0]);
        assert!(remaining_mib(&nodes(&[(3, 1)])).unwrap_err().contains("no node 3"));
        assert!(remaining_mib(&nodes(&[(1, 8193)])).unwrap_err().contains("node 1 has 8192 MiB"));
        assert!(remaining_mib(&MemoryReserve::Host(50_000)).unwrap_err().contains("node 0"));
    }
}
