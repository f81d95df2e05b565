//! Sends requests to a shared folder. They must not change a file beside it, and each reply must fit its buffer.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use longma_share::{Access, MAX_MESSAGE_BYTES, Share};

/// A folder that contains the shared folder and a file.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("share-requests-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("shared/inner")).expect("the host has a temporary folder");
    std::fs::write(folder.join("secret"), "secret").expect("the folder is writable");
    std::os::unix::fs::symlink("../secret", folder.join("shared/up")).expect("the folder is writable");
    folder
});
const FIRST: &[u8] = b"\x15\0\0\0\x64\0\0\0\0\x02\0\x08\09P2000.L";
const ATTACH: &[u8] = b"\x17\0\0\0\x68\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let mut share = Share::open(&FOLDER.join("shared"), Access::Write).expect("it is a folder");
    assert_eq!(share.serve(FIRST, MAX_MESSAGE_BYTES).expect("there is a reply")[4], 101);
    assert_eq!(share.serve(ATTACH, MAX_MESSAGE_BYTES).expect("there is a reply")[4], 105);
    let mut rest = data;
    // The length of a request's fields, its kind, and the length of the reply's buffer.
    while let Some((&[bytes, kind, room], behind)) = rest.split_first_chunk() {
        let (fields, behind) = behind.split_at(usize::from(bytes).min(behind.len()));
        let length = (7 + fields.len()) as u32;
        let message = [&length.to_le_bytes()[..], &[kind, 0, 0], fields].concat();
        let room = usize::from(room) * 64;
        assert!(share.serve(&message, room).is_none_or(|reply| reply.len() <= room));
        rest = behind;
    }
    assert_eq!(std::fs::read(FOLDER.join("secret")).expect("it exists"), b"secret");
});
