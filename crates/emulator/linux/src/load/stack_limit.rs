//! The size of the main thread's stack: RLIMIT_STACK, at the start and when a program changes it. Source: getrlimit(2),
//! execve(2) (limits on size of arguments and environment), Linux arch/loongarch/mm/mmap.c (mmap_base).

use longma_guest::Errno;
use longma_guest::elf::stack::{StackContents, Texts};
use longma_guest::host::{main_stack, resources};
use longma_guest::{AddressSpace, MapRequest, PAGE_BYTES, Placement, Protection, page_up};

use super::special;
use crate::ProcessConfig;

/// The usual limit on Linux, and the limit in simulated runs, whose results must not depend on user settings.
pub(crate) const DEFAULT_BYTES: u64 = 8 << 20;
/// The maximum stack size: above practical limits, and a quarter of the smallest address space.
const MAX_BYTES: u64 = 1 << 36;
/// The gap below the stack (the kernel's stack_guard_gap, 256 pages).
const GUARD_BYTES: u64 = 256 * PAGE_BYTES;
/// The minimum range below the stack that stays free of other mappings (MIN_GAP), so that a program can raise its
/// limit.
const MIN_FREE_BYTES: u64 = 128 << 20;
/// The bounds for the size of arguments and environment, which is otherwise a quarter of the stack (ARG_MAX, 3/4 of
/// _STK_LIM).
const ARGUMENT_BYTES: std::ops::RangeInclusive<u64> = 128 << 10..=6 << 20;

/// The stack limit of a program at its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackLimit {
    /// The limit, at most [`MAX_BYTES`].
    bytes: u64,
    /// Whether the limit does not depend on the user's settings. Results derived from it are then equal in all runs.
    is_constant: bool,
}

impl StackLimit {
    /// The limit for a program to load.
    pub fn of(config: &ProcessConfig) -> Self {
        let stored = config.limits.iter().find(|limit| limit.resource == resources::STACK);
        let bytes = match (config.stack_bytes, stored) {
            (0, Some(limit)) => limit.soft,
            (0, None) if config.fixed_identity => DEFAULT_BYTES,
            (0, None) => main_stack::limit_bytes(),
            (given, _) => given,
        };
        // A limit that a program has set for the next one is not a user setting.
        Self { bytes: bytes.min(MAX_BYTES), is_constant: config.fixed_identity && stored.is_none() }
    }

    /// The maximum size of arguments and environment in bytes, including terminators and pointers.
    pub fn max_argument_bytes(self) -> u64 {
        (self.bytes / 4).clamp(*ARGUMENT_BYTES.start(), *ARGUMENT_BYTES.end())
    }

    /// Maps the stack at the top of the program's address range and returns its end. `texts` and `offset` bytes will be
    /// placed at its top.
    pub fn map(
        self,
        space: &mut AddressSpace,
        texts: &Texts,
        offset: u64,
        executable: bool,
    ) -> Result<u64, Errno> {
        let top = space.top();
        let protection = Protection { read: true, write: true, execute: executable };
        let mapped_bytes = self.mapped_bytes(texts, offset).ok_or(Errno(libc::ENOMEM))?;
        // A host that does not overcommit memory may refuse a very large stack.
        let bytes = match map(space, top - mapped_bytes..top, protection) {
            Ok(()) => mapped_bytes,
            Err(error) if mapped_bytes <= DEFAULT_BYTES => return Err(error),
            Err(_) => map(space, top - DEFAULT_BYTES..top, protection).map(|()| DEFAULT_BYTES)?,
        };
        let free_bytes = if self.is_constant { bytes } else { bytes.max(MIN_FREE_BYTES) };
        space.set_top(top - free_bytes - GUARD_BYTES);
        Ok(top)
    }

    /// The size to map. Alignment for reproducible results must not reduce the stack that the program may use.
    fn mapped_bytes(self, texts: &Texts, offset: u64) -> Option<u64> {
        if self.is_constant {
            return page_up(self.bytes);
        }
        let begins_with = texts.area_bytes();
        let beyond_texts = self.bytes.saturating_sub(texts.bytes()).max(PAGE_BYTES);
        page_up(beyond_texts + begins_with + offset)
    }
}

fn map(space: &AddressSpace, range: std::ops::Range<u64>, protection: Protection) -> Result<(), Errno> {
    let length = range.end - range.start;
    let mut request = MapRequest::anonymous(Placement::Fixed(range.start), length, protection);
    request.backing = special("[stack]");
    request.flags = libc::MAP_NORESERVE;
    space.map(&request).map(drop)
}

/// Extends the stack towards `bytes` bytes after a program has raised its limit, as far as mappings below permit. A
/// stack never shrinks.
pub(crate) fn raise(space: &AddressSpace, contents: &StackContents, bytes: u64) {
    let Some((stack, mapping)) = space.mapping(contents.pointer) else { return };
    let texts_bytes = contents.environment.1.saturating_sub(contents.arguments.0);
    let start = (contents.pointer + texts_bytes).saturating_sub(bytes.min(MAX_BYTES));
    let start = space.page_down(start).max(space.top() + GUARD_BYTES);
    if start < stack.start && space.is_free(start - GUARD_BYTES..stack.start) {
        // If the host has no memory, the stack stays unchanged; an access below it would fault in either case.
        let _ = map(space, start..stack.start, mapping.protection);
    }
}
