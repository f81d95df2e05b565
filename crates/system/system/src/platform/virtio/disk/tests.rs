//! Tests disks of both formats. Some images are hostile.

use imago::file::File as Storage;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatCreateBuilder, Storage as _, StorageOpenOptions};
use proptest::prelude::*;

use super::*;

fn image(bytes: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("the host has a temporary folder");
    std::fs::write(file.path(), vec![7; bytes]).expect("the file is writable");
    file
}

#[test]
fn writes_are_read_back_and_change_the_image_only_if_that_is_asked_for() {
    for changes_image in [false, true] {
        let file = image(3 * 4096 + 512);
        let mut disk = Disk::open(file.path(), &DiskOptions { changes_image, ..DiskOptions::default() })
            .expect("it is a disk");
        disk.write(4096 - 512, &[9; 1024]).expect("it is on the disk");
        disk.write(3 * 4096, &[5; 512]).expect("it is on the disk");
        let mut content = vec![0; 3 * 4096 + 512];
        disk.read(0, &mut content).expect("it is on the disk");
        let mut expected = vec![7; 3 * 4096 + 512];
        expected[4096 - 512..4096 + 512].fill(9);
        expected[3 * 4096..].fill(5);
        assert_eq!(content, expected);
        disk.flush().expect("the host writes");
        let kept = std::fs::read(file.path()).expect("the file exists");
        assert_eq!(kept == expected, changes_image);
        assert_eq!(kept == vec![7; 3 * 4096 + 512], !changes_image);
    }
}

#[test]
fn a_file_that_is_not_a_multiple_of_sectors_is_refused() {
    for bytes in [0, 513] {
        let error =
            Disk::open(image(bytes).path(), &DiskOptions::default()).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains(&format!("{bytes} bytes"))));
    }
}

/// The length of a test's qcow2 disk: four clusters.
const BYTES: u64 = 4 * 65536;

/// Creates an empty qcow2 image, with the backing image whose name and format `backing` gives.
fn qcow2(path: &Path, backing: Option<(&str, &str)>) {
    std::fs::write(path, "").expect("the folder is writable");
    let storage = Storage::open(StorageOpenOptions::new().filename(path).write(true)).expect("it exists");
    let mut builder = Qcow2::<Storage>::create_builder(storage).size(BYTES);
    if let Some((name, format)) = backing {
        builder = builder.backing(name.to_owned(), format.to_owned());
    }
    builder.create().expect("the folder is writable");
}

/// Fills the second cluster of an image with 3.
fn fill(path: &Path) {
    let storage = Storage::open(StorageOpenOptions::new().filename(path).write(true)).expect("it exists");
    let image = Qcow2::<Storage>::open_image(storage, true).expect("it was just created");
    let image = FormatAccess::new(image);
    image.write(vec![3; 65536].as_slice(), 65536).expect("it is on the disk");
    image.flush().expect("the host writes");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("the host has a temporary folder")
}

fn open(path: &Path, options: &DiskOptions) -> Result<Disk, String> {
    Disk::open(path, options).map_err(|error| error.to_string())
}

fn content(disk: &Disk) -> Vec<u8> {
    let mut content = vec![1; BYTES as usize];
    disk.read(0, &mut content).expect("it is on the disk");
    content
}

#[test]
fn a_qcow2_image_is_read_and_never_changes() {
    let folder = folder();
    let path = folder.path().join("disk.qcow2");
    qcow2(&path, None);
    let before = std::fs::read(&path).expect("it exists");
    let mut disk = open(&path, &DiskOptions::default()).expect("it is a disk");
    assert_eq!(disk.sectors(), BYTES / SECTOR);
    assert_eq!(content(&disk), vec![0; BYTES as usize]);
    disk.write(65536 - 512, &[9; 1024]).expect("it is on the disk");
    let mut expected = vec![0; BYTES as usize];
    expected[65536 - 512..65536 + 512].fill(9);
    assert_eq!(content(&disk), expected);
    drop(disk);
    assert_eq!(std::fs::read(&path).expect("it exists"), before, "the image is unchanged");

    fill(&path);
    let mut filled = vec![0; BYTES as usize];
    filled[65536..2 * 65536].fill(3);
    assert_eq!(content(&open(&path, &DiskOptions::default()).expect("it is a disk")), filled);
    let changed = DiskOptions { changes_image: true, ..DiskOptions::default() };
    let error = open(&path, &changed).expect_err("damaged tables would not end an allocation");
    assert!(error.contains("leave write out"), "{error}");
}

#[test]
fn an_image_is_on_top_of_others_in_its_folder() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("base.img"), vec![5; BYTES as usize]).expect("the folder is writable");
    qcow2(&path("middle.qcow2"), Some(("base.img", "raw")));
    qcow2(&path("top.qcow2"), Some(("middle.qcow2", "qcow2")));
    let mut disk = open(&path("top.qcow2"), &DiskOptions::default()).expect("it is a disk");
    disk.write(512, &[7; 512]).expect("it is on the disk");
    let mut expected = vec![5; BYTES as usize];
    expected[512..1024].fill(7);
    assert_eq!(content(&disk), expected);
    drop(disk);
    assert_eq!(
        content(&open(&path("middle.qcow2"), &DiskOptions::default()).expect("it is a disk")),
        vec![5; BYTES as usize]
    );
    assert_eq!(std::fs::read(path("base.img")).expect("it exists"), vec![5; BYTES as usize]);
}

#[test]
fn an_image_does_not_name_files_outside_its_folder_unless_the_user_does() {
    let outer = folder();
    let secret = outer.path().join("secret");
    std::fs::write(&secret, vec![5; BYTES as usize]).expect("the folder is writable");
    let inner = outer.path().join("images");
    std::fs::create_dir(&inner).expect("the folder is writable");
    std::os::unix::fs::symlink(&secret, inner.join("link")).expect("the folder is writable");
    let path = inner.join("disk.qcow2");
    let names = ["../secret", secret.to_str().expect("it is text"), "link", "/dev/zero", "absent", "."];
    for name in names {
        qcow2(&path, Some((name, "raw")));
        let error = open(&path, &DiskOptions::default()).expect_err("it must not be read");
        assert!(error.contains("add ,backing=FILE"), "{name}: {error}");
        let named = DiskOptions { backing: vec![secret.clone()], ..DiskOptions::default() };
        assert_eq!(open(&path, &named).is_ok(), name.ends_with("secret") || name == "link", "{name}");
    }
}

#[test]
fn an_image_behind_itself_or_of_unknown_format_is_refused() {
    let folder = folder();
    let path = folder.path().join("disk.qcow2");
    for (format, expected) in [("qcow2", "disk.qcow2 is its own backing image"), ("vmdk", "raw or qcow2")] {
        qcow2(&path, Some(("disk.qcow2", format)));
        let error = open(&path, &DiskOptions::default()).expect_err("it must not be opened");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_encrypted_image_is_refused() {
    let folder = folder();
    let path = folder.path().join("disk.qcow2");
    for method in [1, 2] {
        qcow2(&path, None);
        let mut bytes = std::fs::read(&path).expect("it was created");
        bytes[35] = method;
        std::fs::write(&path, bytes).expect("the folder is writable");
        let error = open(&path, &DiskOptions::default()).expect_err("it must not be opened");
        assert!(error.contains("encrypted"), "{error}");
    }
}

#[test]
fn name_and_first_bytes_must_agree_unless_the_user_says_the_format() {
    let folder = folder();
    let (plain, image) = (folder.path().join("disk.qcow2"), folder.path().join("disk.img"));
    std::fs::write(&plain, [0; 512]).expect("the folder is writable");
    qcow2(&image, None);
    for path in [&plain, &image] {
        let error = open(path, &DiskOptions::default()).expect_err("the format is not clear");
        assert!(error.contains("add ,format="), "{error}");
    }
    let with = |format| DiskOptions { format: Some(format), ..DiskOptions::default() };
    assert_eq!(open(&plain, &with(Format::Raw)).map(|disk| disk.sectors()), Ok(1));
    assert_eq!(open(&image, &with(Format::Qcow2)).map(|disk| disk.sectors()), Ok(BYTES / SECTOR));
    assert!(open(&plain, &with(Format::Qcow2)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_damaged_image_is_refused_or_read_without_a_panic(
        changes in prop::collection::vec(
            (prop_oneof![4 => 0..112usize, 2 => 112..1024usize, 1 => 0..5 * 65536usize], any::<u8>()),
            1..12,
        ),
    ) {
        let folder = folder();
        let path = folder.path().join("disk.qcow2");
        qcow2(&path, None);
        fill(&path);
        let mut bytes = std::fs::read(&path).expect("it exists");
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        std::fs::write(&path, bytes).expect("the folder is writable");
        let options = DiskOptions { format: Some(Format::Qcow2), ..DiskOptions::default() };
        if let Ok(mut disk) = Disk::open(&path, &options) {
            let last = (disk.sectors() - 1) * SECTOR;
            for start in [0, 65536, last / 2 / SECTOR * SECTOR, last] {
                let _ = disk.read(start, &mut [0; 512]);
                let _ = disk.write(start, &[1; 512]);
            }
            let _ = disk.flush();
        }
    }
}

#[test]
fn images_behind_each_other_are_named() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    qcow2(&path("a.qcow2"), Some(("b.qcow2", "qcow2")));
    qcow2(&path("b.qcow2"), Some(("c.qcow2", "qcow2")));
    qcow2(&path("c.qcow2"), Some(("b.qcow2", "qcow2")));
    let error = open(&path("a.qcow2"), &DiskOptions::default()).expect_err("it has no end");
    assert!(error.contains("b.qcow2 is its own backing image"), "{error}");
}

#[test]
fn a_chain_of_images_has_a_limit() {
    let folder = folder();
    let path = |number: u32| folder.path().join(format!("{number}.qcow2"));
    qcow2(&path(0), None);
    for number in 1..=17 {
        qcow2(&path(number), Some((&format!("{}.qcow2", number - 1), "qcow2")));
    }
    open(&path(16), &DiskOptions::default()).expect("16 backing images");
    let error = open(&path(17), &DiskOptions::default()).expect_err("17 backing images");
    assert!(error.contains("more than 16 backing images"), "{error}");
}

#[test]
fn an_image_that_is_written_has_no_other_user() {
    let folder = folder();
    let (raw, top) = (folder.path().join("raw.img"), folder.path().join("top.qcow2"));
    std::fs::write(&raw, [7; 4096]).expect("the folder is writable");
    qcow2(&top, Some(("raw.img", "raw")));
    let written = DiskOptions { changes_image: true, ..DiskOptions::default() };
    let read = DiskOptions::default();
    let writer = open(&raw, &written).expect("the image is not in use");
    for (path, options) in [(&raw, &written), (&raw, &read), (&top, &read)] {
        let error = open(path, options).expect_err("it is in use");
        assert!(error.contains("raw.img is in use by another disk or program"), "{error}");
    }
    drop(writer);
    let readers = [open(&raw, &read), open(&raw, &read), open(&top, &read)];
    assert!(readers.iter().all(Result::is_ok));
    assert!(open(&raw, &written).is_err());
    drop(readers);
    open(&raw, &written).expect("the image is not in use");
}
