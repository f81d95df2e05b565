//! Unpacks an artifact bundle of any content: nothing is written outside its folder, and the size limits are observed.
//!
//! Most inputs become an archive whose headers have correct checksums, so that the contents of the headers are reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_bundle::{Limits, unpack_tar};
use std::fs;

const LIMITS: Limits = Limits { files: 32, bytes: 1 << 16 };

/// An archive of entries, each a type, the length of a name, the length of the content, the name, and the content.
fn archive(mut data: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    while let [kind, name_length, length, rest @ ..] = data {
        let (name, rest) = rest.split_at(rest.len().min(usize::from(*name_length % 100)));
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_size(content.len() as u64 + u64::from(*kind >> 7) * 512);
        header.set_entry_type(tar::EntryType::new(if kind & 3 == 0 { b'0' + (kind >> 2 & 7) } else { b'0' }));
        header.set_cksum();
        // Writing to memory does not fail.
        let _ = tar.append(&header, content);
        data = rest;
    }
    tar.into_inner().unwrap_or_default()
}

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("in");
    fs::create_dir(&into).unwrap();
    let built = match data.split_first() {
        Some((0, raw)) => raw.to_vec(),
        Some((_, entries)) => archive(entries),
        None => Vec::new(),
    };
    if let Ok(manifest) = unpack_tar(&*built, &into, LIMITS) {
        for (name, file) in &manifest.files {
            assert_eq!(fs::symlink_metadata(into.join(name)).unwrap().len(), file.bytes);
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
});
