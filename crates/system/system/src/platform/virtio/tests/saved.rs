//! Tests that a device continues after a checkpoint, and that one with other contents or with state outside of the
//! machine is refused.

use longma_share::{Access, Share};

use super::*;
use crate::checkpoint_file::{RestoreError, SaveError};

fn image(content: u8) -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().expect("the host has a temporary folder");
    std::fs::write(image.path(), vec![content; 512 * SECTORS as usize]).expect("the file is writable");
    image
}

fn disk(image: &tempfile::NamedTempFile, changes_image: bool) -> Transport {
    let options = DiskOptions { changes_image, ..DiskOptions::default() };
    Transport::disk(Disk::open(image.path(), &options).expect("it is a disk"))
}

impl Bench {
    /// Restores the device of `other` in the form of a file, its blocks and its memory.
    fn restore_from(&mut self, other: &Self) -> Result<(), RestoreError> {
        let saved = serde_json::to_string(&other.host.saved().expect("it can be saved")).expect("it is JSON");
        self.host.restore(serde_json::from_str(&saved).expect("it is what was written"))?;
        let mut blocks = Vec::new();
        let keep = |number, start, bytes: &[u8]| {
            blocks.push((number, start, bytes.to_vec()));
            Ok(())
        };
        other.host.written_blocks(keep).expect("the host reads its file");
        for (number, start, bytes) in blocks {
            self.host.write_block(number, start, &bytes)?;
        }
        self.put(0, &other.get(0, TEST_BYTES));
        self.available = other.available;
        Ok(())
    }
}

#[test]
fn a_restored_disk_has_what_was_written_and_its_driver_goes_on() {
    let image = image(7);
    let mut bench = Bench::with(disk(&image, false)).start();
    for sector in [6, SECTORS - 1] {
        bench.put(DATA, &[sector as u8; 512]);
        assert_eq!(bench.request(1, sector, 512), 0);
    }
    let mut restored = Bench::with(disk(&image, false));
    restored.restore_from(&bench).expect("it is the same disk");
    assert_eq!(restored.request(0, 5, 1024), 0);
    assert_eq!(restored.get(DATA, 1024), [[7; 512], [6; 512]].concat());
    assert_eq!(restored.request(0, SECTORS - 1, 512), 0);
    assert_eq!(restored.get(DATA, 512), [SECTORS as u8 - 1; 512]);
    assert_eq!(restored.get(USED + 2, 2), [4, 0]);
}

#[test]
fn an_image_that_has_changed_or_is_written_by_the_guest_is_refused() {
    // An image that the guest changes has no other user.
    let (read, same, other) = (image(7), image(7), image(8));
    let bench = Bench::with(disk(&read, false)).start();
    let refused = |device| Bench::with(device).restore_from(&bench).expect_err("it is another disk");
    assert!(matches!(refused(disk(&other, false)), RestoreError::OtherImage { slot: 1 }));
    assert!(matches!(refused(disk(&same, true)), RestoreError::ChangedImage { slot: 1 }));
    let error = Bench::with(disk(&same, true)).host.saved().expect_err("the image changes");
    assert!(matches!(error, SaveError::ChangedImage { slot: 1 }));
}

#[test]
fn other_devices_are_named() {
    let image = image(7);
    let bench = Bench::with(disk(&image, false));
    let error = Bench::with(Transport::entropy(1)).restore_from(&bench).expect_err("it is no disk");
    assert!(error.to_string().contains("devices: disk; this one has: random numbers"), "{error}");
}

#[test]
fn random_numbers_go_on() {
    let mut bench = Bench::with(Transport::entropy(5)).start();
    let numbers = |bench: &mut Bench| {
        bench.descriptor(0, DATA, 32, WRITABLE, 0);
        bench.notify(0);
        bench.get(DATA, 32)
    };
    numbers(&mut bench);
    let mut restored = Bench::with(Transport::entropy(0));
    restored.restore_from(&bench).expect("it is the same device");
    assert_eq!(numbers(&mut restored), numbers(&mut bench));
}

#[test]
fn a_mounted_folder_is_refused_by_its_tag() {
    let folder = tempfile::tempdir().expect("the host has a temporary folder");
    let shared = |tag| {
        let share = Share::open(folder.path(), Access::Read).expect("it is a folder");
        Bench::with(Transport::share(SharedFolder::new(share, tag).expect("it is a tag"))).start()
    };
    let mut bench = shared("share");
    bench.attach();
    let error = bench.host.saved().expect_err("it is mounted");
    assert!(error.to_string().contains("\"share\": the guest has mounted it; unmount it"), "{error}");
    // Tclunk of the root.
    assert_eq!(bench.ask(120, &[0; 4])[4], 121);
    shared("share").restore_from(&bench).expect("it is the same folder");
    let error = shared("other").restore_from(&bench).expect_err("it has another tag");
    assert!(matches!(error, RestoreError::Tag { .. }));
}
