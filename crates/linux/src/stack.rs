//! The first thread's stack: arguments, environment, auxiliary vector.
//! Not its mapping.
//! Source: getauxval(3), Linux fs/binfmt_elf.c (order); LoongArch arch/loongarch/include/uapi/asm/{auxvec,hwcap}.h.

use longma_loongarch::Fault;

use crate::GuestMemory;
use crate::memory::PAGE_BYTES;

/// HWCAP_LOONGARCH_: CPUCFG, LAM, UAL, FPU, LSX, LASX, CRC32, LBT for x86, Arm and MIPS.
pub(crate) const ALL_CAPABILITIES: u64 = 0b1_1100_0111_1111;

/// What the auxiliary vector says of the program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramFacts {
    pub headers: u64,
    pub headers_count: u16,
    /// Where the interpreter was loaded; 0 if there is none.
    pub interpreter_base: u64,
    pub entry: u64,
    pub vdso: u64,
    pub capabilities: u64,
    /// AT_RANDOM's.
    pub random: [u8; 16],
}

/// What is on the stack, and where.
#[derive(Clone, Debug)]
pub(crate) struct StackContents {
    /// The initial stack pointer.
    pub pointer: u64,
    /// The auxiliary vector as bytes, for /proc/self/auxv.
    pub auxiliary: Vec<u8>,
    /// The addresses of the arguments, for /proc/self/stat.
    pub arguments: (u64, u64),
    /// The addresses of the environment.
    pub environment: (u64, u64),
}

/// Writes the initial stack below `top`.
///
/// # Errors
/// It does not fit.
pub(crate) fn build(
    memory: &GuestMemory,
    top: u64,
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    path: &[u8],
    program: &ProgramFacts,
) -> Result<StackContents, Fault> {
    let mut at = top - 8;
    let mut push = |bytes: &[u8], zero: bool| -> Result<u64, Fault> {
        at = at.saturating_sub(bytes.len() as u64 + u64::from(zero));
        memory.write(at, bytes)?;
        if zero {
            memory.store(at + bytes.len() as u64, 0u8)?;
        }
        Ok(at)
    };
    let path = push(path, true)?;
    let environment_end = path;
    let mut strings = |texts: &[Vec<u8>]| -> Result<Vec<u64>, Fault> {
        let mut addresses: Vec<u64> =
            texts.iter().rev().map(|text| push(text, true)).collect::<Result<_, _>>()?;
        addresses.reverse();
        Ok(addresses)
    };
    let environment = strings(environment)?;
    let environment_start = environment.first().copied().unwrap_or(environment_end);
    let arguments = strings(arguments)?;
    let arguments_start = arguments.first().copied().unwrap_or(environment_start);
    let platform = push(b"loongarch", true)?;
    let random = push(&program.random, false)?;

    // SAFETY: these calls have no arguments and cannot fail.
    let ids = unsafe { [libc::getuid(), libc::geteuid(), libc::getgid(), libc::getegid()] }.map(u64::from);
    let auxiliary: [(u64, u64); 20] = [
        (libc::AT_SYSINFO_EHDR, program.vdso),
        (libc::AT_HWCAP, program.capabilities),
        (libc::AT_PAGESZ, PAGE_BYTES),
        (libc::AT_CLKTCK, 100),
        (libc::AT_PHDR, program.headers),
        (libc::AT_PHENT, 56),
        (libc::AT_PHNUM, program.headers_count.into()),
        (libc::AT_BASE, program.interpreter_base),
        (libc::AT_FLAGS, 0),
        (libc::AT_ENTRY, program.entry),
        (libc::AT_UID, ids[0]),
        (libc::AT_EUID, ids[1]),
        (libc::AT_GID, ids[2]),
        (libc::AT_EGID, ids[3]),
        (libc::AT_SECURE, 0),
        (libc::AT_RANDOM, random),
        (libc::AT_PLATFORM, platform),
        (libc::AT_EXECFN, path),
        // AT_MINSIGSTKSZ: the kernel's constant for LoongArch.
        (51, 4096),
        (libc::AT_NULL, 0),
    ];
    let auxiliary: Vec<u8> = auxiliary
        .iter()
        .flat_map(|(key, value)| [key.to_le_bytes(), value.to_le_bytes()])
        .flatten()
        .collect();
    let mut words = vec![arguments.len() as u64];
    words.extend(&arguments);
    words.push(0);
    words.extend(&environment);
    words.push(0);
    let mut block: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    block.extend(&auxiliary);
    let pointer = random.saturating_sub(block.len() as u64) & !15;
    memory.write(pointer, &block)?;
    Ok(StackContents {
        pointer,
        auxiliary,
        arguments: (arguments_start, environment_start),
        environment: (environment_start, environment_end),
    })
}

/// Random bytes from the host.
pub(crate) fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    // SAFETY: the buffer has 16 bytes. Should the host have no randomness, zeros only weaken the guest's stack protector.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes
}
