//! Page placement: page tables, NUMA memory policies, and the mapping of physical addresses to nodes and controllers.
//! `translation` models the cost of lookups.
//!
//! Source: Linux's memory policies (set_mempolicy(2)) and page allocator; physical addresses after the Loongson 3A5000
//! manual.

mod divider;
mod frames;
mod physical;

pub(crate) use divider::Divider;
pub use frames::FrameOrder;
pub use physical::PhysicalMap;

use crate::build_error::{BuildError, host_of};
use frames::Frames;
use longma_sim::{Statistics, StatisticsError};
use longma_topology::Machine;
use longma_topology::parts::Distances;

/// Identifier of an address space, which the threads of one process share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u16);

/// A physical page: the physical address divided by the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalPage(pub u64);

/// Where the pages of a process are allocated on first touch. If a node is full, the nearest node with free memory is
/// used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The node of the core that first touches the page (Linux: MPOL_DEFAULT).
    #[default]
    FirstTouch,
    /// The nearest of these nodes (MPOL_BIND). If they are full, Linux kills the process; the model allocates on
    /// another node and counts it.
    Bind(Vec<usize>),
    /// These nodes in rotation, by virtual page number (MPOL_INTERLEAVE).
    Interleave(Vec<usize>),
    /// This node (MPOL_PREFERRED).
    Preferred(usize),
}

/// A policy that is invalid for the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The policy has an empty list of nodes.
    #[error("a memory policy names no node: name at least one")]
    NoNode,
    /// The policy names a node without memory or one that does not exist.
    #[error("a memory policy names node {node}: nodes with memory are {with_memory:?}")]
    NotMemory {
        /// The node.
        node: usize,
        /// Nodes with memory.
        with_memory: Vec<usize>,
    },
}

/// Entry of a page that is not mapped.
const ABSENT: u64 = u64::MAX;

/// The page tables of all processes of a host, and the free memory of its nodes.
///
/// Only the last level of a page table is modelled: tables of one page with 8 bytes per entry, each in its own frame.
#[derive(Clone, Debug)]
pub struct AddressSpaces {
    page_shift: u32,
    nodes: Vec<Frames>,
    /// For each node, the nodes with memory, nearest first.
    nearest: Vec<Vec<usize>>,
    spaces: Vec<Space>,
    physical: PhysicalMap,
    counts: PlacementCounts,
    /// Virtual pages touched for the first time since the last call of `take_touched`; recorded only after its first
    /// call.
    touched: Option<Vec<u64>>,
    /// Whether virtual addresses are physical ones; see [`AddressSpaces::use_physical_addresses`].
    is_physical: bool,
}

/// Counts of page allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementCounts {
    /// Pages touched for the first time.
    pub touched: u64,
    /// Of these, pages not placed by their policy because the node was full.
    pub elsewhere: u64,
    /// Of these, pages for which no node had free memory: the guest needs more memory than the machine has.
    pub beyond_capacity: u64,
}

#[derive(Clone, Debug, Default)]
struct Space {
    policy: Policy,
    /// Address range of each table, as the virtual page number divided by the number of entries; ascending.
    parts: Vec<u64>,
    tables: Vec<Table>,
    /// Index of the most recently used table.
    recent: usize,
}

/// Initial capacity of a table, in entries. A table of large pages has millions of entries, of which programs use only
/// the first ones.
const FIRST_ENTRIES: usize = 1 << 12;

#[derive(Clone, Debug)]
struct Table {
    /// Frame of the table itself.
    frame: PhysicalPage,
    /// Entries up to the highest one used.
    pages: Vec<u64>,
}

impl Table {
    fn new(frame: PhysicalPage, entries: usize) -> Self {
        Self { frame, pages: vec![ABSENT; entries.min(FIRST_ENTRIES)] }
    }

    fn set(&mut self, index: usize, page: PhysicalPage) {
        if index >= self.pages.len() {
            self.pages.resize((index + 1).next_power_of_two(), ABSENT);
        }
        self.pages[index] = page.0;
    }
}

impl AddressSpaces {
    /// Creates empty address spaces on host number `host` of `machine`, with pages of `page_bytes` (a power of two from
    /// 4 KiB to 1 GiB).
    ///
    /// # Errors
    /// If there is no such host, if it has no memory, or if the page size is invalid.
    pub fn new(
        machine: &Machine,
        host: usize,
        page_bytes: u64,
        order: FrameOrder,
    ) -> Result<Self, BuildError> {
        if !page_bytes.is_power_of_two() || !(1 << 12..=1 << 30).contains(&page_bytes) {
            return Err(BuildError::Impossible {
                what: format!("a page of {page_bytes} bytes"),
                help: "give a power of two from 4 KiB to 1 GiB".into(),
            });
        }
        let page_shift = page_bytes.trailing_zeros();
        let physical = PhysicalMap::new(machine, host)?;
        let instance = host_of(machine, host)?;
        let frames = |(number, node): (usize, &longma_topology::NodeInstance)| {
            let bytes = match node.memories.is_empty() {
                true => 0,
                false => node.memory_bytes.unwrap_or(u64::MAX).min(physical.node_bytes()),
            };
            let base = physical.base_of(number) >> page_shift;
            Frames::new(base, bytes >> page_shift, physical.node_bytes() >> page_shift, page_shift, order)
        };
        let nodes: Vec<_> = instance.nodes.iter().enumerate().map(frames).collect();
        let distances = machine.hosts[instance.of].distances.as_ref();
        let nearest = (0..nodes.len()).map(|from| nearest(from, instance, distances)).collect();
        let counts = PlacementCounts::default();
        Ok(Self {
            page_shift,
            nodes,
            nearest,
            spaces: Vec::new(),
            physical,
            counts,
            touched: None,
            is_physical: false,
        })
    }

    /// Sets the placement policy of `space`. Mapped pages do not move.
    ///
    /// # Errors
    /// If the policy names no node, or one without memory.
    pub fn set_policy(&mut self, space: SpaceId, policy: Policy) -> Result<(), PolicyError> {
        let with_memory = &self.nearest[0];
        let named = match &policy {
            Policy::FirstTouch => &[][..],
            Policy::Bind(nodes) | Policy::Interleave(nodes) if nodes.is_empty() => {
                return Err(PolicyError::NoNode);
            }
            Policy::Bind(nodes) | Policy::Interleave(nodes) => nodes,
            Policy::Preferred(node) => std::slice::from_ref(node),
        };
        if let Some(node) = named.iter().find(|n| !with_memory.contains(n)) {
            let mut with_memory = with_memory.clone();
            with_memory.sort_unstable();
            return Err(PolicyError::NotMemory { node: *node, with_memory });
        }
        self.space(space).policy = policy;
        Ok(())
    }

    /// Translates a virtual page. The first touch, by a core of `touching_node`, allocates a frame.
    ///
    /// # Panics
    /// If the host has no node `touching_node`.
    #[inline]
    pub fn translate(&mut self, space: SpaceId, virtual_page: u64, touching_node: usize) -> PhysicalPage {
        match self.lookup(space, virtual_page) {
            Some(page) => page,
            None => self.touch(space, virtual_page, touching_node),
        }
    }

    /// Translates a virtual page if it is mapped.
    #[inline]
    pub fn lookup(&mut self, space: SpaceId, virtual_page: u64) -> Option<PhysicalPage> {
        if self.is_physical {
            return Some(PhysicalPage(virtual_page));
        }
        let (part, index) = self.split(virtual_page);
        let table = self.spaces.get_mut(usize::from(space.0))?.table(part)?;
        table.pages.get(index).filter(|page| **page != ABSENT).map(|page| PhysicalPage(*page))
    }

    /// The physical address of the page table entry of a virtual page, which is the last load of a page walk. `None`
    /// before the first touch of its table's range.
    pub fn entry_address(&mut self, space: SpaceId, virtual_page: u64) -> Option<u64> {
        let (part, index) = self.split(virtual_page);
        let shift = self.page_shift;
        let table = self.spaces.get_mut(usize::from(space.0))?.table(part)?;
        Some((table.frame.0 << shift) + index as u64 * 8)
    }

    /// Makes every virtual page of every address space its own physical page, for callers that translate addresses
    /// themselves. The address must then be on a node of the host.
    pub fn use_physical_addresses(&mut self) {
        self.is_physical = true;
    }

    /// Unmaps `pages` virtual pages from `first` on and frees their frames.
    pub fn unmap(&mut self, space: SpaceId, first: u64, pages: u64) {
        let entries = self.entries() as u64;
        let end = first.saturating_add(pages);
        let Some(space) = self.spaces.get_mut(usize::from(space.0)) else { return };
        let from = space.parts.partition_point(|p| *p < first / entries);
        for (part, table) in space.parts.iter().zip(&mut space.tables).skip(from) {
            let start = part * entries;
            if start >= end {
                break;
            }
            let used = table.pages.len();
            let range = (first.saturating_sub(start) as usize).min(used)..((end - start) as usize).min(used);
            for page in table.pages[range].iter_mut().filter(|p| **p != ABSENT) {
                let node = self.physical.node_of(*page << self.page_shift);
                self.nodes[node].free(std::mem::replace(page, ABSENT));
            }
        }
    }

    /// Unmaps all pages of `space` and frees their frames and page tables. The policy stays.
    pub fn clear(&mut self, space: SpaceId) {
        let Some(space) = self.spaces.get_mut(usize::from(space.0)) else { return };
        let tables = std::mem::take(&mut space.tables);
        (space.parts, space.recent) = (Vec::new(), 0);
        for table in tables {
            for page in table.pages.into_iter().filter(|page| *page != ABSENT).chain([table.frame.0]) {
                let node = self.physical.node_of(page << self.page_shift);
                self.nodes[node].free(page);
            }
        }
    }

    /// Returns the virtual pages touched for the first time since the last call, in order. The first call returns
    /// nothing and starts the recording.
    pub fn take_touched(&mut self) -> Vec<u64> {
        self.touched.replace(Vec::new()).unwrap_or_default()
    }

    /// Page size, bytes.
    pub const fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// The mapping of physical addresses to nodes, controllers and local addresses.
    pub const fn physical(&self) -> &PhysicalMap {
        &self.physical
    }

    /// The NUMA node of a physical address.
    #[inline]
    pub fn node_of(&self, physical: u64) -> usize {
        self.physical.node_of(physical)
    }

    /// The controller of a physical address and the address local to it.
    #[inline]
    pub fn controller_of(&self, physical: u64) -> (usize, u64) {
        self.physical.controller_of(physical)
    }

    /// Number of frames in use on each node.
    pub fn used_frames(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().map(Frames::used)
    }

    /// Counts of page allocations.
    pub const fn counts(&self) -> PlacementCounts {
        self.counts
    }

    /// Adds the statistics under `name`.
    ///
    /// # Errors
    /// If a name is malformed or already in use.
    pub fn report(&self, statistics: &mut Statistics, name: &str) -> Result<(), StatisticsError> {
        let PlacementCounts { touched, elsewhere, beyond_capacity } = self.counts;
        statistics.count(&format!("{name}.pages_touched"), touched, "pages", "pages touched")?;
        let description = "pages not placed by their policy because the node was full";
        statistics.count(&format!("{name}.pages_elsewhere"), elsewhere, "pages", description)?;
        let description = "pages for which no node had room";
        statistics.count(&format!("{name}.pages_beyond_capacity"), beyond_capacity, "pages", description)?;
        for (number, node) in self.nodes.iter().enumerate() {
            let name = format!("{name}.node{number}.pages");
            statistics.count(&name, node.used(), "pages", "pages of the node in use")?;
        }
        Ok(())
    }

    /// Number of entries of a page table.
    const fn entries(&self) -> usize {
        1 << (self.page_shift - 3)
    }

    #[inline]
    const fn split(&self, virtual_page: u64) -> (u64, usize) {
        let bits = self.page_shift - 3;
        (virtual_page >> bits, (virtual_page & ((1 << bits) - 1)) as usize)
    }

    fn space(&mut self, space: SpaceId) -> &mut Space {
        let index = usize::from(space.0);
        if self.spaces.len() <= index {
            self.spaces.resize_with(index + 1, Space::default);
        }
        &mut self.spaces[index]
    }

    #[cold]
    fn touch(&mut self, space: SpaceId, virtual_page: u64, touching_node: usize) -> PhysicalPage {
        let (part, index) = self.split(virtual_page);
        let entries = self.entries();
        if self.space(space).table(part).is_none() {
            // The kernel allocates page tables on the node on which it runs, regardless of the process's policy.
            let frame = self.allocate(&Policy::FirstTouch, virtual_page, touching_node);
            self.space(space).insert(part, Table::new(frame, entries));
        }
        let policy = std::mem::take(&mut self.space(space).policy);
        let page = self.allocate(&policy, virtual_page, touching_node);
        self.counts.touched += 1;
        self.touched.iter_mut().for_each(|touched| touched.push(virtual_page));
        let space = self.space(space);
        space.policy = policy;
        if let Some(table) = space.table(part) {
            table.set(index, page);
        }
        page
    }

    fn allocate(&mut self, policy: &Policy, virtual_page: u64, touching: usize) -> PhysicalPage {
        let from = match policy {
            Policy::FirstTouch | Policy::Bind(_) => touching,
            Policy::Interleave(nodes) => nodes[(virtual_page % nodes.len() as u64) as usize],
            Policy::Preferred(node) => *node,
        };
        let nearest = &self.nearest[from];
        let is_preferred = |node: &usize| match policy {
            Policy::Bind(nodes) => nodes.contains(node),
            _ => *node == nearest[0],
        };
        let first = nearest.iter().copied().find(is_preferred).unwrap_or(nearest[0]);
        let frames = &mut self.nodes;
        let mut take_frame = |node: &usize| frames[*node].take();
        let as_wanted = nearest.iter().filter(|n| is_preferred(n)).find_map(&mut take_frame);
        if let Some(page) = as_wanted {
            return PhysicalPage(page);
        }
        self.counts.elsewhere += 1;
        if let Some(page) = nearest.iter().find_map(&mut take_frame) {
            return PhysicalPage(page);
        }
        self.counts.beyond_capacity += 1;
        PhysicalPage(self.nodes[first].take_beyond())
    }
}

impl Space {
    #[inline]
    fn table(&mut self, part: u64) -> Option<&mut Table> {
        if self.parts.get(self.recent) != Some(&part) {
            self.recent = self.parts.binary_search(&part).ok()?;
        }
        self.tables.get_mut(self.recent)
    }

    fn insert(&mut self, part: u64, table: Table) {
        let at = self.parts.partition_point(|p| *p < part);
        self.parts.insert(at, part);
        self.tables.insert(at, table);
    }
}

/// Nodes with memory in the order in which `from` uses them: by stated distance, or if there is none, nodes of the same
/// chip first. Equally distant nodes are ordered by number.
fn nearest(from: usize, host: &longma_topology::HostInstance, distances: Option<&Distances>) -> Vec<usize> {
    let distance = |to: usize| -> u64 {
        let slit = distances.and_then(|d| d.slit.as_ref()).and_then(|s| s.rows.get(from)?.get(to).copied());
        let latency = distances.and_then(|d| d.latency.as_ref()).and_then(|l| l.rows.get(from)?.get(to));
        let chip = if host.nodes[from].chip == host.nodes[to].chip { 0 } else { 1 };
        match (to == from, latency, slit) {
            (true, ..) => 0,
            (_, Some(latency), _) => 1 + latency.ps(),
            (_, None, Some(slit)) => 1 + u64::from(slit),
            _ => 1 + chip,
        }
    };
    let mut nodes: Vec<usize> =
        (0..host.nodes.len()).filter(|n| !host.nodes[*n].memories.is_empty()).collect();
    nodes.sort_by_key(|n| (distance(*n), *n));
    nodes
}
