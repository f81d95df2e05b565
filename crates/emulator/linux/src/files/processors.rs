//! /proc/cpuinfo, as the kernel of each architecture writes it. Source: Linux arch/loongarch/kernel/proc.c,
//! arch/x86/kernel/cpu/proc.c, arch/arm64/kernel/cpuinfo.c, arch/mips/kernel/proc.c.

use longma_guest::elf::Architecture;
use longma_guest::elf::stack::{ALL_CAPABILITIES, ARM_FEATURES};

use super::proc_files::cores_of;
use crate::Process;

/// The names of the bits of AT_HWCAP of LoongArch (hwcap.h).
const LOONGARCH_FEATURES: [&str; 13] = [
    "cpucfg", "lam", "ual", "fpu", "lsx", "lasx", "crc32", "complex", "crypto", "lvz", "lbt_x86", "lbt_arm",
    "lbt_mips",
];
/// The names of the bits of AT_HWCAP of AArch64 (hwcap.h).
const ARM_FEATURE_NAMES: [&str; 21] = [
    "fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid",
    "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp",
];

/// /proc/cpuinfo with the model's cores, or those available on the host.
pub(super) fn text(process: &Process) -> String {
    let count = cores_of(process);
    let each = |text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<String>();
    match process.architecture() {
        Architecture::LoongArch64 => {
            let capabilities = process.config.capabilities.unwrap_or(ALL_CAPABILITIES);
            let features = named(&LOONGARCH_FEATURES, capabilities);
            "system type\t\t: generic-loongson-machine\n\n".to_owned()
                + &each(&|core| loongson(core, &features))
        }
        Architecture::X86_64 => each(&|core| x86(core, count, &process.config.x86_flags)),
        Architecture::Aarch64 => each(&|core| arm(core, &named(&ARM_FEATURE_NAMES, ARM_FEATURES))),
        Architecture::Mips64 => {
            "system type\t\t: generic-loongson-machine\nmachine\t\t\t: generic\n".to_owned() + &each(&mips)
        }
    }
}

fn named(names: &[&str], bits: u64) -> String {
    let set: Vec<_> =
        (0..).zip(names).filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| *name).collect();
    set.join(" ")
}

/// A core of a 3A5000.
fn loongson(core: usize, features: &str) -> String {
    format!(
        "processor\t\t: {core}\npackage\t\t\t: 0\ncore\t\t\t: {core}\nglobal_id\t\t: {core}\n\
         CPU Family\t\t: Loongson-64bit\nModel Name\t\t: Loongson-3A5000\nCPU Revision\t\t: 0x11\n\
         FPU Revision\t\t: 0x00\nCPU MHz\t\t\t: 2500.00\nBogoMIPS\t\t: 5000.00\nTLB Entries\t\t: 2112\n\
         Address Sizes\t\t: 48 bits physical, 48 bits virtual\nISA\t\t\t: loongarch32 loongarch64\n\
         Features\t\t: {features}\nHardware Watchpoint\t: yes, iwatch count: 8, dwatch count: 8\n\n"
    )
}

/// A core that answers `cpuid` as the x86-64 front end does.
fn x86(core: usize, count: usize, flags: &str) -> String {
    let level = if flags.contains(" avx") { 13 } else { 1 };
    format!(
        "processor\t: {core}\nvendor_id\t: GenuineIntel\ncpu family\t: 15\nmodel\t\t: 96\n\
         model name\t: LoongArch, which executes x86-64 code\nstepping\t: 1\ncpu MHz\t\t: 2500.000\n\
         physical id\t: 0\nsiblings\t: {count}\ncore id\t\t: {core}\ncpu cores\t: {count}\napicid\t\t: {core}\n\
         initial apicid\t: {core}\nfpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {level}\nwp\t\t: yes\n\
         flags\t\t: {flags}\nbugs\t\t:\nbogomips\t: 5000.00\nclflush size\t: 64\ncache_alignment\t: 64\n\
         address sizes\t: 48 bits physical, 48 bits virtual\npower management:\n\n"
    )
}

/// A Cortex-A76, as MIDR_EL1 says.
fn arm(core: usize, features: &str) -> String {
    format!(
        "processor\t: {core}\nBogoMIPS\t: 200.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n\
         CPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: 0xd0b\nCPU revision\t: 1\n\n"
    )
}

fn mips(core: usize) -> String {
    format!(
        "processor\t\t: {core}\ncpu model\t\t: ICT Loongson-3 V0.13  FPU V0.1\nBogoMIPS\t\t: 5000.00\n\
         isa\t\t\t: mips1 mips2 mips3 mips4 mips5 mips32r1 mips32r2 mips64r1 mips64r2\npackage\t\t\t: 0\n\
         core\t\t\t: {core}\n\n"
    )
}
