//! Host prefetching of tags and directory entries for sequential accesses. The tags of a large cache and the directory
//! rarely fit into the host's caches. Has no effect on modelled state.

use super::MemorySystem;
use super::probe::bits;
use crate::cache::Line;

/// Distance, in lines, at which tags are prefetched.
const TAGS_AHEAD_LINES: i64 = 4;

/// Distance, in lines, at which directory entries are prefetched. Larger than the distance for tags, because the
/// directory names the caches whose tags to prefetch.
const DIRECTORY_AHEAD_LINES: i64 = 8;

impl MemorySystem {
    /// Prefetches the host data that will be needed beyond the private caches for the lines after `line` in `direction`
    /// (1 or -1), for a core in `domain`.
    #[inline]
    pub(super) fn prefetch_host_beyond_cores(&self, domain: usize, line: Line, direction: i64) {
        let ahead = |lines: i64| Line(line.0.wrapping_add_signed(direction * lines));
        let near_lines = ahead(TAGS_AHEAD_LINES);
        let mut holders = 1 << domain;
        if let Some(home) = &self.home {
            home.prefetch_host(ahead(DIRECTORY_AHEAD_LINES));
            holders |= home.get(near_lines).mask();
        }
        for holder in bits(holders) {
            self.domains[holder].shared.iter().for_each(|shared| shared.tags.prefetch_host(near_lines));
        }
    }
}
