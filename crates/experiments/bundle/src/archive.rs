//! Writes and unpacks bundles. An archive is a tar file of regular files in the order of their paths, without times,
//! owners and modes, compressed with zstd if its name ends in `.zst`. Unpacking trusts nothing in it.
//!
//! Source: POSIX.1-2017, pax (ustar interchange format); RFC 8878 (Zstandard).

use crate::manifest::{BundledFile, Contents, Manifest, is_path};
use longma_text::{display_path, sanitize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The file that lists all others.
pub const MANIFEST: &str = "bundle.json";
/// Compression level of zstd: its default, named because the bytes depend on it.
const LEVEL: i32 = 3;
/// The largest window that an archive may ask for, as a power of two: 128 MiB.
const MAX_WINDOW: u32 = 27;
/// Why an archive with something after its last entry is refused.
const AFTER_THE_END: &str = "it has data after the end of the archive";
/// Bytes of a tar header and of the unit that contents are padded to.
const BLOCK: u64 = 512;

/// How much a bundle may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Bytes of all files together.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { files: 20_000, bytes: 2 << 30 }
    }
}

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file of this host cannot be read or written.
    #[error("{}: {error}", display_path(path))]
    File {
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The bundle is damaged, hostile, or not a bundle.
    #[error("{} is not a valid bundle: {what}", display_path(path))]
    Invalid {
        /// Path of the bundle.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// An experiment cannot be put into a bundle.
    #[error("{0}")]
    Experiment(String),
}

fn of_file(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    let path = path.to_path_buf();
    move |error| BundleError::File { path, error }
}

/// Writes the files to `out`: an archive if its name ends in `.tar` or `.tar.zst`, otherwise a new folder. An existing
/// archive is replaced. The folders above it are created.
///
/// # Errors
/// If there is more than a reader accepts, the folder is not empty, or the operating system reports an error.
pub fn write(contents: &Contents, out: &Path, limits: Limits) -> Result<(), BundleError> {
    let bytes: u64 = contents.values().map(|bytes| bytes.len() as u64).sum();
    if contents.len() > limits.files || bytes > limits.bytes {
        let Limits { files, bytes: most } = limits;
        return Err(BundleError::Experiment(format!(
            "the bundle would have {} files with {bytes} bytes; at most {files} files with {most} bytes fit",
            contents.len()
        )));
    }
    if !is_archive(out) {
        return write_folder(contents, out);
    }
    let bytes = archive(contents, is_compressed(out)).map_err(of_file(out))?;
    out.parent().map_or(Ok(()), fs::create_dir_all).map_err(of_file(out))?;
    longma_lab::write_atomically(out, &bytes).map_err(of_file(out))
}

fn is_compressed(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b".zst")
}

fn is_archive(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes();
    name.ends_with(b".tar") || name.ends_with(b".tar.zst")
}

fn write_folder(contents: &Contents, out: &Path) -> Result<(), BundleError> {
    fs::create_dir_all(out).map_err(of_file(out))?;
    if fs::read_dir(out).map_err(of_file(out))?.next().is_some() {
        return Err(BundleError::Experiment(format!("the folder {} is not empty", display_path(out))));
    }
    for (name, bytes) in contents {
        let path = out.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(of_file(&path))?;
        fs::write(&path, bytes).map_err(of_file(&path))?;
    }
    Ok(())
}

/// The archive of the files. The same files give the same bytes.
fn archive(contents: &Contents, compressed: bool) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in contents {
        let mut header = tar::Header::new_ustar();
        header.set_path(name)?;
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_cksum();
        tar.append(&header, &**bytes)?;
    }
    let plain = tar.into_inner()?;
    if !compressed {
        return Ok(plain);
    }
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.write_all(&plain)?;
    encoder.finish()
}

/// Unpacks the bundle at `path`, an archive or a folder, into the empty folder `into`, and checks each file against the
/// manifest.
///
/// # Errors
/// If it is not a valid bundle, or the operating system reports an error.
pub fn unpack(path: &Path, into: &Path, limits: Limits) -> Result<Manifest, BundleError> {
    let about = fs::metadata(path).map_err(of_file(path))?;
    let written = if about.is_dir() {
        copy_folder(path, into, limits)
    } else if about.is_file() {
        let file = File::open(path).map_err(of_file(path))?;
        unpack_any(BufReader::new(file), into, limits)
    } else {
        Err(Fault::Invalid("it is neither a file nor a folder".into()))
    };
    let checked = written.and_then(|written| check(&written, into));
    checked.map_err(|fault| fault.at(path))
}

/// Unpacks an archive that is not compressed into the empty folder `into`, and checks it like [`unpack`].
///
/// # Errors
/// Like [`unpack`].
pub fn unpack_tar(archive: impl Read, into: &Path, limits: Limits) -> Result<Manifest, BundleError> {
    let written = unpack_plain(archive, into, limits).and_then(|written| check(&written, into));
    written.map_err(|fault| fault.at(Path::new("the archive")))
}

/// An error of unpacking.
enum Fault {
    Invalid(String),
    File(PathBuf, io::Error),
}

impl Fault {
    fn at(self, bundle: &Path) -> BundleError {
        match self {
            Fault::Invalid(what) => BundleError::Invalid { path: bundle.into(), what },
            Fault::File(path, error) => BundleError::File { path, error },
        }
    }
}

/// Digests of the unpacked files by path.
type Written = BTreeMap<String, BundledFile>;

fn unpack_any(mut file: impl Read, into: &Path, limits: Limits) -> Result<Written, Fault> {
    /// Source: RFC 8878, section 3.1.1.
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let damaged = |error: io::Error| Fault::Invalid(error.to_string());
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic).map_err(damaged)?;
    let is_compressed = magic == ZSTD_MAGIC;
    let whole = io::Cursor::new(magic).chain(file);
    if !is_compressed {
        return unpack_plain(whole, into, limits);
    }
    let decoder = zstd::Decoder::with_buffer(BufReader::new(whole)).map_err(damaged)?;
    // A second frame would be data after the archive.
    let mut decoder = decoder.single_frame();
    decoder.window_log_max(MAX_WINDOW).map_err(damaged)?;
    let written = unpack_plain(&mut decoder, into, limits)?;
    match decoder.finish().read(&mut [0]).map_err(damaged)? {
        0 => Ok(written),
        _ => Err(Fault::Invalid(AFTER_THE_END.into())),
    }
}

fn unpack_plain(archive: impl Read, into: &Path, limits: Limits) -> Result<Written, Fault> {
    // Bounds headers and padding as well as contents: a header and at most one block of padding for each file.
    let most = limits.bytes.saturating_add((limits.files as u64 + 4) * 2 * BLOCK);
    let mut archive = tar::Archive::new(archive.take(most));
    let invalid = |error: io::Error| Fault::Invalid(error.to_string());
    let mut into = Unpacked { folder: into, limits, bytes: 0, written: Written::new() };
    // Raw entries: extensions of the format, such as long names, are entries of other types, which are refused.
    for entry in archive.entries().map_err(invalid)?.raw(true) {
        let mut entry = entry.map_err(invalid)?;
        let kind = entry.header().entry_type();
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| Fault::Invalid("a path is not UTF-8".into()))?;
        if kind != tar::EntryType::Regular {
            return Err(Fault::Invalid(format!("`{}` is not a regular file", sanitize(&name))));
        }
        let size = entry.header().entry_size().map_err(invalid)?;
        into.add(name, size, &mut entry)?;
    }
    end(archive.into_inner())
        .map_err(invalid)?
        .then_some(into.written)
        .ok_or(Fault::Invalid(AFTER_THE_END.into()))
}

/// Whether only zeros follow the last entry. The format fills the last record of an archive with them.
fn end(mut rest: impl Read) -> io::Result<bool> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) if buffer[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
}

/// Copies a bundle that is a folder. Links are refused.
fn copy_folder(bundle: &Path, into: &Path, limits: Limits) -> Result<Written, Fault> {
    /// Deeper folders are refused.
    const MAX_DEPTH: usize = 32;
    let mut into = Unpacked { folder: into, limits, bytes: 0, written: Written::new() };
    let mut folders = vec![(bundle.to_path_buf(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        let failed = |error| Fault::File(folder.clone(), error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().into_string();
            let name = name.map_err(|_| Fault::Invalid("a path is not UTF-8".into()))?;
            let name = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() && depth < MAX_DEPTH {
                folders.push((entry.path(), format!("{name}/"), depth + 1));
            } else if kind.is_file() {
                let failed = |error| Fault::File(entry.path(), error);
                let mut file = File::open(entry.path()).map_err(failed)?;
                let size = file.metadata().map_err(failed)?.len();
                into.add(name, size, &mut file)?;
            } else {
                return Err(Fault::Invalid(format!("`{}` is not a regular file", sanitize(&name))));
            }
        }
    }
    Ok(into.written)
}

/// A folder that a bundle is unpacked into.
struct Unpacked<'a> {
    folder: &'a Path,
    limits: Limits,
    bytes: u64,
    written: Written,
}

impl Unpacked<'_> {
    /// Writes a file of `size` bytes.
    fn add(&mut self, name: String, size: u64, content: &mut dyn Read) -> Result<(), Fault> {
        let shown = || sanitize(&name);
        if !is_path(&name) {
            return Err(Fault::Invalid(format!("the path `{}` leads out of the bundle", shown())));
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.written.len() == self.limits.files || self.bytes > self.limits.bytes {
            let Limits { files, bytes } = self.limits;
            return Err(Fault::Invalid(format!("it has over {files} files or {bytes} bytes")));
        }
        let path = self.folder.join(&name);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                Fault::Invalid(format!("the path `{}` appears twice", shown()))
            }
            _ => Fault::File(path.clone(), error),
        };
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let mut digest = Sha256::new();
        let (mut buffer, mut left) = (vec![0; 64 << 10], size);
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = match content.read(&mut buffer[..most]) {
                Ok(0) => return Err(Fault::Invalid(format!("`{}` is cut off", shown()))),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Invalid(format!("`{}`: {error}", shown()))),
            };
            digest.update(&buffer[..read]);
            file.write_all(&buffer[..read]).map_err(failed)?;
            left -= read as u64;
        }
        let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.written.insert(name, BundledFile { sha256, bytes: size });
        Ok(())
    }
}

/// Reads the manifest, and checks that the bundle has exactly the files that it lists.
fn check(written: &Written, folder: &Path) -> Result<Manifest, Fault> {
    let path = folder.join(MANIFEST);
    if !written.contains_key(MANIFEST) {
        return Err(Fault::Invalid(format!("it has no {MANIFEST}")));
    }
    let bytes = fs::read(&path).map_err(|error| Fault::File(path, error))?;
    let manifest = Manifest::parse(&bytes).map_err(Fault::Invalid)?;
    for (name, file) in &manifest.files {
        match written.get(name) {
            None => return Err(Fault::Invalid(format!("`{}` is missing", sanitize(name)))),
            Some(found) if found != file => {
                return Err(Fault::Invalid(format!("`{}` has changed: its digest differs", sanitize(name))));
            }
            Some(_) => {}
        }
    }
    match written.keys().find(|name| *name != MANIFEST && !manifest.files.contains_key(*name)) {
        Some(name) => Err(Fault::Invalid(format!("{MANIFEST} does not list `{}`", sanitize(name)))),
        None => Ok(manifest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    fn contents() -> Contents {
        let files = [("a/b.toml", "one"), ("c", ""), ("files/long", "three")];
        let mut contents: Contents =
            files.iter().map(|(name, text)| (name.to_string(), text.as_bytes().to_vec())).collect();
        let manifest = Manifest::new("0", "make", &contents);
        contents.insert(MANIFEST.into(), manifest.to_json());
        contents
    }

    /// An archive with one entry more.
    fn with_entry(name: &[u8], kind: tar::EntryType, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.set_size(content.len() as u64);
        header.set_entry_type(kind);
        header.set_cksum();
        let mut tar = tar::Builder::new(Vec::new());
        tar.append(&header, content).unwrap();
        for (name, bytes) in contents() {
            let mut header = tar::Header::new_ustar();
            header.set_path(&name).unwrap();
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, &*bytes).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn error(archive: &[u8], limits: Limits) -> String {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("in");
        fs::create_dir(&into).unwrap();
        let error = unpack_tar(archive, &into, limits).unwrap_err().to_string();
        let beside: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(beside.len(), 1, "a file was written beside the folder: {error}");
        error
    }

    #[test]
    fn a_bundle_has_the_same_bytes_each_time_and_survives_each_form() {
        let folder = tempfile::tempdir().unwrap();
        let contents = contents();
        for name in ["x.tar", "x.tar.zst", "x", "new/folder/x.tar"] {
            let out = folder.path().join(name);
            write(&contents, &out, Limits::default()).unwrap();
            let into = folder.path().join(format!("{name} unpacked"));
            fs::create_dir(&into).unwrap();
            let manifest = unpack(&out, &into, Limits::default()).unwrap();
            assert_eq!(manifest.files.len(), 3, "{name}");
            assert_eq!(fs::read(into.join("a/b.toml")).unwrap(), b"one");
        }
        for compressed in [false, true] {
            assert_eq!(archive(&contents, compressed).unwrap(), archive(&contents, compressed).unwrap());
        }
        let again = write(&contents, &folder.path().join("x"), Limits::default()).unwrap_err();
        assert!(again.to_string().contains("not empty"), "{again}");
    }

    #[test]
    fn what_leads_out_of_the_bundle_is_refused() {
        let regular = tar::EntryType::Regular;
        for name in ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "a/.", "", "a\x1bb", "a\\b"] {
            let message = error(&with_entry(name.as_bytes(), regular, b"x"), Limits::default());
            assert!(message.contains("leads out of the bundle"), "{name:?}: {message}");
            assert!(!message.contains('\x1b'), "{message}");
        }
        assert!(error(&with_entry(b"\xff", regular, b"x"), Limits::default()).contains("UTF-8"));
        let kinds = [
            tar::EntryType::Symlink,
            tar::EntryType::Link,
            tar::EntryType::Char,
            tar::EntryType::Fifo,
            tar::EntryType::Directory,
            tar::EntryType::GNULongName,
            tar::EntryType::XHeader,
            tar::EntryType::GNUSparse,
        ];
        for kind in kinds {
            let message = error(&with_entry(b"evil", kind, b""), Limits::default());
            assert!(message.contains("not a regular file"), "{kind:?}: {message}");
        }
        assert!(error(&with_entry(b"c", regular, b"x"), Limits::default()).contains("appears twice"));
        assert!(error(&with_entry(b"a", regular, b"x"), Limits::default()).contains("appears twice"));
        assert!(error(&with_entry(b"d", regular, b"x"), Limits::default()).contains("does not list `d`"));
    }

    #[test]
    fn sizes_are_bounded_before_anything_is_written() {
        let archive = with_entry(b"big", tar::EntryType::Regular, &[0; 5000]);
        let message = error(&archive, Limits { files: 100, bytes: 4000 });
        assert!(message.contains("over 100 files or 4000 bytes"), "{message}");
        assert!(error(&archive, Limits { files: 2, bytes: 1 << 20 }).contains("over 2 files"));
        // The header states more than the archive has.
        let mut header = tar::Header::new_ustar();
        header.set_path("big").unwrap();
        header.set_size(1 << 40);
        header.set_cksum();
        assert!(error(header.as_bytes(), Limits::default()).contains("over 20000 files"));
        header.set_size(1 << 30);
        header.set_cksum();
        assert!(error(header.as_bytes(), Limits::default()).contains("cut off"));
    }

    #[test]
    fn a_link_in_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (out, into) = (folder.path().join("bundle"), folder.path().join("into"));
        write(&contents(), &out, Limits::default()).unwrap();
        symlink("/etc/passwd", out.join("link")).unwrap();
        fs::create_dir(&into).unwrap();
        let message = unpack(&out, &into, Limits::default()).unwrap_err().to_string();
        assert!(message.contains("`link` is not a regular file"), "{message}");
    }

    #[test]
    fn a_changed_or_missing_file_is_refused() {
        let changed = |change: fn(&mut Contents)| {
            let mut contents = contents();
            change(&mut contents);
            error(&archive(&contents, false).unwrap(), Limits::default())
        };
        let message = changed(|files| files.get_mut("c").unwrap().push(1));
        assert!(message.contains("`c` has changed"), "{message}");
        assert!(changed(|files| drop(files.remove("c"))).contains("`c` is missing"));
        assert!(changed(|files| drop(files.remove(MANIFEST))).contains("no bundle.json"));
        assert!(changed(|files| drop(files.insert(MANIFEST.into(), b"{".to_vec()))).contains("bundle.json"));
    }

    #[test]
    fn data_after_the_end_is_refused_and_padding_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let unpacked = |bytes: &[u8]| {
            let into = tempfile::tempdir().unwrap();
            let file = folder.path().join("bundle");
            fs::write(&file, bytes).unwrap();
            unpack(&file, into.path(), Limits::default()).map(drop).map_err(|error| error.to_string())
        };
        let (plain, compressed) = (archive(&contents(), false).unwrap(), archive(&contents(), true).unwrap());
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, LEVEL).unwrap();
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7];
        for (what, bytes) in [
            ("words", [&plain[..], b"junk"].concat()),
            ("a word beyond zeros", [&plain[..], &[0; 100_000], b"x"].concat()),
            ("another archive", [&plain[..], &plain].concat()),
            ("compressed words", zstd(&[&plain[..], b"junk"].concat())),
            ("words after the frame", [&compressed[..], b"junk"].concat()),
            ("a skippable frame", [&compressed[..], &skippable].concat()),
            ("a second frame", [&compressed[..], &zstd(b"junk")].concat()),
        ] {
            let error = unpacked(&bytes).expect_err(what);
            assert!(error.contains("after the end"), "{what}: {error}");
        }
        assert_eq!(unpacked(&[&plain[..], &[0; 10_240]].concat()), Ok(()));
        assert_eq!(unpacked(&compressed), Ok(()));
    }

    proptest! {
        #[test]
        fn any_change_of_an_archive_is_an_error_or_without_effect(
            at in 0.0..1.0f64, with in prop::collection::vec(any::<u8>(), 1..80), cut: bool, compressed: bool,
        ) {
            let mut bytes = archive(&contents(), compressed).unwrap();
            let at = (bytes.len() as f64 * at) as usize;
            if cut {
                bytes.truncate(at);
            } else {
                let end = (at + with.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&with[..end - at]);
            }
            let folder = tempfile::tempdir().unwrap();
            let (file, into) = (folder.path().join("bundle"), folder.path().join("into"));
            fs::create_dir(&into).unwrap();
            fs::write(&file, &bytes).unwrap();
            if unpack(&file, &into, Limits::default()).is_ok() {
                // No digest covers the manifest, so changed text in it is not an error.
                for (name, content) in contents().into_iter().filter(|(name, _)| name != MANIFEST) {
                    prop_assert_eq!(fs::read(into.join(name)).unwrap(), content);
                }
            }
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }
}
