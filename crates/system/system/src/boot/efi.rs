//! The tables that a kernel expects from EFI firmware: a system table whose configuration tables are the memory map and
//! the device tree. The system table offers no services. Source: Linux, Documentation/arch/loongarch/booting.rst; UEFI
//! specification 2.10, sections 4.3 (system table), 7.2.3 (memory map).

/// A range of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The physical address, a multiple of [`PAGE`].
    pub start: u64,
    /// The end address, a multiple of [`PAGE`].
    pub end: u64,
    /// The memory type.
    pub kind: Kind,
}

/// The UEFI memory types that the map uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// EfiReservedMemoryType: the kernel must not use it.
    Reserved = 0,
    /// EfiConventionalMemory.
    Free = 7,
}

/// The size of an EFI page.
pub const PAGE: u64 = 4096;

const SIGNATURE: u64 = u64::from_le_bytes(*b"IBI SYST");
/// The revision of the UEFI specification: 2.10.
const REVISION: u32 = 2 << 16 | 100;
const SYSTEM_TABLE_BYTES: usize = 120;

/// LINUX_EFI_BOOT_MEMMAP_GUID, 800f683f-d08b-423a-a293-965c3c6fe2b4.
const MEMORY_MAP: [u8; 16] =
    guid(0x800f_683f, 0xd08b, 0x423a, [0xa2, 0x93, 0x96, 0x5c, 0x3c, 0x6f, 0xe2, 0xb4]);
/// EFI_DTB_TABLE_GUID, b1b621d5-f19c-41a5-830b-d9152c69aae0.
const DEVICE_TREE: [u8; 16] =
    guid(0xb1b6_21d5, 0xf19c, 0x41a5, [0x83, 0x0b, 0xd9, 0x15, 0x2c, 0x69, 0xaa, 0xe0]);

/// The EFI tables of a kernel, as bytes to copy to memory.
#[derive(Debug)]
pub struct Tables {
    /// The address of the system table, which is the first of the tables.
    pub system_table: u64,
    /// The bytes of all tables. The addresses in them are valid if they are copied to `system_table`.
    pub bytes: Vec<u8>,
}

impl Tables {
    /// Builds the tables for the address `base`, a multiple of 8.
    pub fn new(base: u64, ranges: &[Range], device_tree: u64) -> Self {
        const ENTRY_BYTES: usize = 24;
        let configuration = base + SYSTEM_TABLE_BYTES as u64;
        let vendor = configuration + 2 * ENTRY_BYTES as u64;
        let name: Vec<u8> = "Longma\0\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let memory_map = vendor + name.len() as u64;

        let mut bytes = system_table(vendor, configuration, 2);
        for (guid, table) in [(MEMORY_MAP, memory_map), (DEVICE_TREE, device_tree)] {
            bytes.extend(guid);
            bytes.extend(table.to_le_bytes());
        }
        bytes.extend(name);
        bytes.extend(boot_memory_map(ranges));
        Self { system_table: base, bytes }
    }
}

/// EFI_SYSTEM_TABLE without consoles and services.
fn system_table(vendor: u64, configuration: u64, count: u64) -> Vec<u8> {
    let mut table = SIGNATURE.to_le_bytes().to_vec();
    // The revision, header size, checksum and a reserved word.
    for field in [REVISION, SYSTEM_TABLE_BYTES as u32, 0, 0] {
        table.extend(field.to_le_bytes());
    }
    // The vendor string and its revision, three consoles with their handles, and the two service tables.
    for field in [vendor, 1, 0, 0, 0, 0, 0, 0, 0, 0, count, configuration] {
        table.extend(field.to_le_bytes());
    }
    debug_assert_eq!(table.len(), SYSTEM_TABLE_BYTES);
    table
}

/// Linux's `efi_boot_memmap`: sizes, key and version, then the descriptors.
fn boot_memory_map(ranges: &[Range]) -> Vec<u8> {
    const DESCRIPTOR_BYTES: u64 = 40;
    const VERSION: u64 = 1;
    /// EFI_MEMORY_WB: cached.
    const WRITE_BACK: u64 = 8;
    let total = ranges.len() as u64 * DESCRIPTOR_BYTES;
    let mut map = Vec::new();
    for field in [total, DESCRIPTOR_BYTES, VERSION, 0, total] {
        map.extend(field.to_le_bytes());
    }
    for range in ranges {
        let pages = (range.end - range.start) / PAGE;
        for field in [range.kind as u64, range.start, 0, pages, WRITE_BACK] {
            map.extend(field.to_le_bytes());
        }
    }
    map
}

const fn guid(first: u32, second: u16, third: u16, rest: [u8; 8]) -> [u8; 16] {
    let (a, b, c) = (first.to_le_bytes(), second.to_le_bytes(), third.to_le_bytes());
    let r = rest;
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_finds_the_tables_through_the_system_table() {
        let ranges = [Range { start: 0, end: 0x1000_0000, kind: Kind::Free }];
        let tables = Tables::new(0x10_0000, &ranges, 0x18_0000);
        let at = |address: u64| {
            let offset = (address - 0x10_0000) as usize;
            u64::from_le_bytes(tables.bytes[offset..][..8].try_into().unwrap())
        };
        assert_eq!((at(0x10_0000), at(0x10_0000 + 104)), (SIGNATURE, 2));
        let configuration = at(0x10_0000 + 112);
        assert_eq!(at(configuration + 24 + 16), 0x18_0000);
        let map = at(configuration + 16);
        assert_eq!((at(map), at(map + 8), at(map + 40)), (40, 40, Kind::Free as u64));
        assert_eq!(at(map + 40 + 24), 0x1_0000);
    }
}
