//! Tests of a shared folder with well-behaved and hostile guests.

mod client;
mod hostile;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use client::{Client, ROOT, text, words};
use longma_share::{Access, Share};
use rustix::io::Errno;

const WRITE: u32 = 1;
const TRUNCATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o200;

/// A shared folder and its client. The folder contains a file, a link, and a subfolder with another file, to which the
/// link points.
fn folder(access: Access) -> (tempfile::TempDir, Client) {
    let folder = tempfile::tempdir().expect("the host has a temporary folder");
    fs::write(folder.path().join("file"), "content").expect("the folder is writable");
    fs::create_dir(folder.path().join("inner")).expect("the folder is writable");
    fs::write(folder.path().join("inner/deep"), "deeper").expect("the folder is writable");
    symlink("inner/deep", folder.path().join("link")).expect("the folder is writable");
    let client = Client::new(folder.path(), access);
    (folder, client)
}

#[test]
fn a_guest_reads_files_and_folders() {
    let (_folder, mut client) = folder(Access::Read);
    assert_eq!(client.walk(1, &["inner", "deep"]), Ok(2));
    client.open(1, 0).expect("it opens");
    assert_eq!(client.read(1, 0, 100), Ok(b"deeper".to_vec()));
    assert_eq!(client.read(1, 4, 1), Ok(b"e".to_vec()));
    assert_eq!(client.read(1, 7, 100), Ok(Vec::new()));
    assert_eq!(client.walk(2, &[]), Ok(0));
    client.open(2, 0).expect("it opens");
    let expected = [(".", 4), ("..", 4), ("file", 8), ("inner", 4), ("link", 10)];
    let expected: Vec<_> = expected.map(|(name, kind)| (name.to_owned(), kind)).into();
    // All entries in one reply, and one entry per reply.
    assert_eq!(client.list(2, 4096).as_ref(), Ok(&expected));
    assert_eq!(client.list(2, 30).as_ref(), Ok(&expected));
    assert_eq!(client.walk(3, &["link"]), Ok(1));
    assert_eq!(client.call(22, &[words(&[3])]), Ok(text("inner/deep")));
}

#[test]
fn a_walk_that_ends_early_makes_no_fid() {
    let (_folder, mut client) = folder(Access::Read);
    assert_eq!(client.walk(1, &["inner", "absent", "more"]), Ok(1));
    assert_eq!(client.clunk(1), Err(Errno::BADF));
    assert_eq!(client.walk(1, &["absent"]), Err(Errno::NOENT));
    assert_eq!(client.walk(1, &["file", "below"]), Ok(1));
    assert_eq!(client.walk(1, &["file"]), Ok(1));
    assert_eq!(client.walk(1, &["file"]), Err(Errno::BADF), "the fid is in use");
}

#[test]
fn a_guest_creates_changes_renames_and_removes() {
    let (folder, mut client) = folder(Access::Write);
    let path = folder.path();
    client.walk(1, &[]).expect("the folder exists");
    client.create(1, "new", WRITE, 0o7640).expect("it is created");
    assert_eq!(client.write(1, 2, b"abc"), Ok(3));
    client.call(50, &[words(&[1, 0])]).expect("it is written to the disk");
    assert_eq!(fs::read(path.join("new")).unwrap(), b"\0\0abc");
    assert_eq!(fs::metadata(path.join("new")).unwrap().mode() & 0o7000, 0, "no set-user-ID");

    client.walk(2, &["new"]).expect("it exists");
    client.set(2, 8 | 0x20 | 0x100, [0; 3], 3).expect("length and time are set");
    client.set(2, 1 | 2 | 4, [0o6751, 0, 0], 0).expect("permissions are set, and the owner is the same");
    let status = fs::metadata(path.join("new")).unwrap();
    assert_eq!((status.len(), status.mtime(), status.mtime_nsec(), status.mode()), (3, 7, 8, 0o100_751));
    assert_eq!(client.set(2, 2, [0, 1000, 0], 0), Err(Errno::PERM));

    client.call(72, &[words(&[ROOT]), text("made"), words(&[0o755, 0])]).expect("the folder is made");
    client.walk(3, &["made"]).expect("it exists");
    client.call(74, &[words(&[ROOT]), text("new"), words(&[3]), text("moved")]).expect("it moves");
    client.call(70, &[words(&[ROOT, 2]), text("again")]).expect("it gets another name");
    assert_eq!(fs::read(path.join("made/moved")).unwrap(), b"\0\0a");
    assert_eq!(client.call(76, &[words(&[ROOT]), text("made"), words(&[0x200])]), Err(Errno::NOTEMPTY));
    client.call(76, &[words(&[3]), text("moved"), words(&[0])]).expect("it is removed");
    client.call(76, &[words(&[ROOT]), text("made"), words(&[0x200])]).expect("it is removed");
    assert_eq!(fs::read(path.join("again")).unwrap(), b"\0\0a");
    assert!(!path.join("made").exists());
}

#[test]
fn a_file_stays_the_same_when_its_name_goes_to_another() {
    let (folder, mut client) = folder(Access::Write);
    client.walk(1, &["file"]).expect("it exists");
    fs::rename(folder.path().join("file"), folder.path().join("old")).unwrap();
    fs::write(folder.path().join("file"), "another").unwrap();
    client.open(1, 0).expect("it opens");
    assert_eq!(client.read(1, 0, 100), Ok(b"content".to_vec()));
}

#[test]
fn create_opens_a_file_that_exists_unless_it_must_not() {
    let (folder, mut client) = folder(Access::Write);
    for (fid, flags, outcome) in [(1, EXCLUSIVE | WRITE, Err(Errno::EXIST)), (2, WRITE | TRUNCATE, Ok(()))] {
        client.walk(fid, &[]).expect("the folder exists");
        assert_eq!(client.create(fid, "file", flags, 0o600).map(drop), outcome);
    }
    client.write(2, 0, b"x").expect("it is open");
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"x");
    client.walk(3, &[]).expect("the folder exists");
    assert_eq!(client.create(3, "link", WRITE, 0o600), Err(Errno::LOOP));
    assert_eq!(client.create(3, "inner", WRITE, 0o600), Err(Errno::ISDIR));
}

#[test]
fn nothing_changes_in_a_folder_that_is_read_only() {
    let (folder, mut client) = folder(Access::Read);
    client.walk(1, &["file"]).expect("it exists");
    for flags in [1, 2, TRUNCATE, 0o2000] {
        assert_eq!(client.open(1, flags), Err(Errno::ROFS), "{flags:o}");
    }
    client.open(1, 0).expect("it opens");
    assert_eq!(client.write(1, 0, b"x"), Err(Errno::ROFS));
    assert_eq!(client.set(1, 8, [0; 3], 0), Err(Errno::ROFS));
    assert_eq!(client.set(1, 1, [0o777, 0, 0], 0), Err(Errno::ROFS));
    client.walk(2, &[]).expect("the folder exists");
    assert_eq!(client.create(2, "new", 0, 0o600), Err(Errno::ROFS));
    let root = words(&[ROOT]);
    assert_eq!(client.call(72, &[root.clone(), text("new"), words(&[0o755, 0])]), Err(Errno::ROFS));
    assert_eq!(client.call(76, &[root.clone(), text("file"), words(&[0])]), Err(Errno::ROFS));
    assert_eq!(client.call(74, &[root.clone(), text("file"), root.clone(), text("x")]), Err(Errno::ROFS));
    assert_eq!(client.call(70, &[words(&[ROOT, 1]), text("x")]), Err(Errno::ROFS));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"content");
}

#[test]
fn the_owner_is_root_and_the_file_system_has_a_size() {
    let (folder, mut client) = folder(Access::Read);
    fs::set_permissions(folder.path().join("file"), fs::Permissions::from_mode(0o4755)).unwrap();
    client.walk(1, &["file"]).expect("it exists");
    let status = client.call(24, &[words(&[1]), u64::MAX.to_le_bytes().to_vec()]).expect("there is a status");
    assert_eq!(status.len(), 8 + 13 + 3 * 4 + 15 * 8);
    // Mode, user and group: without the set-user-ID bit.
    assert_eq!(status[21..33], words(&[0o100_755, 0, 0])[..]);
    let system = client.call(8, &[words(&[1])]).expect("there is a status");
    assert_eq!((&system[..4], system.len()), (&0x0102_1997u32.to_le_bytes()[..], 4 + 4 + 6 * 8 + 4));
}

#[test]
fn a_folder_that_does_not_exist_cannot_be_shared() {
    let error = Share::open("/nonexistent".as_ref(), Access::Read).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("cannot share the folder: No such file or directory (os error 2)"));
}
