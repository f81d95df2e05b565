//! What the host is told that it will read soon, line after line: a large cache's tags and a directory are rarely in its own nearest cache.
//! Not anything that is modelled.

use super::MemorySystem;
use super::probe::bits;
use crate::cache::Line;

/// The tags of the line so many further on are asked for from the host's memory while one is dealt with.
const TAGS_AHEAD_LINES: i64 = 4;

/// And what the directory says of the one so many further on, which says in whose tags to look.
const DIRECTORY_AHEAD_LINES: i64 = 8;

impl MemorySystem {
    /// Has the host bring nearer what lies beyond the cores of `domain` of lines that will be accessed behind `line`, in `direction` (1 or -1).
    #[inline]
    pub(super) fn expect_beyond_cores(&self, domain: usize, line: Line, direction: i64) {
        let ahead = |lines: i64| Line(line.0.wrapping_add_signed(direction * lines));
        let soon = ahead(TAGS_AHEAD_LINES);
        let mut holders = 1 << domain;
        if let Some(home) = &self.home {
            home.expect(ahead(DIRECTORY_AHEAD_LINES));
            holders |= home.get(soon).mask();
        }
        for holder in bits(holders) {
            self.domains[holder].shared.iter().for_each(|shared| shared.tags.expect(soon));
        }
    }
}
