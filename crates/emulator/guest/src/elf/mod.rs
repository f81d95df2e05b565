//! Parses and validates ELF executables and maps them into guest memory. Source: ELF-64 Object File Format 1.5;
//! LoongArch ELF psABI 2.40, section "ELF header".

mod arm;
mod error;
mod load;
mod mips;
pub mod stack;
mod vdso;
mod x86;

pub use error::{ElfError, Reason, SUPPORTED_ARCHITECTURES};
pub use load::{Loaded, load};
pub use vdso::{SIGNAL_RETURN_OFFSET, vdso_image};

use crate::words::{u16_at, u32_at, u64_at, words_of};
use crate::{HOST_PAGE_BYTES, PAGE_BYTES, Protection};

/// EM_LOONGARCH.
const MACHINE: u16 = 258;
/// EM_MIPS.
const MACHINE_MIPS: u16 = 8;
/// ET_EXEC.
const TYPE_EXECUTABLE: u16 = 2;
/// ET_DYN.
const TYPE_DYNAMIC: u16 = 3;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// The maximum number of program headers: Linux accepts a table of up to 64 KiB (fs/binfmt_elf.c).
const MAX_PROGRAM_HEADERS: u16 = 1170;
/// The maximum length of an interpreter path, including its terminator (PATH_MAX).
const MAX_INTERPRETER_BYTES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PT_GNU_STACK: u32 = 0x6474_e551;

/// Random access to the bytes of an ELF file.
pub trait Source {
    /// Fills `buffer` with the bytes at `offset`. Returns false if the file ends first.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<bool>;

    /// The file size in bytes.
    ///
    /// # Errors
    /// The metadata of the file cannot be read.
    fn size(&self) -> std::io::Result<u64>;
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<bool> {
        let bytes = usize::try_from(offset).ok().and_then(|start| self.get(start..)?.get(..buffer.len()));
        if let Some(bytes) = bytes {
            buffer.copy_from_slice(bytes);
        }
        Ok(bytes.is_some())
    }

    fn size(&self) -> std::io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl Source for std::fs::File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<bool> {
        match std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn size(&self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// The instruction set of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// The native instruction set of the emulator, which is executed without translation.
    #[default]
    LoongArch64,
    /// Little-endian MIPS64 up to release 2 with the n64 ABI; translated.
    Mips64,
    /// x86-64 with the System V ABI; translated.
    X86_64,
    /// Little-endian AArch64 with the LP64 ABI; translated.
    Aarch64,
}

impl Architecture {
    /// Determines the instruction set from an ELF header and checks that it is supported.
    fn of(header: &[u8; HEADER_BYTES]) -> Result<Self, ElfError> {
        let (class, order) = (header[4], header[5]);
        let architecture = if mips::is_for_mips(header) {
            mips::check(header).map_err(ElfError::Mips)?;
            Self::Mips64
        } else if x86::is_for_x86(header) {
            x86::check(header).map_err(ElfError::X86)?;
            Self::X86_64
        } else if arm::is_for_arm(header) {
            arm::check(header).map_err(ElfError::Arm)?;
            Self::Aarch64
        } else {
            Self::LoongArch64
        };
        if (class, order) != (2, 1) {
            return Err(ElfError::Class { class, order });
        }
        let machine = u16_at(header, 18);
        if machine != MACHINE && architecture == Self::LoongArch64 {
            return Err(ElfError::Machine(machine));
        }
        Ok(architecture)
    }

    /// The page size in bytes.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::X86_64 | Self::Aarch64 => HOST_PAGE_BYTES,
            Self::LoongArch64 | Self::Mips64 => PAGE_BYTES,
        }
    }

    /// The number of equal parts into which the address space is divided. The program uses the lowest part, and the
    /// translator the others.
    pub fn address_space_parts(self) -> u64 {
        match self {
            Self::LoongArch64 => 1,
            Self::Mips64 | Self::Aarch64 => 2,
            // x86 instructions are unaligned, so the translator's lookup table has an entry for each byte of the
            // program.
            Self::X86_64 => 8,
        }
    }

    /// The e_machine value of the ELF header.
    pub fn machine(self) -> u16 {
        match self {
            Self::LoongArch64 => MACHINE,
            Self::Mips64 => MACHINE_MIPS,
            Self::X86_64 => x86::MACHINE_X86_64,
            Self::Aarch64 => arm::MACHINE_AARCH64,
        }
    }

    /// The length of the system call instruction in bytes.
    pub fn syscall_bytes(self) -> u64 {
        if self == Self::X86_64 { 2 } else { 4 }
    }

    /// The size in bytes of the red zone below the stack pointer.
    pub fn red_zone_bytes(self) -> u64 {
        if self == Self::X86_64 { 128 } else { 0 }
    }

    /// The AT_PLATFORM string.
    pub fn platform(self) -> &'static [u8] {
        match self {
            Self::X86_64 => b"x86_64",
            Self::Aarch64 => b"aarch64",
            Self::LoongArch64 | Self::Mips64 => b"loongarch",
        }
    }

    /// Whether programs are translated to LoongArch64 before execution.
    pub fn is_translated(self) -> bool {
        self != Self::LoongArch64
    }
}

/// A loadable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first address, before the load bias.
    pub address: u64,
    /// Its size in memory.
    pub memory_bytes: u64,
    /// The number of bytes that come from the file; the rest is zero.
    pub file_bytes: u64,
    /// The offset of its contents in the file.
    pub offset: u64,
    /// Its access permissions.
    pub protection: Protection,
}

/// The validated headers of an ELF executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The instruction set.
    pub architecture: Architecture,
    /// The entry point, before the load bias.
    pub entry: u64,
    /// Whether it can be loaded at any address (ET_DYN).
    pub relocatable: bool,
    /// The loadable segments, in ascending order and without overlap.
    pub segments: Vec<Segment>,
    /// The path of the dynamic linker, if it needs one.
    pub interpreter: Option<Vec<u8>>,
    /// The address of the program headers, before the load bias; 0 if no segment contains them.
    pub headers_address: u64,
    /// The number of program headers.
    pub headers_count: u16,
    /// Whether it needs an executable stack.
    pub executable_stack: bool,
    /// The largest alignment of its segments in bytes.
    pub alignment: u64,
}

/// Reads the ELF header and checks the magic.
fn file_header(file: &(impl Source + ?Sized)) -> Result<[u8; HEADER_BYTES], ElfError> {
    let mut magic = [0; 4];
    if !file.read_at(0, &mut magic)? {
        return Err(match file.size()? {
            0 => ElfError::NoBytes,
            bytes => ElfError::Short(bytes),
        });
    }
    if magic != *b"\x7fELF" {
        return Err(ElfError::Magic(magic));
    }
    let mut header = [0; HEADER_BYTES];
    if !file.read_at(0, &mut header)? {
        let (what, needs) = ("the ELF header", HEADER_BYTES as u64);
        return Err(ElfError::Truncated { what, offset: 0, needs });
    }
    Ok(header)
}

/// Checks the header fields other than class, byte order and machine.
fn check_fields(header: &[u8; HEADER_BYTES], architecture: Architecture) -> Result<(), ElfError> {
    let kind = u16_at(header, 16);
    if kind != TYPE_EXECUTABLE && kind != TYPE_DYNAMIC {
        return Err(ElfError::Type(kind));
    }
    let field = |what, value, why| Err(ElfError::Field { what, value, why });
    let entry_bytes = u16_at(header, 54);
    if usize::from(entry_bytes) != PROGRAM_HEADER_BYTES {
        return field("the size of a program header (e_phentsize)", entry_bytes.into(), "not 0x38");
    }
    let count = u16_at(header, 56);
    if count == 0 || count > MAX_PROGRAM_HEADERS {
        return field("the number of program headers (e_phnum)", count.into(), "not within 1..=1170");
    }
    // 1 is soft-float, 2 single-float, 3 double-float. All three run on a machine with an FPU.
    let abi = u32_at(header, 48) & 7;
    if abi > 3 && architecture == Architecture::LoongArch64 {
        return field("the ABI (e_flags)", abi.into(), "not one of LP64S, LP64F, LP64D");
    }
    Ok(())
}

impl Image {
    /// Reads and checks an ELF file. `limit` is the first address that the program may not use; a translated program
    /// gets only its [share](Architecture::share) of that range.
    ///
    /// # Errors
    /// The file is damaged or is not a supported program.
    pub fn parse(file: &(impl Source + ?Sized), limit: u64) -> Result<Self, ElfError> {
        let header = file_header(file)?;
        let architecture = Architecture::of(&header)?;
        check_fields(&header, architecture)?;
        let count = u16_at(&header, 56);
        let offset = u64_at(&header, 32);
        let mut table = vec![0; usize::from(count) * PROGRAM_HEADER_BYTES];
        if !file.read_at(offset, &mut table)? {
            let needs = table.len() as u64;
            return Err(ElfError::Truncated { what: "the program headers", offset, needs });
        }
        let mut image = Self {
            architecture,
            entry: u64_at(&header, 24),
            relocatable: u16_at(&header, 16) == TYPE_DYNAMIC,
            segments: Vec::new(),
            interpreter: None,
            headers_address: 0,
            headers_count: count,
            executable_stack: false,
            alignment: architecture.page_bytes(),
        };
        let (size, limit) = (file.size()?, limit / architecture.address_space_parts());
        for (index, header) in table.chunks_exact(PROGRAM_HEADER_BYTES).enumerate() {
            image.read_header(file, size, limit, index, header)?;
        }
        if image.segments.is_empty() {
            return Err(ElfError::Empty);
        }
        if image.headers_address == 0 {
            let holder =
                image.segments.iter().find(|s| s.offset <= offset && offset - s.offset < s.file_bytes);
            image.headers_address = holder.map_or(0, |s| s.address + (offset - s.offset));
        }
        Ok(image)
    }

    fn read_header(
        &mut self,
        file: &(impl Source + ?Sized),
        size: u64,
        limit: u64,
        index: usize,
        header: &[u8],
    ) -> Result<(), ElfError> {
        let (kind, flags) = (u32_at(header, 0), u32_at(header, 4));
        let [offset, address, _, file_bytes, memory_bytes, alignment] = words_of(&header[8..]);
        match kind {
            PT_LOAD if memory_bytes > 0 || file_bytes > 0 => {
                let segment = Segment {
                    address,
                    memory_bytes,
                    file_bytes,
                    offset,
                    protection: Protection {
                        read: flags & 4 != 0,
                        write: flags & 2 != 0,
                        execute: flags & 1 != 0,
                    },
                };
                let end = address.saturating_add(memory_bytes);
                if let Some(why) = self.segment_problem(&segment, size, limit) {
                    return Err(ElfError::Segment { index, start: address, end, why });
                }
                if alignment.is_power_of_two() && alignment <= 1 << 30 {
                    self.alignment = self.alignment.max(alignment);
                }
                self.segments.push(segment);
            }
            PT_INTERP => {
                let what = "the interpreter's path (PT_INTERP)";
                if !(2..=MAX_INTERPRETER_BYTES).contains(&file_bytes) {
                    let why = "not a plausible length";
                    return Err(ElfError::Field { what, value: file_bytes, why });
                }
                let mut path = vec![0; file_bytes as usize];
                if !file.read_at(offset, &mut path)? {
                    return Err(ElfError::Truncated { what, offset, needs: file_bytes });
                }
                let end = path.iter().position(|&byte| byte == 0);
                path.truncate(end.ok_or(ElfError::Field {
                    what,
                    value: offset,
                    why: "not terminated by a zero",
                })?);
                self.interpreter = Some(path);
            }
            PT_PHDR => self.headers_address = address,
            PT_GNU_STACK => self.executable_stack = flags & 1 != 0,
            _ => {}
        }
        Ok(())
    }

    /// Why `segment` cannot follow the segments read so far, or `None` if it can. `size` is the file size in bytes.
    fn segment_problem(&self, segment: &Segment, size: u64, limit: u64) -> Option<Reason> {
        let Segment { address, memory_bytes, file_bytes, offset, .. } = *segment;
        let lowest = self.segments.last().map_or(0, |previous| previous.address + previous.memory_bytes);
        if file_bytes > memory_bytes {
            Some(Reason { what: "has more bytes in the file than in memory", advice: "the file is damaged" })
        } else if address
            .checked_add(memory_bytes)
            .and_then(|end| self.page_up(end))
            .is_none_or(|end| end > limit)
        {
            Some(Reason {
                what: "does not fit into the address space",
                advice: "link it at a lower address, or the file is damaged",
            })
        } else if file_bytes > 0 && offset.checked_add(file_bytes).is_none_or(|end| end > size) {
            Some(Reason { what: "needs more bytes than the file has", advice: "the file is truncated" })
        } else if address < lowest {
            Some(Reason {
                what: "overlaps the previous segment or is out of order",
                advice: "the file is damaged",
            })
        } else if address % self.page_bytes() != offset % self.page_bytes() && file_bytes > 0 {
            Some(if self.page_bytes() == PAGE_BYTES {
                Reason {
                    what: "has an address and a file offset that differ within a 16 KiB page",
                    advice: "link with -z max-page-size=0x4000",
                }
            } else {
                Reason {
                    what: "has an address and a file offset that differ within a page",
                    advice: "the file is damaged",
                }
            })
        } else if !self.relocatable && self.page_down(address) < 1 << 16 {
            Some(Reason {
                what: "is in the first 64 KiB, which are never mapped",
                advice: "link it at a higher address",
            })
        } else {
            None
        }
    }

    /// The page-aligned address range that covers all segments, before the load bias.
    pub fn span(&self) -> std::ops::Range<u64> {
        let end = self.segments.last().map_or(0, |last| last.address + last.memory_bytes);
        self.page_down(self.segments[0].address)..self.page_up(end).unwrap_or(end)
    }

    fn page_bytes(&self) -> u64 {
        self.architecture.page_bytes()
    }

    fn page_down(&self, address: u64) -> u64 {
        address & !(self.page_bytes() - 1)
    }

    fn page_up(&self, address: u64) -> Option<u64> {
        address.checked_add(self.page_bytes() - 1).map(|end| self.page_down(end))
    }
}
