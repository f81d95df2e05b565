//! The vDSO: a small shared object the kernel maps into every process, built here byte by byte.
//! Not fast paths: its functions make the system call. The signal trampoline is what unwinders look for.
//! Source: vdso(7); Linux arch/loongarch/vdso/vdso.lds.S (names and version LINUX_5.10); ELF gABI chapter 5 (hash table).

/// Where `__vdso_rt_sigreturn` is in the image.
pub(crate) const SIGNAL_RETURN_OFFSET: u64 = TEXT as u64;

const TEXT: usize = 0x400;
/// A function's place; 16 bytes are enough for three instructions.
const FUNCTION_BYTES: usize = 16;

/// Name, system call, and whether it returns.
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

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }
    fn align(&mut self, to: usize) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
        self.bytes.len() as u64
    }
}

/// The hash of ELF's DT_HASH and version records.
fn elf_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

/// The image's bytes; it fits into one guest page and has no relocations.
pub(crate) fn vdso_image() -> Vec<u8> {
    let mut strings = Writer { bytes: vec![0] };
    let mut string = |text: &str| {
        let at = strings.bytes.len() as u32;
        strings.bytes.extend(text.bytes().chain([0]));
        at
    };
    let names: Vec<u32> = FUNCTIONS.iter().map(|(name, ..)| string(name)).collect();
    let (version, soname) = (string(VERSION), string(NAME));

    // The headers come last, when all places are known.
    let mut image = Writer { bytes: vec![0; 64 + 2 * 56] };
    let hash = image.align(8);
    let symbols = FUNCTIONS.len() as u32 + 1;
    // One bucket that chains all symbols: five names need no more.
    image.u32(1);
    image.u32(symbols);
    image.u32(1);
    image.u32(0);
    (1..symbols).for_each(|symbol| image.u32(if symbol + 1 < symbols { symbol + 1 } else { 0 }));
    let table = image.align(8);
    image.bytes.extend([0; 24]);
    for (index, name) in names.iter().enumerate() {
        image.u32(*name);
        // Global function, default visibility, in a section that exists.
        image.bytes.extend([0x12, 0]);
        image.u16(1);
        image.u64((TEXT + index * FUNCTION_BYTES) as u64);
        image.u64(FUNCTION_BYTES as u64);
    }
    let versions = image.align(8);
    image.u16(0);
    FUNCTIONS.iter().for_each(|_| image.u16(2));
    let definitions = image.align(8);
    // The object's own name is definition 1 (base), the version is definition 2.
    for (index, (name, text, flags, next)) in
        [(soname, NAME, 1, 28), (version, VERSION, 0, 0)].into_iter().enumerate()
    {
        image.u16(1);
        image.u16(flags);
        image.u16(index as u16 + 1);
        image.u16(1);
        image.u32(elf_hash(text));
        image.u32(20);
        image.u32(next);
        image.u32(name);
        image.u32(0);
    }
    let string_table = image.align(8);
    image.bytes.extend(&strings.bytes);
    let dynamic = image.align(8);
    let entries = [
        (4, hash),
        (5, string_table),
        (6, table),
        (10, strings.bytes.len() as u64),
        (11, 24),
        (14, soname.into()),
        (0x6fff_fff0, versions),
        (0x6fff_fffc, definitions),
        (0x6fff_fffd, 2),
        (0, 0),
    ];
    for (tag, value) in entries {
        image.u64(tag);
        image.u64(value);
    }
    let dynamic_bytes = image.bytes.len() as u64 - dynamic;
    assert!(image.bytes.len() <= TEXT, "the tables run into the code");
    image.bytes.resize(TEXT, 0);
    for (_, number, returns) in FUNCTIONS {
        image.u32(set_number(number));
        image.u32(SYSCALL);
        image.u32(if returns { RETURN } else { 0 });
        image.align(FUNCTION_BYTES);
    }
    let total = image.bytes.len() as u64;

    let mut headers = Writer { bytes: b"\x7fELF\x02\x01\x01".to_vec() };
    headers.align(16);
    headers.u16(3);
    headers.u16(super::MACHINE);
    headers.u32(1);
    headers.u64(TEXT as u64);
    headers.u64(64);
    headers.u64(0);
    headers.u32(0x43);
    [64, 56, 2, 64, 0, 0].into_iter().for_each(|field| headers.u16(field));
    for (kind, flags, offset, bytes, alignment) in
        [(1, 5, 0, total, 0x4000), (2, 4, dynamic, dynamic_bytes, 8)]
    {
        headers.u32(kind);
        headers.u32(flags);
        [offset, offset, offset, bytes, bytes, alignment].into_iter().for_each(|field| headers.u64(field));
    }
    image.bytes[..headers.bytes.len()].copy_from_slice(&headers.bytes);
    image.bytes
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
    fn the_image_is_an_elf_file_that_our_own_loader_accepts() {
        let image = vdso_image();
        let parsed = super::super::Image::parse(&image[..], 1 << 46).unwrap();
        assert!(parsed.relocatable && parsed.segments.len() == 1 && parsed.interpreter.is_none());
    }
}
