//! The translator of a system. It translates regions inside one page, so that a region depends on the contents of one
//! physical page only.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use longma_loongarch::Instruction;

use super::Frame;
use crate::block::{Block, BlockEnds};
use crate::jit::allocation::Allocation;
use crate::jit::emit::origin::OriginSupport;
use crate::jit::emit::{self, EmitContext};
use crate::jit::listing::{CodeSlice, SingleRunProfile};
use crate::jit::region::{Region, successors};
use crate::jit::side_entry;
use crate::jit::{CodeCache, MAX_REGION_BYTES, Trampolines};
use crate::origin::Origin;
use crate::register_accesses::RegisterAccesses;

/// The owner's function for an instruction that translated code does not execute. It receives the frame, whose program
/// counter points to the instruction, and the data that the owner supplied for the instruction during translation. It
/// returns 0 if execution continues after the instruction; the registers in the frame are then the new ones. Otherwise
/// translated code is left.
pub type CallOut = extern "sysv64" fn(*mut Frame, *const ()) -> u32;

/// Why translated code returned. The program counter is at the next instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// No host code is known for the program counter.
    Unknown,
    /// The budget is smaller than the next block.
    Budget,
    /// The call-out function returned a value other than 0.
    Owner,
}

/// The code of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageCode<'a> {
    /// The virtual address of the page.
    pub start: u64,
    /// Its instruction words.
    pub words: &'a [u32],
}

/// A translated region.
pub struct Translated {
    /// Its host code.
    pub host: u64,
    /// The other blocks of the region, by guest address.
    pub inner: Vec<(u64, InnerBlock)>,
}

/// A block inside a region. [`SystemTranslator::enter_inside`] makes host code that enters the region there.
#[derive(Clone)]
pub struct InnerBlock {
    allocation: Rc<Allocation>,
    host: u64,
}

/// Translated code of the cores of a system. Host code stays valid until [`SystemTranslator::clear`].
pub struct SystemTranslator {
    cache: CodeCache,
    trampolines: Trampolines,
    call_out: CallOut,
}

impl SystemTranslator {
    /// Creates a translator with `cache_bytes` bytes for host code. `None` if the host's processor lacks instructions
    /// that translated code uses.
    ///
    /// # Errors
    /// The host cannot provide executable memory.
    pub fn new(cache_bytes: usize, call_out: CallOut) -> io::Result<Option<Self>> {
        if !crate::shared_code::host_supports_translation() {
            return Ok(None);
        }
        let mut cache = CodeCache::reserve(cache_bytes.max(2 * MAX_REGION_BYTES))?;
        let trampolines = write(&mut cache, call_out);
        Ok(Some(Self { cache, trampolines, call_out }))
    }

    /// Whether the cache has no space for another region.
    pub fn is_full(&self) -> bool {
        self.cache.free_bytes() < MAX_REGION_BYTES
    }

    /// Removes all host code. No frame may enter or jump to it any more.
    pub fn clear(&mut self) {
        self.cache.clear();
        self.trampolines = write(&mut self.cache, self.call_out);
    }

    /// Translates the region of `page` that starts at `pc`: the blocks for which `has_run` is true. Returns `None` if
    /// the first word is not a valid instruction or the cache is full.
    ///
    /// `call_out` returns the address of the data for an instruction that the owner executes. Its second argument is
    /// the number of instructions that follow in the block. The budget has then already been reduced by them.
    pub fn translate(
        &mut self,
        page: PageCode<'_>,
        pc: u64,
        has_run: impl Fn(u64) -> bool,
        call_out: &mut dyn FnMut(&Instruction, u32) -> u64,
    ) -> Option<Translated> {
        if self.is_full() {
            return None;
        }
        let code = CodeSlice { start: page.start, words: page.words };
        let mut blocks = BTreeMap::new();
        let mut pending = vec![pc];
        while let Some(start) = pending.pop() {
            if blocks.contains_key(&start) || start != pc && !has_run(start) {
                continue;
            }
            let Ok(block) = Block::decode(start, &code, BlockEnds::default(), |_| {}) else { continue };
            pending.extend(successors(block.end));
            blocks.insert(start, block);
        }
        let region = Region::form(pc, &SingleRunProfile(blocks), |_| 0);
        region.blocks.binary_search_by_key(&pc, |block| block.start).ok()?;
        let emitted = emit::emit(
            &region,
            EmitContext {
                trampolines: self.trampolines,
                based: false,
                counting: None,
                metered: false,
                tracing: None,
                registers: &RegisterAccesses::default(),
                system: Some(call_out),
                origin: OriginSupport::supported_by_host(Origin::LoongArch),
            },
        );
        let start = self.cache.insert(&emitted.code).start;
        let allocation = Rc::new(emitted.allocation);
        let inside = |(pc, position): (u64, usize)| {
            (pc, InnerBlock { allocation: Rc::clone(&allocation), host: start + position as u64 })
        };
        let inner = emitted.blocks.into_iter().filter(|(start, _)| *start != pc).map(inside).collect();
        Some(Translated { host: start + emitted.entry as u64, inner })
    }

    /// Makes host code that enters a region at a block inside it. `None` if the cache is full.
    pub fn enter_inside(&mut self, block: &InnerBlock) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        Some(self.cache.insert(&side_entry::write(&block.allocation, block.host, None)).start)
    }

    /// The code that enters translated code.
    pub fn entry(&self) -> Entry {
        Entry(self.trampolines.enter)
    }
}

/// The code that enters translated code. It is valid as long as the translator exists.
#[derive(Clone, Copy, Debug)]
pub struct Entry(u64);

impl Entry {
    /// Runs host code until it returns.
    ///
    /// # Safety
    /// The translator still exists, and has returned `host` since it was last cleared. The pointers of `frame` are
    /// valid. Each entry that can match has an addend that leads to an accessible host page, and its page still has the
    /// code that was translated.
    pub unsafe fn run(self, frame: *mut Frame, host: u64) -> Exit {
        use crate::cpu::ExitReason;
        type Enter = unsafe extern "sysv64" fn(*mut u8, u64) -> u32;
        // SAFETY: the address is that of the trampoline `enter`, which has exactly this signature and preserves the
        // callee-saved registers. The trampoline takes the frame's address plus `BASE_BIAS`, which is inside the frame.
        // The caller ensures that `host` and the frame's entries are valid.
        let reason = unsafe {
            let enter = std::mem::transmute::<u64, Enter>(self.0);
            enter(frame.cast::<u8>().add(crate::jit::BASE_BIAS as usize), host)
        };
        match reason {
            reason if reason == ExitReason::Attention as u32 => Exit::Budget,
            reason if reason == ExitReason::Trap as u32 => Exit::Owner,
            _ => Exit::Unknown,
        }
    }
}

fn write(cache: &mut CodeCache, call_out: CallOut) -> Trampolines {
    Trampolines::write_for_system(&mut |code| cache.insert(code).start, call_out as *const () as u64)
}
