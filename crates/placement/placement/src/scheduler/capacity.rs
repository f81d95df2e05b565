//! The number of virtual machines with several equal virtual nodes that fit on a host, and the nodes that the next one
//! must use to preserve this capacity.
//!
//! Source: Gudkov, Ponomareva and Pospelov, "Efficient calculation of available space for multi-NUMA virtual machines"
//! (arXiv 2604.15033), for the closed form of [`copies`].

mod mixed;

pub(crate) use mixed::MixedCapacity;

/// Number of virtual machines that fit if each uses `cells` distinct nodes and node `n` holds `slots[n]` of their
/// virtual nodes.
pub fn copies(slots: &[u32], cells: usize) -> u32 {
    let mut sorted: Vec<u64> = slots.iter().map(|node_slots| u64::from(*node_slots)).collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    // No virtual machine uses one node twice. If the `large` largest nodes hold one virtual node of each virtual
    // machine, the other nodes hold the rest.
    let mut left: u64 = sorted.iter().sum();
    let mut least = u64::MAX;
    for large in 0..cells {
        least = least.min(left / (cells - large) as u64);
        left -= sorted.get(large).copied().unwrap_or(0);
    }
    u32::try_from(least).unwrap_or(u32::MAX)
}

/// Number of virtual machines that fit if each uses `cells` distinct nodes and `larges` of its virtual nodes are larger
/// than the others. `totals[n][a]` is the number of virtual nodes that fit on node `n` if the first `a` of them are large.
pub fn mixed_copies(totals: Vec<Vec<u32>>, larges: usize, cells: usize) -> u32 {
    MixedCapacity::of(totals, larges, cells).copies
}

/// The condition under which placing one virtual machine leaves slots for all the others that fit.
///
/// `c` copies of `k` virtual nodes fit if and only if the sum of `min(slots, c)` over all nodes is at least `k c`. Let
/// `slack` be the excess of this sum, and let the critical nodes be those with at least `c` slots. After one copy is
/// placed on a set of nodes, the other `c - 1` copies fit if and only if the set contains all critical nodes except at
/// most `slack` of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Number of virtual machines that fit.
    pub copies: u32,
    /// Bit mask of the nodes with a slot for every one of these virtual machines.
    pub critical: u64,
    /// Number of critical nodes that a set must include.
    pub required: u32,
}

impl Capacity {
    pub fn of(slots: &[u32], cells: usize) -> Self {
        let copies = copies(slots, cells);
        if copies == 0 {
            return Self::default();
        }
        let mut critical = 0u64;
        let mut used = 0u64;
        for (at, node_slots) in slots.iter().enumerate() {
            critical |= u64::from(*node_slots >= copies) << at;
            used += u64::from(copies.min(*node_slots));
        }
        let slack = used - cells as u64 * u64::from(copies);
        let required = u64::from(critical.count_ones()).saturating_sub(slack);
        Self { copies, critical, required: required as u32 }
    }

    /// Number of critical nodes that `set` lacks.
    pub fn deficit(&self, set: u64) -> u32 {
        self.required.saturating_sub((self.critical & set).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_random::SplitMix64;

    /// The largest number of copies, by trying every set of nodes for each.
    fn search_copies(slots: &mut [u32], cells: u32) -> u32 {
        let mut most = 0;
        for set in 0u32..1 << slots.len() {
            let uses = |at: &usize| set >> at & 1 == 1;
            if set.count_ones() != cells || !(0..slots.len()).filter(uses).all(|at| slots[at] > 0) {
                continue;
            }
            (0..slots.len()).filter(uses).for_each(|at| slots[at] -= 1);
            most = most.max(1 + search_copies(slots, cells));
            (0..slots.len()).filter(uses).for_each(|at| slots[at] += 1);
        }
        most
    }

    fn random_slots(random: &mut SplitMix64, nodes: usize, max_slots: usize) -> Vec<u32> {
        (0..nodes).map(|_| random.index(max_slots + 1) as u32).collect()
    }

    #[test]
    fn the_closed_form_equals_an_exhaustive_search() {
        assert_eq!(copies(&[3, 1, 1, 0], 2), 2);
        assert_eq!((copies(&[], 2), copies(&[5], 2), copies(&[5], 1)), (0, 0, 5));
        assert_eq!(copies(&[u32::MAX; 8], 2), u32::MAX);
        let mut random = SplitMix64::new(11);
        for (nodes, cells, most) in [(4, 2, 4), (4, 3, 4), (5, 2, 2), (6, 4, 2), (6, 3, 2)] {
            for _ in 0..40 {
                let mut slots = random_slots(&mut random, nodes, most);
                assert_eq!(
                    copies(&slots, cells),
                    search_copies(&mut slots, cells as u32),
                    "{slots:?} {cells}"
                );
            }
        }
    }

    #[test]
    fn exactly_the_sets_with_enough_critical_nodes_keep_the_capacity() {
        let mut random = SplitMix64::new(12);
        for (nodes, cells, most) in [(4, 2, 8), (8, 2, 8), (8, 4, 8), (7, 3, 20)] {
            for _ in 0..200 {
                let slots = random_slots(&mut random, nodes, most);
                let capacity = Capacity::of(&slots, cells);
                let usable = |set: &u64| {
                    set.count_ones() as usize == cells
                        && (0..nodes).all(|n| set >> n & 1 == 0 || slots[n] > 0)
                };
                let mut kept = 0;
                for set in (0u64..1 << nodes).filter(usable) {
                    let left: Vec<u32> = slots
                        .iter()
                        .enumerate()
                        .map(|(n, node_slots)| node_slots - (set >> n & 1) as u32)
                        .collect();
                    let keeps = copies(&left, cells) + 1 == capacity.copies;
                    assert_eq!(keeps, capacity.deficit(set) == 0, "{slots:?} {set:b} {capacity:?}");
                    kept += u32::from(keeps);
                }
                assert!(kept > 0 || capacity.copies == 0, "{slots:?}");
            }
        }
    }

    /// The number of virtual nodes that fit on a node with `free` CPUs, by number of large ones.
    fn totals(free: u32, large: u32, small: u32) -> Vec<u32> {
        (0..=free / large).map(|a| a + (free - a * large) / small).collect()
    }

    /// The largest number of virtual machines with one of `larges` of `large` CPUs and others of `small` CPUs, by trying
    /// every assignment.
    fn search_mixed(free: &mut [u32], sizes: &[u32]) -> u32 {
        fn each(free: &mut [u32], sizes: &[u32], left: &[u32], used: u32, most: &mut u32) {
            let Some((size, left)) = left.split_first() else {
                *most = (*most).max(1 + search_mixed(free, sizes));
                return;
            };
            for node in 0..free.len() {
                if used >> node & 1 == 0 && free[node] >= *size {
                    free[node] -= size;
                    each(free, sizes, left, used | 1 << node, most);
                    free[node] += size;
                }
            }
        }
        let mut most = 0;
        each(free, sizes, sizes, 0, &mut most);
        most
    }

    #[test]
    fn one_large_virtual_node_for_each_machine_fits_on_a_node() {
        for mut free in [[12, 3, 3, 3], [12, 4, 4, 4], [12, 12, 3, 2], [13, 6, 5, 1]] {
            let found = mixed_copies(free.map(|free| totals(free, 2, 1)).into(), 3, 4);
            assert_eq!(found, search_mixed(&mut free, &[2, 2, 2, 1]), "{free:?}");
        }
    }

    #[test]
    fn the_number_for_two_sizes_equals_an_exhaustive_search() {
        let mut random = SplitMix64::new(13);
        for (sizes, nodes, most) in [
            (&[2, 1][..], 4, 4),
            (&[3, 2], 4, 7),
            (&[2, 1, 1], 4, 4),
            (&[3, 3, 2], 4, 6),
            (&[2, 2, 2, 1], 5, 4),
            (&[5, 1], 3, 9),
        ] {
            for _ in 0..60 {
                let mut free = random_slots(&mut random, nodes, most);
                let larges = sizes.iter().filter(|s| **s == sizes[0]).count();
                let table = free.iter().map(|f| totals(*f, sizes[0], sizes[sizes.len() - 1])).collect();
                let found = mixed_copies(table, larges, sizes.len());
                assert_eq!(found, search_mixed(&mut free, sizes), "{free:?} {sizes:?}");
            }
        }
    }
}
