//! binfmt_misc rules: the magic bytes of each architecture's ELF files and the interpreter that runs them.
//! Source: Linux Documentation/admin-guide/binfmt-misc.rst; ELF-64 Object File Format 1.5; `e_machine` values in Linux
//! include/uapi/linux/elf-em.h.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// Maximum length of an interpreter path, in bytes. linux/binfmts.h (BINPRM_BUF_SIZE) bounds the whole rule as well.
const MAX_PATH_BYTES: usize = 127;
/// Maximum length of a dynamic linker's path, in bytes (PATH_MAX).
const MAX_LINKER_BYTES: u64 = 4096;

/// Header bits to compare: class, byte order, version, type and machine. Ignored are the OS ABI and its version (MIPS
/// uses several), and the bit that separates ET_EXEC from ET_DYN, so that position-independent executables match too.
const MASK: [u8; 20] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xff,
    0xff, 0xff,
];

/// An architecture whose programs longma runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Architecture {
    Loongarch64,
    Aarch64,
    Mips64el,
    #[value(name = "x86_64", alias = "x86-64")]
    X86_64,
}

impl Architecture {
    /// All architectures.
    pub const ALL: &[Self] = &[Self::Loongarch64, Self::Aarch64, Self::Mips64el, Self::X86_64];

    /// True if this command was built for the architecture.
    pub fn is_host(self) -> bool {
        self == Self::X86_64
    }

    /// Low byte of `e_machine`.
    const fn machine(self) -> u8 {
        match self {
            // 258: `magic` adds the high byte.
            Self::Loongarch64 => 2,
            Self::Aarch64 => 183,
            Self::Mips64el => 8,
            Self::X86_64 => 62,
        }
    }

    /// The first 20 bytes of the architecture's ELF files.
    fn magic(self) -> [u8; 20] {
        let mut magic = [0; 20];
        magic[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (magic[16], magic[18]) = (2, self.machine());
        magic[19] = u8::from(self == Self::Loongarch64);
        magic
    }

    /// The name of the architecture's rule.
    pub fn rule_name(self) -> String {
        format!("longma-{self}")
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("each has a name").get_name())
    }
}

/// A binfmt_misc rule.
#[derive(Clone, Debug)]
pub struct Rule {
    pub architecture: Architecture,
    pub interpreter: PathBuf,
    fixed: bool,
}

impl Rule {
    /// Makes a rule that runs programs of `architecture` with `interpreter`. The kernel opens a `fixed` interpreter at
    /// registration.
    ///
    /// # Errors
    /// Fails if the kernel would reject the path; the text states the reason.
    pub fn new(architecture: Architecture, interpreter: &Path, fixed: bool) -> Result<Self, String> {
        let Some(path) = interpreter.to_str() else {
            return Err(format!("{} is not valid UTF-8, which a rule must be", interpreter.display()));
        };
        if path.contains([':', '\n']) {
            return Err(format!(
                "{path} contains a colon or a line break, which separate the fields of rules"
            ));
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(format!("{path} is longer than the kernel's limit of {MAX_PATH_BYTES} bytes"));
        }
        Ok(Self { architecture, interpreter: interpreter.into(), fixed })
    }

    /// The rule's name.
    pub fn name(&self) -> String {
        self.architecture.rule_name()
    }
}

/// Checks that `path` is an executable ELF file. The kernel accepts any file at registration, and running a program
/// then fails. A script does not work either: the kernel does not set AT_FLAGS for it.
///
/// # Errors
/// Returns a description of the problem.
pub fn check_interpreter(path: &Path) -> Result<(), String> {
    let rejected = |what: &str| Err(format!("{} {what}", path.display()));
    let about = match path.metadata() {
        Ok(about) if about.is_file() => about,
        Ok(_) => return rejected("is not a regular file"),
        Err(_) => return Err(format!("there is no file {}", path.display())),
    };
    if about.permissions().mode() & 0o111 == 0 {
        return rejected("cannot be executed");
    }
    let mut begin = [0; 4];
    match File::open(path).and_then(|mut file| file.read_exact(&mut begin)) {
        Ok(()) if begin == *b"\x7fELF" => Ok(()),
        Ok(()) => rejected("is not an ELF executable"),
        Err(error) => rejected(&format!("cannot be read: {error}")),
    }
}

/// Checks that `path` needs no dynamic linker. The kernel keeps a fixed interpreter open, but looks its dynamic linker up
/// in the root of each program, so in a chroot without that linker every program fails with ENOENT.
///
/// # Errors
/// Returns a description of the problem, with advice.
pub fn check_static(path: &Path) -> Result<(), String> {
    match dynamic_linker(path) {
        Ok(None) => Ok(()),
        Ok(Some(linker)) => Err(format!(
            "{} needs {linker}, which roots without it lack: --fixed needs a static longma, which `./test static` \
             builds in a clone; register without --fixed for this root only",
            path.display()
        )),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// The dynamic linker that a 64-bit ELF file names (PT_INTERP); `None` for a static one. Source: elf(5).
fn dynamic_linker(path: &Path) -> io::Result<Option<String>> {
    const PT_INTERP: u32 = 3;
    let file = File::open(path)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0)?;
    let (table, entry_bytes, entries) = (number(&head[32..40]), number(&head[54..56]), number(&head[56..58]));
    for index in 0..entries {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.saturating_add(index * entry_bytes))?;
        if number(&entry[..4]) == u64::from(PT_INTERP) {
            let mut name = vec![0; number(&entry[32..40]).min(MAX_LINKER_BYTES) as usize];
            file.read_exact_at(&mut name, number(&entry[8..16]))?;
            return Ok(Some(
                String::from_utf8_lossy(&name).trim_end_matches('\0').escape_debug().to_string(),
            ));
        }
    }
    Ok(None)
}

/// The line to write to `register` or to a file in /etc/binfmt.d. Flag P passes the program's argv[0].
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        let (magic, mask) = (escaped(&self.architecture.magic()), escaped(&MASK));
        let flags = if self.fixed { "PF" } else { "P" };
        write!(f, ":{}:M::{magic}:{mask}:{}:{flags}", self.name(), self.interpreter.display())
    }
}

/// True if the rule with this status text matches programs of `architecture`.
pub fn is_for(status: &str, architecture: Architecture) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let bytes = |text: &str| -> Option<Vec<u8>> {
        let digits = text.as_bytes().chunks(2);
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
    };
    let Some(magic) = field("magic ").and_then(bytes) else { return false };
    let mask = field("mask ").and_then(bytes).unwrap_or_else(|| vec![0xff; magic.len()]);
    let own = architecture.magic();
    // A rule with a shorter magic does not check the machine number, so it matches several architectures.
    field("offset ").is_none_or(|offset| offset == "0")
        && magic.len() == own.len()
        && magic.iter().zip(&mask).zip(own).all(|((magic, mask), own)| magic & mask == own & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_magic_and_mask() {
        let rule = Rule::new(Architecture::Aarch64, Path::new("/usr/bin/longma"), false).unwrap();
        let zeros = "\\x00".repeat(9);
        let ones = "\\xff".repeat(7);
        assert_eq!(
            rule.to_string(),
            format!(
                ":longma-aarch64:M::\\x7f\\x45\\x4c\\x46\\x02\\x01\\x01{zeros}\\x02\\x00\\xb7\\x00:{ones}\\x00\\x00{ones}\\xfe\\xff\\xff\\xff:/usr/bin/longma:P"
            )
        );
    }

    #[test]
    fn paths_that_break_a_rule_are_rejected() {
        for path in ["/a:b", "/a\nb", &format!("/{}", "a".repeat(127))] {
            assert!(Rule::new(Architecture::Aarch64, Path::new(path), false).is_err(), "{path}");
        }
    }

    #[test]
    fn rules_of_other_programs_are_matched_by_architecture() {
        let status = |machine: &str| {
            let (magic, mask) = (format!("7f454c46020101{}0200{machine}00", "00".repeat(9)), "ff".repeat(20));
            format!("enabled\ninterpreter /usr/bin/qemu\nflags: \noffset 0\nmagic {magic}\nmask {mask}\n")
        };
        assert!(is_for(&status("b7"), Architecture::Aarch64));
        assert!(!is_for(&status("b7"), Architecture::Mips64el));
        assert!(!is_for("enabled\ninterpreter /usr/bin/wine\nextension .exe\n", Architecture::X86_64));
        assert!(!is_for("enabled\nmagic 7f4\n", Architecture::X86_64));
    }
}
