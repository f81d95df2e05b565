//! The run loop of one guest thread: cold blocks are interpreted and counted, hot ones translated and run.
//! Not what happens at a trap: that is the caller's.
//! Source: our own.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_linux::GuestMemory;
use longma_loongarch::{Environment, Fault, State, Trap, decode, semantics};
use rustc_hash::FxHashMap;

use crate::{
    block::{Block, End},
    changes::{Change, Changes},
    counting::{Counters, Counting, Executed},
    cpu::{Cpu, ExitReason},
    guest::{ConfigurationWords, Guest},
    jit::{Translator, recovery::Registration, region::Profile},
    return_stack::ReturnStack,
};

/// A block is translated when it has run this often: below, interpreting costs less than translating.
const HOT: u32 = 30;

/// Why [`Core::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The instruction at the program counter trapped.
    Trap(Trap),
    /// The attention flag was raised.
    Attention,
}

/// What cores of one process count together.
#[derive(Debug, Default)]
pub struct Counts {
    /// Blocks decoded for interpretation.
    pub blocks: AtomicU64,
    /// Regions translated.
    pub regions: AtomicU64,
}

/// How a process is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Hot code is translated; otherwise everything is interpreted.
    pub translate: bool,
    /// Every run of a block is counted, see [`SharedCode::executed`].
    pub counting: bool,
}

impl Default for Execution {
    fn default() -> Self {
        Self { translate: true, counting: false }
    }
}

/// The translated code of a process and its counters; cores of the process share it.
#[derive(Clone)]
pub struct SharedCode {
    translator: Option<Arc<Translator>>,
    counting: Option<Arc<Counting>>,
    counts: Arc<Counts>,
    changes: Arc<Changes>,
    watch: Arc<dyn Watch>,
}

/// Notices writes to code.
pub trait Watch: Send + Sync {
    /// Code is about to be read from the host page at `address`: from now on, whoever writes there makes
    /// [`SharedCode::invalidate`] be called.
    fn watch(&self, address: u64);
}

impl SharedCode {
    /// Nothing translated yet. Where the host lacks what translated code needs (AVX2, FMA, BMI2), everything is interpreted.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn new(memory: &GuestMemory, execution: Execution, watch: Arc<dyn Watch>) -> io::Result<Self> {
        let counting = execution.counting.then(Arc::<Counting>::default);
        let based = !memory.base().is_null();
        let translator = if execution.translate && host_is_able() {
            Some(Arc::new(Translator::new(based, counting.clone())?))
        } else {
            None
        };
        Ok(Self { translator, counting, counts: Arc::default(), changes: Arc::default(), watch })
    }

    /// True if hot code is translated.
    pub fn translates(&self) -> bool {
        self.translator.is_some()
    }

    /// Every block that ran, if blocks are counted.
    pub fn executed(&self) -> Vec<Executed> {
        self.counting.as_ref().map(|c| c.executed()).unwrap_or_default()
    }

    /// The number of blocks that were translated, those of regions that have been forgotten since included.
    pub fn translated_blocks(&self) -> u64 {
        self.translator.as_ref().map_or(0, |translator| translator.translated_blocks())
    }

    /// What was counted so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Forgets what was translated from a range of guest addresses. Raise the attention flag of every core afterwards, so that they
    /// leave the old code.
    pub fn invalidate(&self, range: &Range<u64>) {
        let gone = self.translator.as_ref().map(|t| t.invalidate(range)).unwrap_or_default();
        self.changes.add(Change { range: range.clone(), gone });
    }

    /// Holds every lock until dropped: for a fork.
    pub fn quiesce(&self) -> impl Sized + '_ {
        self.translator.as_ref().map(|t| t.quiesce())
    }
}

fn host_is_able() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("sse4.2")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
}

/// One guest thread's core.
pub struct Core {
    // Dropped in this order: the registration points at the rest.
    _registration: Option<Registration>,
    cpu: Box<Cpu>,
    return_stack: ReturnStack,
    code: SharedCode,
    profile: BlockProfile,
    counters: Option<Arc<Counters>>,
    /// How many changes of code this core has taken note of.
    seen_changes: u64,
}

/// Blocks that ran, and how often.
#[derive(Default)]
struct BlockProfile {
    blocks: FxHashMap<u64, ProfiledBlock>,
}

struct ProfiledBlock {
    block: Block,
    semantics: Vec<semantics::Semantics<Guest>>,
    runs: u32,
    /// The block's counter, if blocks are counted.
    counter: Option<u32>,
}

impl Profile for BlockProfile {
    fn block(&self, pc: u64) -> Option<(&Block, u32)> {
        self.blocks.get(&pc).map(|found| (&found.block, found.runs))
    }
}

impl Core {
    /// A core that starts with `state`. Use it only on the host thread that made it.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn new(
        state: State,
        memory: GuestMemory,
        words: ConfigurationWords,
        code: SharedCode,
    ) -> io::Result<Self> {
        let return_stack = ReturnStack::allocate()?;
        let mut cpu = Cpu::new(state, Guest::new(memory, words));
        let counters = code.counting.as_ref().map(|c| c.add_thread()).transpose()?;
        cpu.counters = counters.as_ref().map_or(0, |c| c.address());
        cpu.return_stack = return_stack.top();
        cpu.return_stack_top = return_stack.top();
        let registration = code.translator.clone().map(|translator| {
            set_segment_base(cpu.guest.memory());
            // SAFETY: the box keeps `cpu` in place, and the registration is dropped before it.
            unsafe { Registration::new(&raw mut *cpu, translator, return_stack.guard()) }
        });
        Ok(Self {
            _registration: registration,
            cpu,
            return_stack,
            seen_changes: code.changes.count(),
            code,
            profile: BlockProfile::default(),
            counters,
        })
    }

    /// The registers and the attention flag.
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpu
    }

    /// Runs until something needs the caller.
    pub fn run(&mut self) -> Stop {
        loop {
            if self.cpu.attention.is_requested() {
                self.refresh();
                return Stop::Attention;
            }
            let reason = match self.host_code() {
                Some(host) => self.run_translated(host),
                None => self.interpret_block(),
            };
            if let Err(trap) = reason {
                return Stop::Trap(trap);
            }
        }
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> Option<Stop> {
        if self.cpu.attention.is_requested() {
            self.refresh();
            return Some(Stop::Attention);
        }
        self.interpret_one().err().map(Stop::Trap)
    }

    /// Drops host addresses and decoded blocks of code that has changed.
    fn refresh(&mut self) {
        if self.code.changes.count() == self.seen_changes {
            return;
        }
        let (changes, seen) = self.code.changes.since(self.seen_changes);
        self.seen_changes = seen;
        self.cpu.forget_returns();
        let Some(changes) = changes else {
            self.cpu.forget_jumps();
            self.profile.blocks.clear();
            return;
        };
        for change in changes {
            for &pc in &change.gone {
                self.cpu.forget_jump(pc);
            }
            self.profile.blocks.retain(|_, found| !found.block.overlaps(&change.range));
        }
    }

    fn host_code(&mut self) -> Option<u64> {
        let translator = self.code.translator.as_ref()?;
        if self.cpu.must_interpret() {
            return None;
        }
        let pc = self.cpu.state.pc;
        if self.cpu.return_stack != self.return_stack.top() {
            // SAFETY: the pointer lies in the return stack, at an entry of two words.
            let [host, guest] = unsafe { *(self.cpu.return_stack as *const [u64; 2]) };
            if guest == pc {
                self.cpu.return_stack += 8;
                return Some(host);
            }
        }
        let slot = Cpu::jump_slot(pc);
        let cached = self.cpu.jump_cache[slot];
        if cached.guest == pc {
            return Some(cached.host);
        }
        let host = translator.find(pc)?;
        self.cpu.jump_cache[slot] = crate::cpu::JumpCacheEntry { guest: pc, host };
        Some(host)
    }

    fn run_translated(&mut self, host: u64) -> Result<(), Trap> {
        let translator = self.code.translator.as_ref().expect("host code has a translator");
        self.cpu.load_rounding();
        let reason = translator.run(&mut self.cpu, host);
        self.cpu.collect_exceptions();
        match reason {
            ExitReason::Unlinked | ExitReason::Indirect | ExitReason::Attention => Ok(()),
            ExitReason::Interpret => self.interpret_one(),
            ExitReason::Syscall => Err(Trap::Syscall(0)),
            ExitReason::Trap => Err(self.cpu.trap.take().expect("translated code set it")),
        }
    }

    fn interpret_one(&mut self) -> Result<(), Trap> {
        let word = self.cpu.guest.fetch(self.cpu.state.pc)?;
        let instruction = decode(word).ok_or(Trap::IllegalInstruction)?;
        let cpu = &mut *self.cpu;
        semantics::execute(&mut cpu.state, &instruction, &cpu.guest)
    }

    fn interpret_block(&mut self) -> Result<(), Trap> {
        let pc = self.cpu.state.pc;
        let hot = match self.profile.blocks.get_mut(&pc) {
            Some(found) => {
                found.runs += 1;
                found.runs >= HOT && found.runs.is_power_of_two() || found.runs == HOT
            }
            None => {
                self.decode_block(pc)?;
                false
            }
        };
        if hot && !self.cpu.must_interpret() && self.translate(pc) {
            return Ok(());
        }
        let found = &self.profile.blocks[&pc];
        if let (Some(counters), Some(counter)) = (&self.counters, found.counter) {
            counters.count(counter);
        }
        let cpu = &mut *self.cpu;
        let instructions = &found.block.instructions;
        for (index, (instruction, semantics)) in instructions.iter().zip(&found.semantics).enumerate() {
            cpu.state.pc = found.block.pc(index);
            semantics(&mut cpu.state, instruction, &cpu.guest)?;
        }
        if !instructions.last().is_some_and(|last| last.op.is_control_flow()) {
            cpu.state.pc = found.block.pc(instructions.len());
        }
        if found.block.end == End::Invalid {
            return Err(Trap::IllegalInstruction);
        }
        Ok(())
    }

    fn decode_block(&mut self, pc: u64) -> Result<(), Fault> {
        let block = Block::decode(pc, &self.cpu.guest, |page| self.code.watch.watch(page))?;
        let semantics = block.instructions.iter().map(|i| semantics::semantics_of(i.op)).collect();
        let counter = self.code.counting.as_ref().and_then(|c| c.add_block(pc, block.instructions.len()));
        self.profile.blocks.insert(pc, ProfiledBlock { block, semantics, runs: 1, counter });
        self.code.counts.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// True if the code at `pc` can now be run translated.
    fn translate(&mut self, pc: u64) -> bool {
        let Some(translator) = &self.code.translator else { return false };
        let done = translator.translate(pc, &self.profile).is_some();
        self.code.counts.regions.fetch_add(u64::from(done), Ordering::Relaxed);
        done
    }
}

/// Lets translated code reach guest memory through GS, which nothing else in the process uses.
fn set_segment_base(memory: &GuestMemory) {
    if memory.base().is_null() {
        return;
    }
    const ARCH_SET_GS: i32 = 0x1001;
    // SAFETY: the x86-64 psABI gives GS to no one in user space; translated code is its only user here.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, memory.base()) };
}
