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
struct Listed {
    link: Link,
    before: Option<LinkNumber>,
    behind: Option<LinkNumber>,
}

/// All links. Adding and removing take constant time, since some functions have very many callers.
#[derive(Default)]
pub(super) struct Links {
    listed: Slab<Listed>,
    /// The head of the list for each target.
    first: FxHashMap<u64, LinkNumber>,
}

impl Links {
    pub fn add(&mut self, link: Link) -> LinkNumber {
        let behind = self.first.get(&link.target).copied();
        let number = self.listed.insert(Listed { link, before: None, behind });
        self.first.insert(link.target, number);
        if let Some(behind) = behind {
            self.listed[behind].before = Some(number);
        }
        number
    }

    /// The link with this number.
    pub fn get(&self, number: LinkNumber) -> Option<&Link> {
        self.listed.get(number).map(|listed| &listed.link)
    }

    pub fn remove(&mut self, number: LinkNumber) {
        let Listed { link, before, behind } = self.listed.remove(number);
        match (before, behind) {
            (Some(before), _) => self.listed[before].behind = behind,
            (None, Some(behind)) => drop(self.first.insert(link.target, behind)),
            (None, None) => drop(self.first.remove(&link.target)),
        }
        if let Some(behind) = behind {
            self.listed[behind].before = before;
        }
    }

    /// The links to `target`.
    pub fn to(&self, target: u64) -> impl Iterator<Item = &Link> {
        let first = self.first.get(&target).copied();
        std::iter::successors(first, |number| self.listed[*number].behind)
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
            for (displacement, (target, which)) in steps.into_iter().enumerate() {
                let displacement = displacement as u64;
                // Target 0 represents a removal.
                if target > 0 {
                    let number = links.add(Link { displacement, target, unlinked: 0 });
                    alive.push((number, target, displacement));
                } else if !alive.is_empty() {
                    links.remove(alive.swap_remove(which.index(alive.len())).0);
                }
                for target in 1..4 {
                    let mut found: Vec<u64> = links.to(target).map(|link| link.displacement).collect();
                    let of_target = alive.iter().filter(|(_, its, _)| *its == target);
                    let mut wanted: Vec<u64> = of_target.map(|(.., displacement)| *displacement).collect();
                    found.sort_unstable();
                    wanted.sort_unstable();
                    prop_assert_eq!(found, wanted);
                }
            }
        }
    }
}
