//! Checks disk images before they are attached. An image must not refer to another file, because a previous guest may
//! have written its header. Images in an operator's template are not checked.
//!
//! Source: QEMU's docs/interop/qcow2.txt: backing file, and incompatible feature bit for an external data file.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path};

/// Number of header bytes read.
const HEADER_BYTES: usize = 80;
const MAGIC: &[u8] = b"QFI\xfb";
/// Incompatible feature bit: the data is in an external file.
const EXTERNAL_DATA: u64 = 1 << 2;

/// Checks that an image refers to no other file.
///
/// # Errors
/// The error and its remedy.
pub(super) fn check(path: &Path, format: &str) -> Result<(), String> {
    let name = path.display();
    let seen = fs::symlink_metadata(path).map_err(|error| format!("its image {name}: {error}"))?;
    let kind = seen.file_type();
    if kind.is_symlink() {
        return Err(format!("its image {name} is a symbolic link: give the path of the target file"));
    }
    // A symbolic link in the path would let the owner of its directory redirect it anywhere.
    if let Some(link) = path.ancestors().skip(1).find(|folder| folder.is_symlink()) {
        return Err(format!(
            "the path of its image {name} contains a symbolic link, {}: give the target directory instead \
                (for tenants, with --images)",
            link.display()
        ));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("the path of its image {name} contains `..`: give it without"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(format!("its image {name} is neither a file nor a block device"));
    }
    match format {
        "raw" => Ok(()),
        "qcow2" => check_qcow2(path).map_err(|why| format!("its image {name} {why}")),
        other => Err(format!(
            "images of format {other} can refer to other files: convert it to raw or qcow2, or use a template"
        )),
    }
}

fn check_qcow2(path: &Path) -> Result<(), String> {
    let mut header = [0; HEADER_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if !header.starts_with(MAGIC) {
        return Err("is not a qcow2 image".into());
    }
    let word = |at: usize| header[at..at + 8].iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
    let version = word(0) & 0xffff_ffff;
    if word(8) != 0 {
        return Err("has a backing file: flatten it with qemu-img convert, or use a template".into());
    }
    if version >= 3 && word(72) & EXTERNAL_DATA != 0 {
        return Err("has an external data file: flatten it with qemu-img convert, or use a template".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(change: impl Fn(&mut Vec<u8>)) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn a_self_contained_image_is_accepted() {
        let (_folder, path) = image(|_| {});
        assert_eq!([check(&path, "qcow2"), check(&path, "raw")], [Ok(()), Ok(())]);
    }

    #[test]
    fn an_image_behind_a_link_in_its_path_is_refused() {
        let (folder, path) = image(|_| {});
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let behind = link.join(path.file_name().unwrap());
        let refused = check(&behind, "raw").unwrap_err();
        assert!(refused.contains(&format!("contains a symbolic link, {}:", link.display())), "{refused}");
        let up = folder.path().join("x/../image");
        fs::create_dir(folder.path().join("x")).unwrap();
        assert!(check(&up, "raw").unwrap_err().contains("`..`"));
    }

    #[test]
    fn an_image_that_refers_to_another_file_is_refused() {
        let backed = image(|bytes| bytes[15] = 104);
        let external = image(|bytes| bytes[79] = 4);
        let none = image(|bytes| bytes[0] = b'X');
        for (reason, (_, path)) in
            [("backing file", &backed), ("external data file", &external), ("not a qcow2", &none)]
        {
            assert!(check(path, "qcow2").unwrap_err().contains(reason), "{reason}");
        }
        let link = backed.0.path().join("link");
        std::os::unix::fs::symlink(&none.1, &link).unwrap();
        assert!(check(&link, "raw").unwrap_err().contains("symbolic link"));
        assert!(check(backed.0.path(), "raw").unwrap_err().contains("neither"));
        assert!(check(&backed.1, "vmdk").unwrap_err().contains("convert"));
        assert!(check(Path::new("/nowhere/image"), "raw").is_err());
    }
}
