//! The table of direct jumps between regions, by target. The owner of the cache patches them.

use rustc_hash::FxHashMap;
use slab::Slab;

/// A jump or call out of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The host address of its displacement.
    pub displacement: u64,
    /// The target guest address.
    pub target: u64,
    /// The host address of the target while it is not linked.
    pub unlinked: u64,
}

/// The index of a link.
pub(super) type LinkNumber = usize;

/// A link in the list of links to the same target.
struct ListedLink {
    link: Link,
    previous: Option<LinkNumber>,
    next: Option<LinkNumber>,
}

/// All links. Adding and removing take constant time, since some functions have very many callers.
#[derive(Default)]
pub(super) struct Links {
    listed: Slab<ListedLink>,
    /// The head of the list for each target.
    first: FxHashMap<u64, LinkNumber>,
}

impl Links {
    pub fn add(&mut self, link: Link) -> LinkNumber {
        let next = self.first.get(&link.target).copied();
        let number = self.listed.insert(ListedLink { link, previous: None, next });
        self.first.insert(link.target, number);
        if let Some(next) = next {
            self.listed[next].previous = Some(number);
        }
        number
    }

    /// The link with this number.
    pub fn get(&self, number: LinkNumber) -> Option<&Link> {
        self.listed.get(number).map(|listed| &listed.link)
    }

    pub fn remove(&mut self, number: LinkNumber) {
        let ListedLink { link, previous, next } = self.listed.remove(number);
        match (previous, next) {
            (Some(previous), _) => self.listed[previous].next = next,
            (None, Some(next)) => drop(self.first.insert(link.target, next)),
            (None, None) => drop(self.first.remove(&link.target)),
        }
        if let Some(next) = next {
            self.listed[next].previous = previous;
        }
    }

    /// The links to `target`.
    pub fn to(&self, target: u64) -> impl Iterator<Item = &Link> {
        let first = self.first.get(&target).copied();
        std::iter::successors(first, |number| self.listed[*number].next)
            .map(|number| &self.listed[number].link)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn links_are_found_by_target_until_they_are_removed(
            steps in prop::collection::vec((0u64..4, any::<prop::sample::Index>()), 1..100),
        ) {
            let (mut links, mut alive) = (Links::default(), Vec::new());
            for (displacement, (target, index)) in steps.into_iter().enumerate() {
                let displacement = displacement as u64;
                // Target 0 represents a removal.
                if target > 0 {
                    let number = links.add(Link { displacement, target, unlinked: 0 });
                    alive.push((number, target, displacement));
                } else if !alive.is_empty() {
                    links.remove(alive.swap_remove(index.index(alive.len())).0);
                }
                for target in 1..4 {
                    let mut actual: Vec<u64> = links.to(target).map(|link| link.displacement).collect();
                    let of_target = alive.iter().filter(|(_, its, _)| *its == target);
                    let mut expected: Vec<u64> = of_target.map(|(.., displacement)| *displacement).collect();
                    actual.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(actual, expected);
                }
            }
        }
    }
}
