//! Kernel images: an ELF executable (vmlinux), a PE/COFF image with a raw entry point, and a compressed PE/COFF image
//! (EFI zboot). Source: Linux, Documentation/arch/loongarch/booting.rst (image header); EFI zboot header as in
//! drivers/firmware/efi/libstub/zboot-header.S.

use std::io::Read as _;

use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, elf};

use crate::translation::PHYSICAL_BITS;

/// The maximum memory size of a kernel, in bytes.
const MAX_BYTES: u64 = 240 << 20;

/// Bytes of the header that state where the image is loaded.
const HEADER_BYTES: usize = 64;

/// The file is not a bootable kernel.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file has none of the known headers.
    #[error(
        "the kernel is neither an ELF file nor a Linux image for LoongArch64 (vmlinux, vmlinux.efi, vmlinuz.efi)"
    )]
    Unknown,
    /// The header refers to an offset outside the file.
    #[error("the kernel's {0} is not inside the file")]
    Header(&'static str),
    /// The compression method of the payload is not supported.
    #[error(
        "the kernel is compressed with {0:?}; build it with CONFIG_KERNEL_ZSTD or use the uncompressed image"
    )]
    Compression(String),
    /// The payload is damaged.
    #[error("the kernel's compressed payload is damaged: {0}")]
    Payload(#[from] std::io::Error),
    /// The image needs too much memory.
    #[error("the kernel needs more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// The ELF file is damaged or for another machine.
    #[error("the kernel is not a LoongArch64 ELF executable: {0}")]
    Elf(String),
}

/// A kernel, ready to be copied to memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// The physical address of the entry point.
    pub entry: u64,
    /// The contents to copy, by physical address.
    pub parts: Vec<(u64, Vec<u8>)>,
    /// The end of the kernel's memory, including its zero-initialized data.
    pub end: u64,
}

impl Image {
    /// Parses a kernel file.
    ///
    /// # Errors
    /// The file is not a kernel that can be started.
    pub fn parse(file: &[u8]) -> Result<Self, ImageError> {
        if file.starts_with(&elf::ELFMAG) {
            return Self::from_elf(file);
        }
        match file.get(4..8) {
            Some(b"zimg") => Self::from_raw(&decompress(file)?),
            _ => Self::from_raw(file),
        }
    }

    /// Reads an image whose header states the load address and the entry point.
    fn from_raw(file: &[u8]) -> Result<Self, ImageError> {
        const LINUX: u32 = 0x8182_23cd;
        if !file.starts_with(b"MZ") || file.len() < HEADER_BYTES || word(file, 56) != LINUX {
            return Err(ImageError::Unknown);
        }
        let [entry, bytes, load] = [8, 16, 24].map(|offset| doubleword(file, offset));
        let (entry, load) = (entry & PHYSICAL_BITS, load & PHYSICAL_BITS);
        if bytes.max(file.len() as u64) > MAX_BYTES {
            return Err(ImageError::TooLarge);
        }
        let end = load + bytes.max(file.len() as u64);
        // Older headers state the entry point as an offset.
        let entry = if entry < load { load + entry } else { entry };
        if entry >= end {
            return Err(ImageError::Header("entry"));
        }
        Ok(Self { entry, parts: vec![(load, file.to_vec())], end })
    }

    fn from_elf(file: &[u8]) -> Result<Self, ImageError> {
        let invalid = |error: object::Error| ImageError::Elf(error.to_string());
        let kernel = ElfFile64::<Endianness>::parse(file).map_err(invalid)?;
        let endian = Endianness::Little;
        if kernel.elf_header().e_machine.get(endian) != elf::EM_LOONGARCH {
            return Err(ImageError::Elf("it is for another machine".into()));
        }
        let (mut parts, mut end, mut bytes) = (Vec::new(), 0, 0u64);
        let mut entry = kernel.elf_header().e_entry.get(endian) & PHYSICAL_BITS;
        for segment in kernel.elf_program_headers().iter().filter(|it| it.p_type(endian) == elf::PT_LOAD) {
            let data = segment.data(endian, file).map_err(|()| ImageError::Header("segment"))?;
            let (start, length) = (segment.p_paddr(endian) & PHYSICAL_BITS, segment.p_memsz(endian));
            bytes = bytes.saturating_add(length.max(data.len() as u64));
            if bytes > MAX_BYTES {
                return Err(ImageError::TooLarge);
            }
            // The entry point in the ELF header is a virtual address; this segment contains it.
            let offset = kernel.elf_header().e_entry.get(endian).wrapping_sub(segment.p_vaddr(endian));
            if offset < length {
                entry = start + offset;
            }
            end = end.max(start + length.max(data.len() as u64));
            parts.push((start, data.to_vec()));
        }
        Ok(Self { entry, parts, end })
    }
}

/// Decompresses the payload of a zboot image.
fn decompress(file: &[u8]) -> Result<Vec<u8>, ImageError> {
    if file.len() < HEADER_BYTES {
        return Err(ImageError::Header("header"));
    }
    let (start, length) = (word(file, 8) as usize, word(file, 12) as usize);
    let method = file[24..56].split(|byte| *byte == 0).next().unwrap_or_default();
    if method != b"zstd" {
        return Err(ImageError::Compression(String::from_utf8_lossy(method).into_owned()));
    }
    let end = start.checked_add(length).ok_or(ImageError::Header("payload"))?;
    let payload = file.get(start..end).ok_or(ImageError::Header("payload"))?;
    let mut image = Vec::new();
    // The last four bytes of the file may state the decompressed size; they are not trusted, and the limit always
    // holds.
    zstd::stream::read::Decoder::new(payload)?.single_frame().take(MAX_BYTES + 1).read_to_end(&mut image)?;
    if image.len() as u64 > MAX_BYTES {
        return Err(ImageError::TooLarge);
    }
    Ok(image)
}

fn word(file: &[u8], offset: usize) -> u32 {
    doubleword(file, offset) as u32
}

/// The doubleword at an offset of the header. The caller has checked the length.
fn doubleword(file: &[u8], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    let available = &file[offset..file.len().min(offset + 8)];
    bytes[..available.len()].copy_from_slice(available);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(entry: u64, bytes: u64, load: u64) -> Vec<u8> {
        let mut file = b"MZ".to_vec();
        file.resize(8, 0);
        for field in [entry, bytes, load] {
            file.extend(field.to_le_bytes());
        }
        file.resize(56, 0);
        file.extend(0x8182_23cdu32.to_le_bytes());
        file.resize(0x100, 0x5a);
        file
    }

    fn compressed(file: &[u8]) -> Vec<u8> {
        let payload = zstd::bulk::compress(file, 1).unwrap();
        let mut boot = b"MZ\0\0zimg".to_vec();
        boot.extend(0x80u32.to_le_bytes());
        boot.extend((payload.len() as u32).to_le_bytes());
        boot.resize(24, 0);
        boot.extend(b"zstd");
        boot.resize(0x80, 0);
        boot.extend(payload);
        // The decompressed size follows the payload.
        boot.extend((file.len() as u32).to_le_bytes());
        boot
    }

    #[test]
    fn a_raw_image_is_loaded_where_its_header_says() {
        let file = raw(0x20_1000, 0x4000, 0x20_0000);
        let image = Image::parse(&file).unwrap();
        assert_eq!((image.entry, image.end), (0x20_1000, 0x20_4000));
        assert_eq!(image.parts, [(0x20_0000, file.clone())]);
        assert_eq!(Image::parse(&compressed(&file)).unwrap(), image);
    }

    #[test]
    fn an_image_that_lies_about_itself_is_refused() {
        assert!(matches!(Image::parse(&raw(0x900_0000, 0x4000, 0x20_0000)), Err(ImageError::Header(_))));
        assert!(matches!(Image::parse(&raw(0x20_0000, u64::MAX, 0x20_0000)), Err(ImageError::TooLarge)));
        assert!(matches!(Image::parse(b"MZ"), Err(ImageError::Unknown)));
        assert!(matches!(Image::parse(&[]), Err(ImageError::Unknown)));
        let mut boot = compressed(&raw(0x20_0000, 0x4000, 0x20_0000));
        boot[12..16].fill(0xff);
        assert!(matches!(Image::parse(&boot), Err(ImageError::Header("payload"))));
        boot[24..28].copy_from_slice(b"lzma");
        assert!(matches!(Image::parse(&boot), Err(ImageError::Compression(_))));
    }

    #[test]
    fn a_damaged_payload_is_refused() {
        let mut boot = compressed(&raw(0x20_0000, 0x4000, 0x20_0000));
        let middle = 0x84;
        boot[middle..].fill(0xa5);
        assert!(Image::parse(&boot).is_err());
        assert!(Image::parse(&boot[..0x82]).is_err());
    }

    /// An ELF file with one segment.
    fn executable(entry: u64, segment: [u64; 5]) -> Vec<u8> {
        let mut file = elf::ELFMAG.to_vec();
        file.extend([2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 1, 0, 0, 0]);
        file.extend([entry, 64, 0].iter().flat_map(|field| field.to_le_bytes()));
        file.extend([3, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        file.extend([1u32, 7].iter().flat_map(|field| field.to_le_bytes()));
        file.extend(segment.iter().flat_map(|field| field.to_le_bytes()));
        file.extend(0x1000u64.to_le_bytes());
        file.resize(0x200, 0x5a);
        file
    }

    #[test]
    fn an_executable_is_loaded_by_its_physical_addresses() {
        let address = 0x9000_0000_0020_0000;
        let image =
            Image::parse(&executable(address + 0x10, [0x100, address, 0x20_0000, 0x100, 0x3000])).unwrap();
        assert_eq!((image.entry, image.end), (0x20_0010, 0x20_3000));
        assert_eq!(image.parts, [(0x20_0000, vec![0x5a; 0x100])]);
    }

    #[test]
    fn an_executable_with_absurd_sizes_is_refused() {
        let huge = executable(u64::MAX - 1, [0x100, 0, 0x20_0000, 0x100, u64::MAX]);
        assert!(matches!(Image::parse(&huge), Err(ImageError::TooLarge)));
        let outside = executable(0, [u64::MAX - 8, 0, 0, 0x100, 0x100]);
        assert!(matches!(Image::parse(&outside), Err(ImageError::Header(_))));
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_an_image_or_an_error(
            which in 0..3usize,
            changes in proptest::collection::vec((0..0x180usize, proptest::prelude::any::<u8>()), 0..24),
            length in 0..0x200usize,
        ) {
            let plain = raw(0x20_1000, 0x4000, 0x20_0000);
            let elf = executable(0x20_0010, [0x100, 0x20_0000, 0x20_0000, 0x100, 0x3000]);
            let mut file = [plain.clone(), compressed(&plain), elf][which].clone();
            for (at, value) in changes {
                if let Some(byte) = file.get_mut(at) {
                    *byte = value;
                }
            }
            file.truncate(length);
            let _ = Image::parse(&file);
        }
    }
}
