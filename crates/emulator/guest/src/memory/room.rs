//! How many more mappings the host gives the process: a guest that uses them up is told so before the emulator has none left for itself.
//! Not a limit of the guest's own, and not exact: some thousand of the host's mappings stay out of a guest's reach.
//! Source: mmap(2) (ENOMEM: the process's maximum number of mappings), proc_sys_vm(5) (max_map_count), proc_pid_maps(5).

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::AddressSpace;
use super::mappings::Mappings;
use crate::Errno;
use crate::host::locks::Lazy;

/// Mappings kept for the emulator: its allocator, its translated code, its threads' stacks.
const KEPT: usize = 2048;

/// What the emulator has already, as long as nobody has counted: libraries, heaps, stacks.
const OWN: usize = 2048;

/// Most that a call adds: both of its ends cut a mapping, and the rest of a file's last page becomes one of its own.
const MOST_ADDED: usize = 4;

/// Most that a page which is protected because of its code adds.
const CUTS_OF_A_PAGE: usize = 2;

/// What is known of the host's mappings. Changed under the map's lock, or by one too many: it may be a little wrong.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Cuts by advice and locks, which the map does not show.
    cuts: AtomicUsize,
    /// How many more the guest may make before they are counted anew.
    left: AtomicUsize,
}

impl Room {
    /// Whether the guest may make a mapping, or cut one. `watched`: host pages that are protected because of their code.
    pub fn is_left(&self, map: &Mappings, watched: usize) -> bool {
        let Some(most) = *MOST else { return true };
        let known = map.pieces() + CUTS_OF_A_PAGE * watched + self.cuts.load(Ordering::Relaxed);
        if known + OWN + KEPT < most || self.take() {
            return true;
        }
        let Some(now) = count() else { return true };
        self.left.store(most.saturating_sub(KEPT + now), Ordering::Relaxed);
        self.take()
    }

    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(MOST_ADDED);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// The host may have cut a mapping at two places.
    pub fn cut(&self) {
        self.cuts.fetch_add(2, Ordering::Relaxed);
    }
}

/// The host's limit, if it says what it is.
static MOST: Lazy<Option<usize>> =
    Lazy::new(|| std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok());

/// The process's mappings: one a line. Nothing is allocated, since there may be no memory to be had.
fn count() -> Option<usize> {
    let mut maps = std::fs::File::open("/proc/self/maps").ok()?;
    let (mut lines, mut piece) = (0, [0; 4096]);
    loop {
        match maps.read(&mut piece).ok()? {
            0 => return Some(lines),
            read => lines += piece[..read].iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

impl AddressSpace {
    /// Refuses the guest one mapping more, or a cut through one, where only the emulator's are left.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn check_room(&self, map: &Mappings) -> Result<(), Errno> {
        let is_left = self.room.is_left(map, self.memory().0.code.count());
        if is_left { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// The same for advice or a lock that the host keeps with a part of a mapping.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn check_room_for_cut(&self) -> Result<(), Errno> {
        self.room.cut();
        self.check_room(&self.read())
    }
}
