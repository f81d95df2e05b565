//! How large the first thread's stack may be: RLIMIT_STACK, at the start and when a program changes it.
//! Not what lies on the stack.
//! Source: getrlimit(2), execve(2) (limits on size of arguments and environment), Linux arch/loongarch/mm/mmap.c (mmap_base).

use longma_guest::Errno;
use longma_guest::host::{main_stack, resources};
use longma_guest::{AddressSpace, MapRequest, PAGE_BYTES, Placement, Protection, page_up};

use super::special;
use crate::ProcessConfig;
use crate::stack::{StackContents, Texts};

/// The limit on nearly every Linux, and in simulated runs, whose results depend on no setting of the user's.
pub(crate) const DEFAULT_BYTES: u64 = 8 << 20;
/// More than any ulimit in use; a quarter of the smallest address space.
const MOST_BYTES: u64 = 1 << 36;
/// What stays free below the stack (the kernel's stack_guard_gap, 256 pages).
const GUARD_BYTES: u64 = 256 * PAGE_BYTES;
/// Room for the stack that Linux keeps free of other mappings at least (MIN_GAP), so that a program can raise its limit.
const LEAST_ROOM_BYTES: u64 = 128 << 20;
/// A quarter of the stack may hold arguments and environment, but never less nor more than these (ARG_MAX, 3/4 of _STK_LIM).
const ARGUMENT_BYTES: std::ops::RangeInclusive<u64> = 128 << 10..=6 << 20;

/// The limit that a program begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackLimit {
    /// The limit, no more than [`MOST_BYTES`].
    bytes: u64,
    /// It is the same whatever the user's limit, and so is what depends on it.
    is_constant: bool,
}

impl StackLimit {
    /// The limit of a program that is about to be loaded.
    pub fn of(config: &ProcessConfig) -> Self {
        let kept = config.limits.iter().find(|limit| limit.resource == resources::STACK);
        let bytes = match (config.stack_bytes, kept) {
            (0, Some(limit)) => limit.soft,
            (0, None) if config.constant_surroundings => DEFAULT_BYTES,
            (0, None) => main_stack::limit_bytes(),
            (given, _) => given,
        };
        // A program that has set a limit for the next one has no setting of the user's.
        Self { bytes: bytes.min(MOST_BYTES), is_constant: config.constant_surroundings && kept.is_none() }
    }

    /// How many bytes of arguments and environment a program may get, each text's zero and pointer included.
    pub fn most_argument_bytes(self) -> u64 {
        (self.bytes / 4).clamp(*ARGUMENT_BYTES.start(), *ARGUMENT_BYTES.end())
    }

    /// Maps the stack at the top of what the program has and gives its end; `texts` and `offset` bytes will be put at its top.
    pub fn map(
        self,
        space: &mut AddressSpace,
        texts: &Texts,
        offset: u64,
        executable: bool,
    ) -> Result<u64, Errno> {
        let top = space.top();
        let protection = Protection { read: true, write: true, execute: executable };
        let wanted = self.mapped_bytes(texts, offset).ok_or(Errno(libc::ENOMEM))?;
        // A host that never promises more memory than it has may refuse a very large one.
        let bytes = match map(space, top - wanted..top, protection) {
            Ok(()) => wanted,
            Err(error) if wanted <= DEFAULT_BYTES => return Err(error),
            Err(_) => map(space, top - DEFAULT_BYTES..top, protection).map(|()| DEFAULT_BYTES)?,
        };
        let room = if self.is_constant { bytes } else { bytes.max(LEAST_ROOM_BYTES) };
        space.set_top(top - room - GUARD_BYTES);
        Ok(top)
    }

    /// What is aligned for the sake of repeatable results is not at the program's expense.
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

/// Lets the stack have `bytes` bytes, as far as what lies below it permits: a program has raised its limit. What it has it keeps.
pub(crate) fn raise(space: &AddressSpace, contents: &StackContents, bytes: u64) {
    let Some((stack, mapping)) = space.mapping(contents.pointer) else { return };
    let texts_bytes = contents.environment.1.saturating_sub(contents.arguments.0);
    let start = (contents.pointer + texts_bytes).saturating_sub(bytes.min(MOST_BYTES));
    let start = space.page_down(start).max(space.top() + GUARD_BYTES);
    if start < stack.start && space.is_free(start - GUARD_BYTES..stack.start) {
        // A host without memory leaves the stack as it is, which is what a fault in it would come to.
        let _ = map(space, start..stack.start, mapping.protection);
    }
}
