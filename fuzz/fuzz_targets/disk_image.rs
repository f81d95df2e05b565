//! Opens a qcow2 image of any content, reads it and writes to it. It must not read another file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_system::{Disk, DiskOptions, ImageFormat};

fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("disk-image-{}.qcow2", std::process::id()));
    std::fs::write(&path, data).expect("the host has a temporary folder");
    for changes_image in [false, true] {
        let options =
            DiskOptions { changes_image, format: Some(ImageFormat::Qcow2), ..DiskOptions::default() };
        let Ok(mut disk) = Disk::open(&path, &options) else { continue };
        let last = (disk.sectors() - 1) * 512;
        for start in [0, last / 1024 * 512, last] {
            let _ = disk.read(start, &mut [0; 512]);
            let _ = disk.write(start, &[1; 512]);
        }
        let _ = disk.flush();
    }
});
