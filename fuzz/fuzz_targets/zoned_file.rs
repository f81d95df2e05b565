//! Opens an emulated zoned device with a random header, checkpoints, log, write-pointer table and checksums of blocks. It must be
//! rejected, or opened and usable.
//! Source: the layout in crates/storage/zoned-device/src/file/layout.rs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_zoned::ZonedDevice;
use longma_zoned::device::{FileDevice, Geometry};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

const PAGE: usize = 4096;
/// Sizes of a listing's header and of an entry, in bytes.
const HEAD: usize = 12;
const ENTRY: usize = 33;
/// The content of a slot of the write-pointer table, in bytes.
const SLOT: usize = 36;

/// The path of a file in /dev/shm with a valid device, created once.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| PathBuf::from(format!("/dev/shm/longma-fuzz-{}", std::process::id())))
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).to_le_bytes()
}

fuzz_target!(|data: &[u8]| {
    let geometry = Geometry {
        block_bytes: 512,
        zone_blocks: 8,
        zone_capacity_blocks: 6,
        conventional_zones: 1,
        sequential_zones: 3,
        max_open_zones: 2,
        max_active_zones: 2,
    };
    let _ = std::fs::remove_file(path());
    drop(FileDevice::create(path(), geometry, false).unwrap());
    let file = std::fs::OpenOptions::new().write(true).open(path()).unwrap();
    let length = file.metadata().unwrap().len();
    for part in data.chunks(128) {
        let Some((&place, bytes)) = part.split_first() else { continue };
        let mut page = bytes.to_vec();
        // The first pages are the header and two checkpoints, followed by the log.
        let index = u64::from(place % 8);
        if place & 0x40 != 0 {
            // The last pages are the write-pointer table, the checksums and a header. A slot receives the number of a
            // zone.
            let (page_of, zone) = (u64::from(place >> 4 & 3), u32::from(place & 3));
            if page_of == 0 {
                page.resize(SLOT, 0);
                page[..4].copy_from_slice(&zone.to_le_bytes());
                let seal = crc(&page);
                page.extend(seal);
            }
            let within = if page_of == 0 { u64::from(zone.saturating_sub(1)) * 64 } else { 0 };
            file.write_all_at(&page, length - (3 - page_of.min(2)) * PAGE as u64 + within).unwrap();
            continue;
        }
        if place & 0x80 != 0 {
            // With a correct CRC, so that the content is parsed.
            if page.len() > HEAD && index > 0 {
                let count = page[8] as usize % 4;
                page[8..HEAD].copy_from_slice(&(count as u32).to_le_bytes());
                page.resize(HEAD + count * ENTRY, 1);
            }
            let seal = crc(&page);
            page.extend(seal);
        }
        page.resize(PAGE, 0);
        file.write_all_at(&page, index * PAGE as u64).unwrap();
    }
    drop(file);
    if let Ok(device) = FileDevice::open(path()) {
        let geometry = device.geometry();
        let mut block = vec![0; geometry.block_bytes as usize];
        for zone in device.zones().unwrap().into_iter().take(16) {
            let _ = device.read(zone.start, &mut block);
            let _ = device.append(zone.number, &block);
            let _ = device.reset(zone.number);
        }
        let _ = device.flush();
    }
});
