//! Call stacks of guest threads, from the call frame information of the files that the process has mapped, or from frame
//! pointers where there is none. Source: DWARF 5, section 6.4 (call frame information); System V ABI, AMD64 supplement,
//! section 3.2.2; Procedure Call Standard for the Arm 64-bit Architecture, section 6.4.6; LoongArch psABI.

use std::{collections::HashMap, ops::Range, path::Path, sync::Arc};

use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindSection};
use longma_guest::elf::Architecture;
use longma_linux::Process;
use longma_loongarch::State;
use object::{Object, ObjectSection};

use crate::symbols::{Symbols, read_whole};

/// Deeper stacks are cut at the outermost frames.
const MAX_FRAMES: usize = 256;
/// The number of registers with DWARF numbers that can be needed, including x86-64's return address.
pub(crate) const REGISTERS: usize = 33;
/// x86-64's return address as a register.
const X86_RETURN_ADDRESS: usize = 16;

type Section = EhFrame<gimli::EndianArcSlice<LittleEndian>>;

/// The general registers of a thread by DWARF number, and its program counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    pub values: [u64; REGISTERS],
    pub pc: u64,
}

impl Registers {
    /// The registers of a LoongArch program.
    pub fn of(state: &State) -> Self {
        let value = |number| if number < 32 { state.r(number as u8) } else { 0 };
        Self { values: std::array::from_fn(value), pc: state.pc }
    }
}

/// The call frame information of a file.
struct Frames {
    section: Section,
    bases: BaseAddresses,
    /// Sorted: the addresses that an entry describes, and its offset in the section.
    entries: Vec<(Range<u64>, gimli::EhFrameOffset)>,
}

/// Executable mappings: guest addresses, their difference from the addresses in the file, and the file's information.
type Mapped = Vec<(Range<u64>, u64, Option<Arc<Frames>>)>;

/// Finds callers.
pub(crate) struct Unwinder {
    architecture: Architecture,
    mapped: Mapped,
    files: HashMap<String, Option<Arc<Frames>>>,
    context: Box<gimli::UnwindContext<usize>>,
}

/// The DWARF numbers of an architecture's stack pointer, frame pointer and return address.
fn special(architecture: Architecture) -> [usize; 3] {
    match architecture {
        Architecture::X86_64 => [7, 6, X86_RETURN_ADDRESS],
        Architecture::Aarch64 => [31, 29, 30],
        Architecture::Mips64 => [29, 30, 31],
        Architecture::LoongArch64 => [3, 22, 1],
    }
}

impl Unwinder {
    pub fn new(architecture: Architecture) -> Self {
        let (mapped, files, context) = (Vec::new(), HashMap::new(), Box::default());
        Self { architecture, mapped, files, context }
    }

    /// The program counters of a thread's frames, the innermost first. Addresses in callers are return addresses.
    pub fn stack(&mut self, process: &Process, mut registers: Registers) -> Vec<u64> {
        let mut stack = vec![registers.pc];
        while stack.len() < MAX_FRAMES {
            let [stack_pointer, ..] = special(self.architecture);
            let old = registers.values[stack_pointer];
            let is_innermost = stack.len() == 1;
            let Some(caller) = self.caller(process, &registers, is_innermost) else { break };
            let has_moved = caller.values[stack_pointer] > old
                || is_innermost && caller.values[stack_pointer] == old && caller.pc != registers.pc;
            if !has_moved || self.find(process, caller.pc.wrapping_sub(1)).is_none() {
                break;
            }
            stack.push(caller.pc);
            registers = caller;
        }
        stack
    }

    /// The mapping that contains an address.
    fn find(&mut self, process: &Process, address: u64) -> Option<(u64, Option<Arc<Frames>>)> {
        for attempt in 0..2 {
            let next = self.mapped.partition_point(|(range, ..)| range.end <= address);
            if let Some((_, bias, frames)) =
                self.mapped.get(next).filter(|(range, ..)| range.contains(&address))
            {
                return Some((*bias, frames.clone()));
            }
            let is_mapped = process
                .address_space()
                .mappings()
                .iter()
                .any(|(range, mapping)| range.contains(&address) && mapping.protection.execute);
            if attempt == 1 || !is_mapped {
                break;
            }
            self.refresh(process);
        }
        None
    }

    /// Reads the current mappings of the process.
    fn refresh(&mut self, process: &Process) {
        let symbols = Symbols::of(process);
        let files = &mut self.files;
        self.mapped = symbols
            .executable()
            .map(|(range, bias, path)| {
                let frames = path.and_then(|path| {
                    let read = || {
                        let file = process.open_guest_path(Path::new(path)).ok()?;
                        Frames::of(&read_whole(file)?).map(Arc::new)
                    };
                    files.entry(path.to_owned()).or_insert_with(read).clone()
                });
                (range, bias, frames)
            })
            .collect();
    }

    fn caller(&mut self, process: &Process, registers: &Registers, is_innermost: bool) -> Option<Registers> {
        // A return address may be the start of the next function, if the called function does not return.
        let pc = if is_innermost { registers.pc } else { registers.pc.wrapping_sub(1) };
        let (bias, frames) = self.find(process, pc)?;
        frames
            .and_then(|frames| self.by_information(process, registers, &frames, pc.wrapping_sub(bias)))
            .or_else(|| self.by_frame_pointer(process, registers))
            .or_else(|| {
                // A function without a frame, in a file without information.
                let [_, _, return_address] = special(self.architecture);
                let pc = registers.values[return_address];
                let has_register = self.architecture != Architecture::X86_64;
                (is_innermost && has_register).then_some(Registers { pc, ..*registers })
            })
    }

    fn by_information(
        &mut self,
        process: &Process,
        registers: &Registers,
        frames: &Frames,
        address: u64,
    ) -> Option<Registers> {
        let at = frames.entries.partition_point(|(range, _)| range.end <= address);
        let (_, offset) = frames.entries.get(at).filter(|(range, _)| range.contains(&address))?;
        let entry = frames.section.fde_from_offset(&frames.bases, *offset, EhFrame::cie_from_offset).ok()?;
        let row =
            entry.unwind_info_for_address(&frames.section, &frames.bases, &mut self.context, address).ok()?;
        let value = |number: u16| registers.values.get(usize::from(number)).copied();
        let [stack_pointer, _, return_address] = special(self.architecture);
        let frame = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                value(register.0)?.wrapping_add_signed(*offset)
            }
            // A procedure linkage table: the entry pushes an index with its second instruction.
            CfaRule::Expression(_) if self.architecture == Architecture::X86_64 => {
                value(7)? + if address & 15 >= 11 { 16 } else { 8 }
            }
            CfaRule::Expression(_) => return None,
        };
        let load = |address| process.memory().load::<u64>(address).ok();
        let mut caller = *registers;
        for (number, to) in (0u16..).zip(&mut caller.values) {
            match row.register(gimli::Register(number)) {
                Some(RegisterRule::Offset(offset)) => *to = load(frame.wrapping_add_signed(offset))?,
                Some(RegisterRule::ValOffset(offset)) => *to = frame.wrapping_add_signed(offset),
                Some(RegisterRule::Register(other)) => *to = value(other.0)?,
                // The outermost frame has no return address.
                Some(RegisterRule::Undefined) if usize::from(number) == return_address => return None,
                _ => {}
            }
        }
        caller.values[stack_pointer] = frame;
        caller.pc = caller.values[return_address];
        Some(caller)
    }

    fn by_frame_pointer(&self, process: &Process, registers: &Registers) -> Option<Registers> {
        let [stack_pointer, frame_pointer, _] = special(self.architecture);
        let frame = registers.values[frame_pointer];
        // Where the saved frame pointer and the return address are, and the caller's stack pointer.
        let (saved, returned, end) = match self.architecture {
            Architecture::X86_64 | Architecture::Aarch64 => {
                (frame, frame.checked_add(8)?, frame.checked_add(16)?)
            }
            Architecture::LoongArch64 => (frame.checked_sub(16)?, frame.checked_sub(8)?, frame),
            Architecture::Mips64 => return None,
        };
        if saved < registers.values[stack_pointer] || !frame.is_multiple_of(8) {
            return None;
        }
        let load = |address| process.memory().load::<u64>(address).ok();
        let mut caller = Registers { pc: load(returned)?, ..*registers };
        caller.values[frame_pointer] = load(saved)?;
        caller.values[stack_pointer] = end;
        Some(caller)
    }
}

impl Frames {
    /// The information in an ELF file; `None` if it has none.
    fn of(bytes: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        let found = file.section_by_name(".eh_frame")?;
        let data = Arc::from(found.data().ok()?);
        let section = EhFrame::from(gimli::EndianArcSlice::new(data, LittleEndian));
        let text = file.section_by_name(".text").map_or(0, |text| text.address());
        let bases = BaseAddresses::default().set_eh_frame(found.address()).set_text(text);
        let mut entries = Vec::new();
        let mut all = section.entries(&bases);
        while let Ok(Some(entry)) = all.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(entry) = partial.parse(EhFrame::cie_from_offset) else { continue };
            let end = entry.initial_address().saturating_add(entry.len());
            entries.push((entry.initial_address()..end, gimli::EhFrameOffset(entry.offset())));
        }
        entries.sort_by_key(|(range, _)| range.start);
        (!entries.is_empty()).then_some(Self { section, bases, entries })
    }
}
