//! The number of virtual machines that fit on a host if some of their virtual nodes are larger than the others.
//!
//! `c` virtual machines fit if and only if each node can hold `a` large and `b` small virtual nodes with `a + b <= c`,
//! such that all nodes together hold all large and all small ones: the incidence matrix of this assignment is that of a
//! network, so such a sum of `c` virtual machines always splits into `c` valid ones. The numbers `a` are chosen one
//! exchange at a time. That is exact if the sizes differ by one unit; otherwise, the number may be one too small.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What the nodes of a host hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MixedCapacity {
    /// For each node: how many virtual nodes fit in all if the first `a` of them are large, for each possible `a`.
    /// Empty for a node that holds none.
    totals: Vec<Vec<u32>>,
    /// Number of large virtual nodes of a virtual machine.
    larges: u32,
    /// Number of virtual nodes of a virtual machine.
    cells: u32,
    /// Number of virtual machines that fit.
    pub(super) copies: u32,
}

/// What one node holds of at most `copies` virtual machines.
#[derive(Clone, Copy)]
struct Level<'a> {
    totals: &'a [u32],
    /// A large virtual node is already placed here.
    large_placed: bool,
    small_placed: bool,
    copies: u32,
}

impl Level<'_> {
    /// Number of virtual nodes that fit if `a` of them are large; `None` if `a` large ones do not fit. Each virtual machine
    /// has at most one virtual node here.
    fn total(&self, a: usize) -> Option<u32> {
        if a > self.copies as usize {
            return None;
        }
        let total = *self.totals.get(a + usize::from(self.large_placed))?;
        let placed = u32::from(self.large_placed) + u32::from(self.small_placed);
        let left = total.checked_sub(placed)?;
        (left as usize >= a).then_some(left.min(self.copies))
    }

    /// The largest number of virtual nodes.
    fn most(&self) -> u32 {
        self.total(0).unwrap_or(0)
    }

    /// How many of them can be large if there are at least `total`.
    fn larges(&self, total: u32) -> u32 {
        // The total does not increase with the number of large ones.
        let (mut low, mut high) = (0, self.totals.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.total(middle).is_some_and(|t| t >= total) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.saturating_sub(1) as u32
    }
}

/// Giving up virtual nodes of a node for large ones.
#[derive(PartialEq, Eq)]
struct Exchange {
    /// Number of large virtual nodes gained.
    gain: u32,
    /// Number of virtual nodes given up, at least 1.
    cost: u32,
    node: usize,
}

impl Ord for Exchange {
    /// By the gain for each virtual node given up.
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |gain: u32, cost: u32| u64::from(gain) * u64::from(cost);
        let by_ratio = product(self.gain, other.cost).cmp(&product(other.gain, self.cost));
        by_ratio.then(self.node.cmp(&other.node))
    }
}

impl PartialOrd for Exchange {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl MixedCapacity {
    /// `totals[n][a]` is the number of virtual nodes that fit on node `n` if the first `a` of them are large.
    pub fn of(totals: Vec<Vec<u32>>, larges: usize, cells: usize) -> Self {
        let mut found = Self { totals, larges: larges as u32, cells: cells as u32, copies: 0 };
        let all: u64 = found.totals.iter().filter_map(|t| t.first()).map(|t| u64::from(*t)).sum();
        let (mut low, mut high) = (0, u32::try_from(all / cells as u64).unwrap_or(u32::MAX));
        while low < high {
            let middle = high - (high - low) / 2;
            match found.feasible(middle, 0, 0) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        found.copies = low;
        found
    }

    /// Number of large virtual nodes of a virtual machine.
    pub fn larges(&self) -> usize {
        self.larges as usize
    }

    /// Number of virtual machines, 2 at most, that no longer fit after one is placed with its large virtual nodes on
    /// the nodes of `large` and the others on those of `small`, besides this one.
    pub fn deficit(&self, large: u64, small: u64) -> u32 {
        (0..2)
            .find(|lost| self.copies <= lost + 1 || self.feasible(self.copies - 1 - lost, large, small))
            .unwrap_or(2)
    }

    /// How many large virtual nodes a node holds without holding fewer in all.
    pub fn spare_larges(&self, node: usize) -> u32 {
        let level = self.level(node, self.copies, 0, 0);
        level.larges(level.most())
    }

    fn level(&self, node: usize, copies: u32, large: u64, small: u64) -> Level<'_> {
        let is_in = |mask: u64| mask >> node & 1 == 1;
        Level { totals: &self.totals[node], large_placed: is_in(large), small_placed: is_in(small), copies }
    }

    /// Whether `copies` virtual machines fit after one is placed on the nodes of `large` and `small`.
    fn feasible(&self, copies: u32, large: u64, small: u64) -> bool {
        let level = |node| self.level(node, copies, large, small);
        let (mut total, mut larges) = (0u64, 0u64);
        for node in 0..self.totals.len() {
            let most = level(node).most();
            total += u64::from(most);
            larges += u64::from(level(node).larges(most));
        }
        let needed = u64::from(self.cells) * u64::from(copies);
        let needed_larges = u64::from(self.larges) * u64::from(copies);
        if total < needed {
            return false;
        }
        // A node that holds fewer virtual nodes can hold more large ones. Give up virtual nodes where that gains most large
        // ones for each.
        let mut given_up = vec![0u32; self.totals.len()];
        let exchange = |node: usize, given_up: u32| {
            let level = level(node);
            let now = level.most() - given_up;
            let had = level.larges(now);
            let next = level.total(had as usize + 1)?;
            Some(Exchange { gain: level.larges(next) - had, cost: now - next, node })
        };
        let mut exchanges: BinaryHeap<_> =
            (0..self.totals.len()).filter_map(|node| exchange(node, 0)).collect();
        while larges < needed_larges
            && let Some(best) = exchanges.pop()
        {
            // What is left to give up only shrinks, so this exchange cannot be made later either.
            if u64::from(best.cost) > total - needed {
                continue;
            }
            given_up[best.node] += best.cost;
            larges += u64::from(best.gain);
            total -= u64::from(best.cost);
            exchanges.extend(exchange(best.node, given_up[best.node]));
        }
        larges >= needed_larges
    }
}
