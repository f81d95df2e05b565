//! A map in a file whose flush fails, and whose power is cut afterwards.
//!
//! Source: fsync(2): after a failed flush, unwritten data can still be read from the page cache.

use longma_zoned::device::{Fault, FaultyDevice, FileDevice, Geometry};
use longma_zoned::{Options, Result, Store};
use std::sync::Arc;

const GEOMETRY: Geometry = Geometry {
    block_bytes: 512,
    zone_blocks: 40,
    zone_capacity_blocks: 36,
    conventional_zones: 1,
    sequential_zones: 14,
    max_open_zones: 0,
    max_active_zones: 0,
};

/// A file with an empty map.
fn formatted() -> Arc<FaultyDevice> {
    let (device, file) = FileDevice::create_faulty(GEOMETRY).unwrap();
    drop(Store::format(device, Some(GEOMETRY.block_bytes), 1).unwrap());
    file
}

fn opened(file: &Arc<FaultyDevice>) -> Result<Store<FileDevice>> {
    Store::open(FileDevice::open_faulty(file)?, Options::with_cache(40_000))
}

#[test]
fn data_visible_after_a_failed_flush_is_durable_after_reopening() {
    for failing in 0..6 {
        let file = formatted();
        let map = opened(&file).unwrap();
        map.put(b"key", &[1; 400]).unwrap();
        file.inject(crate::Fault::FlushError { after: file.changes() + failing });
        let failed = (2..12u8).find(|&value| map.put(b"key", &[value; 400]).is_err()).unwrap();
        drop(map);
        let map = opened(&file).unwrap();
        let shown = map.snapshot().get(b"key").unwrap().unwrap();
        assert!(shown[0] + 1 >= failed, "{}, and {failed} failed", shown[0]);
        map.put(b"other", b"value").unwrap();
        std::mem::forget(map);
        let image = Arc::new(FaultyDevice::over(file.cut().image_with_none()));
        let map = opened(&image).unwrap();
        assert_eq!(
            map.snapshot().get(b"key").unwrap().as_deref(),
            Some(&shown[..]),
            "failing flush {failing}"
        );
    }
}

/// The same with a power cut while the map is reopened.
#[test]
fn a_failed_flush_and_a_power_cut_while_opening_lose_no_acknowledged_data() {
    let mut cuts = 0;
    for (failing, after) in (0..6).flat_map(|failing| (0..12).map(move |after| (failing, after))) {
        let file = formatted();
        let map = opened(&file).unwrap();
        map.put(b"key", &[1; 400]).unwrap();
        file.inject(crate::Fault::FlushError { after: file.changes() + failing });
        let failed = (2..12u8).find(|&value| map.put(b"key", &[value; 400]).is_err()).unwrap();
        drop(map);
        file.inject(crate::Fault::PowerCut { after: file.changes() + after });
        cuts += u32::from(opened(&file).is_err());
        for image in file.cut().images(6, after) {
            let map = opened(&Arc::new(FaultyDevice::over(image))).unwrap();
            let shown = map.snapshot().get(b"key").unwrap().unwrap();
            assert!(
                shown[0] + 1 >= failed,
                "failing flush {failing}, cut {after}: {}, and {failed} failed",
                shown[0]
            );
        }
    }
    assert!(cuts > 20, "{cuts}");
}
