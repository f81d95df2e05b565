//! The initial contents of the main thread's stack: arguments, environment, auxiliary vector. Source: getauxval(3),
//! Linux fs/binfmt_elf.c (order); LoongArch arch/loongarch/include/uapi/asm/{auxvec,hwcap}.h.

use longma_loongarch::Fault;

use super::Architecture;
use crate::GuestMemory;

/// HWCAP_LOONGARCH_: CPUCFG, LAM, UAL, FPU, LSX, LASX, CRC32, LBT for x86, Arm and MIPS.
pub const ALL_CAPABILITIES: u64 = 0b1_1100_0111_1111;

/// EDX of `cpuid` leaf 1, which AT_HWCAP contains on x86: FPU, TSC, CX8, CMOV, CLFSH, MMX, FXSR, SSE, SSE2.
const X86_FEATURES: u64 = 1 | 1 << 4 | 1 << 8 | 1 << 15 | 1 << 19 | 1 << 23 | 1 << 24 | 1 << 25 | 1 << 26;
/// AT_HWCAP2 of x86: HWCAP2_FSGSBASE.
const X86_FEATURES_2: u64 = 1 << 1;
/// HWCAP_ of AArch64, as on a Cortex-A76: FP, ASIMD, AES, PMULL, SHA1, SHA2, CRC32, ATOMICS, FPHP, ASIMDHP, CPUID,
/// ASIMDRDM, LRCPC, DCPOP, ASIMDDP.
pub const ARM_FEATURES: u64 = 0b11 | 0b1_1111_1111 << 3 | 1 << 12 | 0b11 << 15 | 1 << 20;

/// The bytes of AT_RANDOM if they must be equal in all runs: the first fraction bits of pi.
pub const CONSTANT_RANDOM: [u8; 16] = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344_u128.to_be_bytes();

/// The size of the whole area is a multiple of this.
const AREA_BYTES: u64 = 64 << 10;
/// The size of the pointer area is a multiple of this.
const POINTERS_BYTES: u64 = 4 << 10;
/// The bytes of AT_RANDOM and the string of AT_PLATFORM.
const FIXED_BYTES: u64 = 16 + 10;
const AUXILIARY_ENTRIES: usize = 21;
/// At least one entry is left out for each architecture.
const AUXILIARY_BYTES: u64 = (AUXILIARY_ENTRIES as u64 - 1) * 16;

/// The properties of a program that the auxiliary vector contains.
#[derive(Clone, Debug)]
pub struct ProgramFacts {
    /// The architecture.
    pub architecture: Architecture,
    /// The address of the program headers.
    pub headers: u64,
    /// The number of program headers.
    pub headers_count: u16,
    /// The load address of the dynamic linker; 0 if there is none.
    pub interpreter_base: u64,
    /// The address of the first instruction.
    pub entry: u64,
    /// The address of the vDSO.
    pub vdso: u64,
    /// AT_HWCAP of LoongArch64 and MIPS64.
    pub capabilities: u64,
    /// The bytes of AT_RANDOM.
    pub random: [u8; 16],
    /// User, effective user, group and effective group.
    pub ids: [u64; 4],
}

/// The addresses of the stack's contents.
#[derive(Clone, Debug)]
pub struct StackContents {
    /// The initial stack pointer.
    pub pointer: u64,
    /// The auxiliary vector as bytes, for /proc/self/auxv.
    pub auxiliary: Vec<u8>,
    /// The address range of the arguments, for /proc/self/stat.
    pub arguments: (u64, u64),
    /// The address range of the environment.
    pub environment: (u64, u64),
}

/// The strings passed to a program.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The arguments.
    pub arguments: &'a [Vec<u8>],
    /// The environment.
    pub environment: &'a [Vec<u8>],
    /// The string of AT_EXECFN.
    pub path: &'a [u8],
}

impl Texts<'_> {
    /// The size of the strings with terminators, other data and pointers.
    pub fn bytes(&self) -> u64 {
        let texts = self.arguments.iter().chain(self.environment).map(|text| text.len() as u64 + 1 + 8);
        texts.sum::<u64>() + self.path.len() as u64 + 1 + FIXED_BYTES
    }

    /// The sizes of the pointer area and of the whole area.
    fn sizes(&self) -> (u64, u64) {
        let pointer_count = (self.arguments.len() + self.environment.len()) as u64;
        let pointers = (AUXILIARY_BYTES + (pointer_count + 3) * 8).next_multiple_of(POINTERS_BYTES);
        (pointers, (pointers + self.bytes()).next_multiple_of(AREA_BYTES))
    }

    /// The initial use of the stack in bytes.
    pub fn area_bytes(&self) -> u64 {
        self.sizes().1
    }
}

/// Writes the initial stack below `top`.
///
/// The contents are in an area whose size is a multiple of [`AREA_BYTES`]: pointers begin at its start, and strings
/// [`POINTERS_BYTES`] above it. The stack pointer and the addresses of arguments therefore do not depend on the length
/// of the program's name or of a variable.
///
/// # Errors
/// It does not fit.
pub fn build(
    memory: &GuestMemory,
    top: u64,
    texts: Texts,
    program: &ProgramFacts,
) -> Result<StackContents, Fault> {
    let (pointers, area) = texts.sizes();
    let pointer = top.saturating_sub(area) & !15;
    let addresses = StringAddresses::write(memory, pointer + pointers, texts, program)?;
    let auxiliary = auxiliary(program, &addresses);
    let mut words = vec![addresses.arguments.len() as u64];
    words.extend(&addresses.arguments);
    words.push(0);
    words.extend(&addresses.environment);
    words.push(0);
    let mut block: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    block.extend(&auxiliary);
    memory.write(pointer, &block)?;
    let environment = addresses.environment.first().copied().unwrap_or(addresses.path);
    let arguments = addresses.arguments.first().copied().unwrap_or(environment);
    let (arguments, environment) = ((arguments, environment), (environment, addresses.path));
    Ok(StackContents { pointer, auxiliary, arguments, environment })
}

/// The addresses of the strings and of other data.
struct StringAddresses {
    random: u64,
    platform: u64,
    arguments: Vec<u64>,
    environment: Vec<u64>,
    path: u64,
}

impl StringAddresses {
    /// Writes the strings and other data upwards from `at`.
    fn write(memory: &GuestMemory, mut at: u64, texts: Texts, program: &ProgramFacts) -> Result<Self, Fault> {
        let mut push = |bytes: &[u8], zero: bool| -> Result<u64, Fault> {
            let start = at;
            memory.write(at, bytes)?;
            at += bytes.len() as u64;
            if zero {
                memory.store(at, 0u8)?;
                at += 1;
            }
            Ok(start)
        };
        let random = push(&program.random, false)?;
        let platform = push(program.architecture.platform(), true)?;
        let mut strings = |texts: &[Vec<u8>]| -> Result<Vec<u64>, Fault> {
            texts.iter().map(|text| push(text, true)).collect()
        };
        let (arguments, environment) = (strings(texts.arguments)?, strings(texts.environment)?);
        Ok(Self { random, platform, arguments, environment, path: push(texts.path, true)? })
    }
}

/// Encodes the auxiliary vector.
fn auxiliary(program: &ProgramFacts, addresses: &StringAddresses) -> Vec<u8> {
    let [user, effective_user, group, effective_group] = program.ids;
    let capabilities = match program.architecture {
        Architecture::X86_64 => X86_FEATURES,
        Architecture::Aarch64 => ARM_FEATURES,
        Architecture::LoongArch64 | Architecture::Mips64 => program.capabilities,
    };
    let auxiliary: [(u64, u64); AUXILIARY_ENTRIES] = [
        (libc::AT_SYSINFO_EHDR, program.vdso),
        (libc::AT_HWCAP, capabilities),
        (libc::AT_HWCAP2, X86_FEATURES_2),
        (libc::AT_PAGESZ, program.architecture.page_bytes()),
        (libc::AT_CLKTCK, 100),
        (libc::AT_PHDR, program.headers),
        (libc::AT_PHENT, 56),
        (libc::AT_PHNUM, program.headers_count.into()),
        (libc::AT_BASE, program.interpreter_base),
        (libc::AT_FLAGS, 0),
        (libc::AT_ENTRY, program.entry),
        (libc::AT_UID, user),
        (libc::AT_EUID, effective_user),
        (libc::AT_GID, group),
        (libc::AT_EGID, effective_group),
        (libc::AT_SECURE, 0),
        (libc::AT_RANDOM, addresses.random),
        (libc::AT_PLATFORM, addresses.platform),
        (libc::AT_EXECFN, addresses.path),
        // AT_MINSIGSTKSZ: the kernel's constant for LoongArch. AArch64's translated frame is placed below it.
        (51, if program.architecture == Architecture::Aarch64 { 4096 + 8192 } else { 4096 }),
        (libc::AT_NULL, 0),
    ];
    // Other architectures have no vDSO. MIPS64 has no platform name, and no AT_HWCAP bits for release 2.
    let applies = |key| match program.architecture {
        Architecture::LoongArch64 => key != libc::AT_HWCAP2,
        Architecture::X86_64 => key != libc::AT_SYSINFO_EHDR,
        Architecture::Aarch64 => !matches!(key, libc::AT_SYSINFO_EHDR | libc::AT_HWCAP2),
        Architecture::Mips64 => {
            !matches!(key, libc::AT_SYSINFO_EHDR | libc::AT_PLATFORM | libc::AT_HWCAP | libc::AT_HWCAP2)
        }
    };
    auxiliary
        .iter()
        .filter(|(key, _)| applies(*key))
        .flat_map(|(key, value)| [key.to_le_bytes(), value.to_le_bytes()])
        .flatten()
        .collect()
}

/// The host's user and group ids, real and effective.
pub fn host_ids() -> [u64; 4] {
    // SAFETY: these calls take no arguments and cannot fail.
    unsafe { [libc::getuid(), libc::geteuid(), libc::getgid(), libc::getegid()] }.map(u64::from)
}

/// Random bytes from the host.
pub fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    // Without randomness on the host, zeros only weaken the guest's stack protector. SAFETY: the buffer has 16 bytes.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes
}
