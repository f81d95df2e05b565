//! Hostile guests. Each tries to leave the folder, to reach a device, or to exhaust the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use longma_share::{Access, MAX_MESSAGE_BYTES, Share};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

use crate::client::{Client, NO_FID, ROOT, message, text, words};

/// The content of a file outside the folder.
const SECRET: &[u8] = b"outside the folder";

/// A folder beside a secret file, with links to it.
fn beside_a_secret() -> (tempfile::TempDir, Client) {
    let outer = tempfile::tempdir().expect("the host has a temporary folder");
    let path = outer.path();
    fs::write(path.join("secret"), SECRET).expect("the folder is writable");
    fs::create_dir_all(path.join("shared/inner")).expect("the folder is writable");
    fs::write(path.join("shared/file"), "content").expect("the folder is writable");
    symlink("../secret", path.join("shared/up")).expect("the folder is writable");
    symlink(path.join("secret"), path.join("shared/absolute")).expect("the folder is writable");
    symlink("..", path.join("shared/parent")).expect("the folder is writable");
    symlink("/", path.join("shared/root")).expect("the folder is writable");
    let client = Client::new(&path.join("shared"), Access::Write);
    (outer, client)
}

#[test]
fn no_name_leads_out_of_the_folder() {
    let (outer, mut client) = beside_a_secret();
    let long = "x".repeat(256);
    for name in ["..", ".", "", "/", "inner/../..", "../secret", "/etc/passwd", "a\0b"] {
        assert_eq!(client.walk(1, &[name]), Err(Errno::INVAL), "{name:?}");
        assert_eq!(client.walk(1, &["inner", name]), Err(Errno::INVAL), "{name:?}");
        assert_eq!(client.create(ROOT, name, 1, 0o600), Err(Errno::INVAL), "{name:?}");
        assert_eq!(
            client.call(76, &[words(&[ROOT]), text(name), words(&[0])]),
            Err(Errno::INVAL),
            "{name:?}"
        );
        let rename = [words(&[ROOT]), text("file"), words(&[ROOT]), text(name)];
        assert_eq!(client.call(74, &rename), Err(Errno::INVAL), "{name:?}");
        assert_eq!(
            client.call(72, &[words(&[ROOT]), text(name), words(&[0, 0])]),
            Err(Errno::INVAL),
            "{name:?}"
        );
    }
    assert_eq!(client.walk(1, &[&long]), Err(Errno::NAMETOOLONG));
    assert_eq!(fs::read(outer.path().join("secret")).unwrap(), SECRET);
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let (outer, mut client) = beside_a_secret();
    for (fid, name) in [(1, "up"), (2, "absolute"), (3, "parent"), (4, "root")] {
        assert_eq!(client.walk(fid, &[name]), Ok(1));
        assert_eq!(client.walk(9, &[name, "secret"]), Ok(1), "the walk ends at the link");
        for flags in [0, 1, 2, 0o1001] {
            assert_eq!(client.open(fid, flags), Err(Errno::LOOP), "{name}");
        }
        assert!(client.set(fid, 8, [0; 3], 0).is_err());
        assert!(client.set(fid, 1, [0o777, 0, 0], 0).is_err());
        assert_eq!(client.call(70, &[words(&[ROOT, fid]), text("name")]), Err(Errno::PERM));
        // A relative link would have another target in another folder.
        let rename = [words(&[ROOT]), text(name), words(&[ROOT]), text("moved")];
        assert_eq!(client.call(74, &rename), Err(Errno::PERM), "{name}");
    }
    // The guest cannot create a link.
    assert_eq!(client.call(16, &[words(&[ROOT]), text("new"), text("/etc"), words(&[0])]), Err(Errno::PERM));
    assert_eq!(fs::read(outer.path().join("secret")).unwrap(), SECRET);
}

#[test]
fn files_that_are_not_regular_are_neither_opened_nor_made() {
    let (outer, mut client) = beside_a_secret();
    let shared = outer.path().join("shared");
    mknodat(CWD, shared.join("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("the folder is writable");
    let _listener = UnixListener::bind(shared.join("socket")).expect("the folder is writable");
    for (fid, name) in [(1, "fifo"), (2, "socket")] {
        assert_eq!(client.walk(fid, &[name]), Ok(1));
        for flags in [0, 1, 2] {
            assert_eq!(client.open(fid, flags), Err(Errno::PERM), "{name}");
        }
        client.walk(fid + 10, &[]).expect("the folder exists");
        assert_eq!(client.create(fid + 10, name, 1, 0o600), Err(Errno::PERM), "{name}");
    }
    for mode in [0o020_600, 0o060_600, 0o010_600, 0o140_600] {
        let node = [words(&[ROOT]), text("node"), words(&[mode, 1, 3, 0])];
        assert_eq!(client.call(18, &node), Err(Errno::PERM), "{mode:o}");
    }
}

#[test]
fn another_file_system_below_the_folder_is_not_reached() {
    // Every host has /proc as a separate file system.
    let mut client = Client::new("/".as_ref(), Access::Read);
    assert_eq!(client.walk(1, &["proc"]), Err(Errno::XDEV));
}

#[test]
fn fids_are_limited() {
    let (_outer, mut client) = beside_a_secret();
    let first = (1..10_000).find_map(|fid| client.walk(fid, &["file"]).err());
    assert_eq!(first, Some(Errno::MFILE));
    // A version request ends all fids.
    client.call(100, &[words(&[8192]), text("9P2000.L")]).expect("the version is known");
    assert_eq!(client.clunk(1), Err(Errno::BADF));
}

#[test]
fn a_reply_never_exceeds_its_room_or_the_agreed_size() {
    let (outer, mut client) = beside_a_secret();
    fs::write(outer.path().join("shared/big"), vec![1; 1 << 20]).expect("the folder is writable");
    client.call(100, &[words(&[8192]), text("9P2000.L")]).expect("the version is known");
    let attach = [words(&[ROOT, NO_FID]), text(""), text("/"), words(&[0])];
    client.call(104, &attach).expect("it attaches");
    client.walk(1, &["big"]).expect("it exists");
    client.open(1, 0).expect("it opens");
    assert_eq!(client.read(1, 0, u32::MAX).map(|data| data.len()), Ok(8192 - 11));
    let read = message(116, &[words(&[1]), vec![0; 8], words(&[u32::MAX])].concat());
    for room in 0..64 {
        let reply = client.0.serve(&read, room);
        assert_eq!(reply.map(|reply| reply.len()), (room >= 11).then_some(room), "{room}");
    }
    let status = message(24, &[words(&[1]), vec![0; 8]].concat());
    let error = client.0.serve(&status, 20).expect("there is room for an error");
    assert_eq!(error[7..], (Errno::MSGSIZE.raw_os_error() as u32).to_le_bytes());
}

#[test]
fn malformed_requests_are_refused() {
    let (_outer, mut client) = beside_a_secret();
    let version = message(100, &[words(&[8192]), text("9P2000.L")].concat());
    // Too short, or with a wrong length in the header.
    for bytes in [&version[..0], &version[..6], &version[..12], &[version.clone(), vec![0]].concat()] {
        assert_eq!(client.0.serve(bytes, MAX_MESSAGE_BYTES), None);
    }
    assert_eq!(client.call(120, &[vec![0; 3]]), Err(Errno::PROTO));
    assert_eq!(client.call(120, &[vec![0; 5]]), Err(Errno::PROTO));
    assert_eq!(client.call(118, &[words(&[ROOT, 0, 0, u32::MAX])]), Err(Errno::PROTO));
    assert_eq!(client.call(110, &[words(&[ROOT, 1]), vec![17, 0]]), Err(Errno::INVAL));
    assert_eq!(client.call(255, &[]), Err(Errno::OPNOTSUPP));
    assert_eq!(client.call(7, &[]), Err(Errno::OPNOTSUPP));
    let mut early = Share::open(std::env::temp_dir().as_path(), Access::Read).expect("it is a folder");
    let attach = [words(&[ROOT, NO_FID]), text(""), text(""), words(&[0])].concat();
    let reply = early.serve(&message(104, &attach), MAX_MESSAGE_BYTES).expect("there is a reply");
    assert_eq!(reply[4], 7, "a version must be agreed on before");
}

/// All kinds of requests except Tversion, which ends all fids.
const KINDS: &[u8] =
    &[8, 12, 14, 16, 18, 22, 24, 26, 40, 50, 52, 54, 70, 72, 74, 76, 104, 108, 110, 116, 118, 120, 122];
const NAMES: &[&str] = &["file", "inner", "up", "parent", "root", "..", "secret", "new", "", "../secret"];

/// A request of any kind with fields that are often right.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        4 => (0..6u32).prop_map(|fid| words(&[fid])),
        4 => prop::sample::select(NAMES).prop_map(text),
        2 => prop::sample::select(&[0u32, 1, 2, 0o1101, 0x200, 0o600, 4096, u32::MAX][..]).prop_map(|it| words(&[it])),
        1 => Just(vec![1, 0]),
        1 => Just(vec![0; 8]),
        1 => any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    let kind = prop_oneof![9 => prop::sample::select(KINDS), 1 => any::<u8>().prop_filter("it ends all", |it| *it != 100)];
    let plain =
        (kind, prop::collection::vec(field, 0..7)).prop_map(|(kind, fields)| message(kind, &fields.concat()));
    let walk = (0..6u32, 0..6u32, prop::sample::select(NAMES)).prop_map(|(fid, newfid, name)| {
        message(110, &[words(&[fid, newfid]), vec![1, 0], text(name)].concat())
    });
    prop_oneof![2 => plain, 1 => walk]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_requests_reach_what_is_outside(requests in prop::collection::vec((request(), 0..512usize), 0..200)) {
        let (outer, mut client) = beside_a_secret();
        for (request, room) in requests {
            let reply = client.0.serve(&request, room);
            prop_assert!(reply.as_ref().is_none_or(|reply| reply.len() <= room));
            prop_assert!(reply.is_none_or(|reply| !reply.windows(SECRET.len()).any(|part| part == SECRET)));
        }
        let mut names: Vec<_> = fs::read_dir(outer.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        prop_assert_eq!(names, ["secret", "shared"]);
        prop_assert_eq!(fs::read(outer.path().join("secret")).unwrap(), SECRET);
    }
}
