//! Builds the vDSO: the shared object that the kernel maps into each process. Its functions make the corresponding
//! system call. Unwinders recognize its signal trampoline. Source: vdso(7); Linux arch/loongarch/vdso/vdso.lds.S (names
//! and version LINUX_5.10); ELF gABI chapter 5 (hash table).

/// The offset of `__vdso_rt_sigreturn` in the image.
pub const SIGNAL_RETURN_OFFSET: u64 = TEXT as u64;

const TEXT: usize = 0x400;
/// The size of the ELF header and two program headers.
const HEADERS_BYTES: usize = 64 + 2 * 56;
/// The space for one function: up to three instructions and padding.
const FUNCTION_BYTES: usize = 16;

/// Name, system call number, and whether the function returns.
const FUNCTIONS: [(&str, u32, bool); 5] = [
    ("__vdso_rt_sigreturn", 139, false),
    ("__vdso_clock_gettime", 113, true),
    ("__vdso_clock_getres", 114, true),
    ("__vdso_gettimeofday", 169, true),
    ("__vdso_getcpu", 168, true),
];
const VERSION: &str = "LINUX_5.10";
const NAME: &str = "linux-vdso.so.1";

/// `ori a7, zero, number`
fn set_number(number: u32) -> u32 {
    0x0380_000b | number << 10
}
const SYSCALL: u32 = 0x002b_0000;
/// `jirl zero, ra, 0`
const RETURN: u32 = 0x4c00_0020;

/// Appends to the image. Each method that appends a table returns the offset of that table.
struct Writer {
    bytes: Vec<u8>,
}

/// The string table and the offsets of its strings.
struct Strings {
    bytes: Vec<u8>,
    functions: Vec<u32>,
    version: u32,
    object: u32,
}

/// The hash function of DT_HASH and of version records.
fn elf_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

/// The bytes of the image. It fits into one guest page and has no relocations.
pub fn vdso_image() -> Vec<u8> {
    let strings = Strings::new();
    // The headers are written last, when all offsets are known.
    let mut image = Writer { bytes: vec![0; HEADERS_BYTES] };
    let hash = image.hash_table();
    let symbols = image.symbols(&strings.functions);
    let versions = image.versions();
    let definitions = image.definitions(&strings);
    let string_table = image.align(8);
    image.bytes.extend(&strings.bytes);
    let dynamic = image.align(8);
    let entries = [
        [4, hash],
        [5, string_table],
        [6, symbols],
        [10, strings.bytes.len() as u64],
        [11, 24],
        [14, strings.object.into()],
        [0x6fff_fff0, versions],
        [0x6fff_fffc, definitions],
        [0x6fff_fffd, 2],
        [0, 0],
    ];
    entries.into_iter().for_each(|entry| image.u64s(entry));
    let dynamic_bytes = image.bytes.len() as u64 - dynamic;
    image.functions();
    let headers = headers(image.bytes.len() as u64, dynamic, dynamic_bytes);
    image.bytes[..HEADERS_BYTES].copy_from_slice(&headers);
    image.bytes
}

impl Strings {
    fn new() -> Self {
        let mut bytes = vec![0];
        let mut append = |text: &str| {
            let at = bytes.len() as u32;
            bytes.extend(text.bytes().chain([0]));
            at
        };
        let functions = FUNCTIONS.iter().map(|(name, ..)| append(name)).collect();
        let (version, object) = (append(VERSION), append(NAME));
        Self { bytes, functions, version, object }
    }
}

impl Writer {
    fn u16s<const N: usize>(&mut self, values: [u16; N]) {
        self.bytes.extend(values.into_iter().flat_map(u16::to_le_bytes));
    }
    fn u32s<const N: usize>(&mut self, values: [u32; N]) {
        self.bytes.extend(values.into_iter().flat_map(u32::to_le_bytes));
    }
    fn u64s<const N: usize>(&mut self, values: [u64; N]) {
        self.bytes.extend(values.into_iter().flat_map(u64::to_le_bytes));
    }
    fn align(&mut self, to: usize) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
        self.bytes.len() as u64
    }

    /// A hash table with one bucket that chains all symbols, which is enough for five names.
    fn hash_table(&mut self) -> u64 {
        let offset = self.align(8);
        let symbols = FUNCTIONS.len() as u32 + 1;
        self.u32s([1, symbols, 1, 0]);
        (1..symbols).for_each(|symbol| self.u32s([(symbol + 1) % symbols]));
        offset
    }

    fn symbols(&mut self, names: &[u32]) -> u64 {
        let offset = self.align(8);
        self.bytes.extend([0; 24]);
        for (index, name) in names.iter().enumerate() {
            self.u32s([*name]);
            // A global function with default visibility, in an existing section.
            self.bytes.extend([0x12, 0]);
            self.u16s([1]);
            self.u64s([TEXT + index * FUNCTION_BYTES, FUNCTION_BYTES].map(|word| word as u64));
        }
        offset
    }

    /// The version index of each symbol.
    fn versions(&mut self) -> u64 {
        let offset = self.align(8);
        self.u16s([0]);
        self.u16s(FUNCTIONS.map(|_| 2));
        offset
    }

    /// Definition 1 (base) is the name of the object, definition 2 the version.
    fn definitions(&mut self, strings: &Strings) -> u64 {
        let offset = self.align(8);
        let definitions = [(strings.object, NAME, 1, 28), (strings.version, VERSION, 0, 0)];
        for (number, (name, text, flags, next)) in (1..).zip(definitions) {
            self.u16s([1, flags, number, 1]);
            self.u32s([elf_hash(text), 20, next, name, 0]);
        }
        offset
    }

    fn functions(&mut self) {
        assert!(self.bytes.len() <= TEXT, "the tables run into the code");
        self.bytes.resize(TEXT, 0);
        for (_, number, returns) in FUNCTIONS {
            self.u32s([set_number(number), SYSCALL, if returns { RETURN } else { 0 }]);
            self.align(FUNCTION_BYTES);
        }
    }
}

/// The ELF header and the program headers of an image of `total` bytes with the given dynamic section.
fn headers(total: u64, dynamic: u64, dynamic_bytes: u64) -> Vec<u8> {
    let mut headers = Writer { bytes: b"\x7fELF\x02\x01\x01".to_vec() };
    headers.align(16);
    headers.u16s([3, super::MACHINE]);
    headers.u32s([1]);
    headers.u64s([TEXT as u64, 64, 0]);
    headers.u32s([0x43]);
    headers.u16s([64, 56, 2, 64, 0, 0]);
    for (kind, flags, offset, bytes, alignment) in
        [(1, 5, 0, total, 0x4000), (2, 4, dynamic, dynamic_bytes, 8)]
    {
        headers.u32s([kind, flags]);
        headers.u64s([offset, offset, offset, bytes, bytes, alignment]);
    }
    headers.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trampoline_is_the_two_words_that_unwinders_look_for() {
        let image = vdso_image();
        let at = SIGNAL_RETURN_OFFSET as usize;
        assert_eq!(image[at..at + 8], [0x0b, 0x2c, 0x82, 0x03, 0x00, 0x00, 0x2b, 0x00]);
    }

    #[test]
    fn the_image_is_an_elf_file_that_the_loader_accepts() {
        let image = vdso_image();
        let parsed = super::super::Image::parse(&image[..], 1 << 46).unwrap();
        assert!(parsed.relocatable && parsed.segments.len() == 1 && parsed.interpreter.is_none());
    }
}
