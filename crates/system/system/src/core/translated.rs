//! Runs code that has been translated to host code. Translated code executes exactly the instructions that the
//! interpreter would: it leaves where the core must check for interrupts, and calls back for all instructions that it
//! does not contain.

use std::cell::{Cell, RefCell};
use std::io;

use longma_core::system::{Entry, Exit, Frame, PageCode, SystemTranslator};

use super::Core;
use super::code::{Block, CodePage, DecodedInstruction, Host};
use crate::memory::PAGE_BYTES;

/// The capacity of the code cache in bytes. When it is used up, all host code is removed.
const CACHE_BYTES: usize = 32 << 20;

/// The number of entries after which a block is translated.
const HOT: u32 = 150;

/// Instructions in a page.
const WORDS: usize = PAGE_BYTES as usize / 4;

/// The translated code that all cores share.
pub struct Translation {
    translator: RefCell<SystemTranslator>,
    entry: Cell<Entry>,
    #[expect(clippy::vec_box, reason = "translated code contains the addresses of the values")]
    call_outs: RefCell<Vec<Box<CallOutData>>>,
    /// Counts the removals of all host code. Host addresses of earlier epochs are invalid.
    epoch: Cell<u64>,
    regions: Cell<u64>,
}

/// An instruction that translated code calls back for. Translated code contains the address of this value.
struct CallOutData {
    step: DecodedInstruction,
    /// The physical page of the instruction.
    page: u64,
    /// The number of instructions that follow in the block.
    following: u32,
}

impl Translation {
    /// Creates a translator without translated code. `None` if the host's processor is not able to run it.
    ///
    /// # Errors
    /// The host has no memory for code.
    pub fn new() -> io::Result<Option<Self>> {
        let translator = SystemTranslator::new(CACHE_BYTES, call_out)?;
        Ok(translator.map(|translator| Self {
            entry: Cell::new(translator.entry()),
            translator: RefCell::new(translator),
            call_outs: RefCell::default(),
            epoch: Cell::new(1),
            regions: Cell::new(0),
        }))
    }

    /// The number of regions translated so far.
    pub fn regions(&self) -> u64 {
        self.regions.get()
    }

    /// Removes all host code. No core may run it any more.
    pub fn clear(&self) {
        let mut translator = self.translator.borrow_mut();
        translator.clear();
        self.entry.set(translator.entry());
        self.call_outs.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
    }
}

impl Core {
    /// Counts an entry to a block. Returns whether it should be translated.
    #[inline]
    pub(super) fn count_run(&self, block: &Block) -> bool {
        let runs = block.runs.get().saturating_add(1);
        block.runs.set(runs);
        runs > HOT && self.can_translate()
    }

    /// Whether translated code may run. It does not check alignment.
    fn can_translate(&self) -> bool {
        self.bus.translation.is_some() && self.alignment.get() == 0
    }

    /// The host code for the program counter `pc` in `page`, which is translated if it has run often enough.
    pub(super) fn host_code(&self, frame: &mut Frame, page: &CodePage, pc: u64) -> Option<u64> {
        let translation = self.bus.translation.as_ref().filter(|_| self.can_translate())?;
        let host = match page.host(pc, translation.epoch.get()) {
            Some(Host::At(host)) => host,
            Some(Host::Nothing) => return None,
            Some(Host::Inside(_)) if self.make_space(translation) => return None,
            Some(Host::Inside(block)) => {
                let host = translation.translator.borrow_mut().enter_inside(&block)?;
                page.set_host(pc, translation.epoch.get(), Host::At(host));
                host
            }
            None => {
                let index = (pc % PAGE_BYTES / 4) as usize;
                if page.block(index, |address| self.word(address)).runs.get() < HOT {
                    return None;
                }
                let host = self.translate_code(translation, page, pc);
                page.set_host(pc, translation.epoch.get(), host.map_or(Host::Nothing, Host::At));
                host?
            }
        };
        frame.stamp = self.stamp();
        frame.add_jump(pc, host);
        Some(host)
    }

    /// Removes all host code if the memory for it is full. Returns whether it did.
    fn make_space(&self, translation: &Translation) -> bool {
        let is_full = translation.translator.borrow().is_full();
        if is_full {
            translation.clear();
            self.announce_code();
        }
        is_full
    }

    fn translate_code(&self, translation: &Translation, page: &CodePage, pc: u64) -> Option<u64> {
        self.make_space(translation);
        let mut bytes = [0; PAGE_BYTES as usize];
        // The page was memory when it was decoded, and the memory ranges never change.
        self.bus.memory.read(page.address, &mut bytes).ok()?;
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let start = pc & !(PAGE_BYTES - 1);
        let has_run = |at: u64| {
            let index = at.wrapping_sub(start) / 4;
            index < WORDS as u64 && page.has_block(index as usize)
        };
        let mut call_outs = translation.call_outs.borrow_mut();
        let translated = translation.translator.borrow_mut().translate(
            PageCode { start, words: &words },
            pc,
            has_run,
            &mut |instruction, following| {
                let step = DecodedInstruction::of(*instruction);
                let data = Box::new(CallOutData { step, page: page.address, following });
                let address = std::ptr::from_ref(&*data).expose_provenance();
                call_outs.push(data);
                address as u64
            },
        )?;
        for (pc, block) in translated.inner {
            page.set_host(pc, translation.epoch.get(), Host::Inside(block));
        }
        translation.regions.set(translation.regions.get() + 1);
        Some(translated.host)
    }

    /// Identifies the mapping of virtual addresses: the generation and the mode. Never 0.
    pub(super) fn stamp(&self) -> u64 {
        self.generation.get() << 3 | self.mode.get() as u64
    }

    /// Runs host code, which [`Core::host_code`] has just returned, until it leaves.
    pub(super) fn run_translated(&self, frame: &mut Frame, host: u64) -> Exit {
        let Some(translation) = &self.bus.translation else { return Exit::Budget };
        let (until, mode) = (self.until.get(), self.mode.get());
        frame.budget = until.saturating_sub(self.clock.get());
        frame.generation = self.entry_generation.get();
        frame.units = self.units().into();
        frame.readable = self.readable.entries(mode);
        frame.writable = self.writable.entries(mode);
        frame.owner = std::ptr::from_ref(self).cast();
        let frame = std::ptr::from_mut(frame);
        // SAFETY: `host` is not older than the last removal of host code, which happens only in `translate_code`. The
        // entries exist as long as this core, and each refers to a page of guest memory. Changed code and a changed
        // mapping of addresses begin a new generation, so that translated code leaves and no stamp matches.
        let exit = unsafe { translation.entry.get().run(frame, host) };
        // SAFETY: the pointer comes from a reference.
        let budget = unsafe { (*frame).budget };
        self.clock.set(until.wrapping_sub(budget));
        exit
    }

    /// Executes an instruction for translated code. Returns whether translated code must be left.
    fn call_out(&self, frame: &mut Frame, data: &CallOutData) -> bool {
        let (until, following) = (self.until.get(), u64::from(data.following));
        self.clock.set(until.wrapping_sub(frame.budget).wrapping_sub(following + 1));
        let may_continue = self.execute_step(&mut frame.state, data.page, &data.step);
        let clock = self.clock.get();
        frame.budget = until.wrapping_sub(clock);
        // If the core must check its state, `until` is now 0.
        if !may_continue || data.step.sets_program_counter || clock + following > self.until.get() {
            return true;
        }
        frame.budget -= following;
        false
    }
}

/// See [`longma_core::system::CallOut`].
extern "sysv64" fn call_out(frame: *mut Frame, data: *const ()) -> u32 {
    // SAFETY: `run_translated` has set the owner, and no other code uses the frame during a call from translated code.
    // The data live until host code is removed, which does not happen while it runs.
    unsafe {
        let core = &*(*frame).owner.cast::<Core>();
        u32::from(core.call_out(&mut *frame, &*data.cast::<CallOutData>()))
    }
}
