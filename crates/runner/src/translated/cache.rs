//! The files of the translation cache, one for each program. Source: the idea is from FX!32's database and Rosetta; the
//! location follows the XDG Base Directory Specification.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use longma_core::ExportedRegions;
use longma_translate::persistent_cache::{EncodedPositions, ExportedUnits};
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

/// The maximum total size of the cache in bytes. The least recently used files are removed first.
const MAX_BYTES: u64 = 1 << 30;
/// The maximum size of a file in bytes. Larger files are neither written nor read.
const MAX_FILE_BYTES: u64 = 256 << 20;

const MAGIC: &[u8; 8] = b"LongmaT1";
const NAME: &str = "translations";
/// The extension of files that are being written.
const UNFINISHED: &str = "unfinished";

/// The content of a cache file.
pub(super) struct Content {
    pub units: ExportedUnits,
    pub regions: ExportedRegions,
    pub code: Bytes,
}

/// The cache file of a program.
#[derive(Debug)]
pub(super) struct CacheFile {
    folder: PathBuf,
    /// Device and inode of the directory at startup. The program may have replaced it since.
    folder_identity: (u64, u64),
    name: String,
    /// A hash of all inputs of the content except the program's code.
    identity: [u8; 32],
}

impl CacheFile {
    /// Determines the cache file of a program. `program` selects the file; `identity` lists everything else that the
    /// translation depends on. `None` if the directory does not exist and cannot be created, or if other users can
    /// write to it.
    pub fn of(folder: &Path, program: &[&OsStr], identity: &[String]) -> Option<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let metadata =
            fs::symlink_metadata(folder).ok().filter(|metadata| metadata.is_dir() && is_own(metadata))?;
        let build = fs::metadata("/proc/self/exe").ok()?;
        let build = format!(
            "{} {} {} {} {}",
            build.dev(),
            build.ino(),
            build.size(),
            build.mtime(),
            build.mtime_nsec()
        );
        let mut of_name = Sha256::new();
        for part in program {
            of_name.update(part.len().to_le_bytes());
            of_name.update(part.as_bytes());
        }
        let mut of_identity = Sha256::new();
        for part in [build].iter().chain(identity) {
            of_identity.update(part.len().to_le_bytes());
            of_identity.update(part.as_bytes());
        }
        let name: String = of_name.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self {
            folder: folder.into(),
            folder_identity: (metadata.dev(), metadata.ino()),
            name: format!("{name}.{NAME}"),
            identity: of_identity.finalize().into(),
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Reads the file, if it exists, is intact and has the same identity.
    pub fn read(&self) -> Option<Content> {
        let no_link = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(no_link).open(self.path()).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || !is_own(&metadata) || metadata.size() > MAX_FILE_BYTES {
            return None;
        }
        let mut bytes = Vec::with_capacity(metadata.size() as usize + 1);
        (&mut file).take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        let content = self.parse(&bytes.into())?;
        // `make_room` removes files by modification time.
        let _ = file.set_modified(SystemTime::now());
        Some(content)
    }

    fn parse(&self, bytes: &Bytes) -> Option<Content> {
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&self.identity)?;
        let (hash, rest) = rest.split_first_chunk::<8>()?;
        if XxHash3_64::oneshot(rest) != u64::from_le_bytes(*hash) {
            return None;
        }
        let mut at = bytes.len() - rest.len();
        let mut section = || {
            let length = bytes.get(at..)?.first_chunk::<8>()?;
            let start = at + length.len();
            at = start.checked_add(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            (at <= bytes.len()).then(|| bytes.slice(start..at))
        };
        let (index, units, words, steps) = (section()?, section()?, section()?, section()?);
        let (pending, regions, code) = (section()?, section()?, section()?);
        let positions = Arc::new(EncodedPositions { steps, pending });
        Some(Content {
            units: ExportedUnits { index, units, words, positions },
            regions: postcard::from_bytes(&regions).ok()?,
            code,
        })
    }

    /// Replaces the file's content atomically. Concurrent readers and writers see either the old or the new content.
    ///
    /// # Errors
    /// An I/O error, the directory was replaced, or the content is too large. The old content remains.
    pub fn write(&self, content: &Content) -> io::Result<()> {
        let metadata = fs::symlink_metadata(&self.folder)?;
        if (metadata.dev(), metadata.ino()) != self.folder_identity || !is_own(&metadata) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let regions = postcard::to_allocvec(&content.regions).map_err(io::Error::other)?;
        let ExportedUnits { index, units, words, positions } = &content.units;
        let EncodedPositions { steps, pending } = &**positions;
        let sections: [&[u8]; 7] = [index, units, words, steps, pending, &regions, &content.code];
        let mut all = Vec::new();
        for section in sections {
            all.extend((section.len() as u64).to_le_bytes());
            all.extend(section);
        }
        let bytes = (MAGIC.len() + self.identity.len() + 8 + all.len()) as u64;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if bytes > MAX_FILE_BYTES || limit.is_some_and(|limit| bytes > limit) {
            // Exceeding the second limit would raise SIGXFSZ.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        make_room(&self.folder, bytes);
        let unfinished = self.folder.join(format!("{}.{}.{UNFINISHED}", self.name, std::process::id()));
        let _ = fs::remove_file(&unfinished);
        let written = self.write_to(&unfinished, &all).and_then(|()| fs::rename(&unfinished, self.path()));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn write_to(&self, path: &Path, all: &[u8]) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(MAGIC)?;
        file.write_all(&self.identity)?;
        file.write_all(&XxHash3_64::oneshot(all).to_le_bytes())?;
        file.write_all(all)
    }

    /// Removes the file.
    pub fn remove(&self) {
        let _ = fs::remove_file(self.path());
    }
}

/// Whether the file belongs to this user, and no other user can write to it.
fn is_own(metadata: &fs::Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Removes the least recently used files until `bytes` more bytes fit, and unfinished files that are more than an hour
/// old.
fn make_room(folder: &Path, bytes: u64) {
    const HOUR_S: u64 = 3600;
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let (path, Ok(about)) = (entry.path(), entry.metadata()) else { continue };
        let Ok(used) = about.modified() else { continue };
        match path.extension().and_then(OsStr::to_str) {
            Some(NAME) => files.push((used, about.len(), path)),
            Some(UNFINISHED) if used.elapsed().is_ok_and(|age| age.as_secs() > HOUR_S) => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
    }
    files.sort_unstable();
    let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, size, path) in files {
        if all.saturating_add(bytes) <= MAX_BYTES {
            break;
        }
        let _ = fs::remove_file(path);
        all -= size;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    fn content(bytes: usize) -> Content {
        let part = |byte: u8| Bytes::from(vec![byte; bytes]);
        let positions = Arc::new(EncodedPositions { steps: part(4), pending: part(5) });
        let units = ExportedUnits { index: part(1), units: part(2), words: part(3), positions };
        Content { units, regions: ExportedRegions::default(), code: part(6) }
    }

    fn file(folder: &Path, program: &str, identity: &str) -> CacheFile {
        CacheFile::of(folder, &[OsStr::new(program)], &[identity.into()]).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_cache_file_is_read_only_by_the_same_program_and_identity() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("cache");
        let one = file(&folder, "a", "1");
        assert!(one.read().is_none());
        one.write(&content(1000)).unwrap();
        let loaded = one.read().unwrap();
        assert_eq!((&loaded.units.words[..], &loaded.code[..]), (&[3; 1000][..], &[6; 1000][..]));
        assert!(file(&folder, "a", "2").read().is_none() && file(&folder, "b", "1").read().is_none());
        // The boundaries between the parts of `program` affect the name.
        let of = |program: &[&str]| {
            let program: Vec<&OsStr> = program.iter().map(OsStr::new).collect();
            CacheFile::of(&folder, &program, &[]).unwrap().name
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        one.remove();
        assert!(one.read().is_none());
    }

    #[test]
    fn a_damaged_cache_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let one = file(&folder.path().join("cache"), "a", "1");
        one.write(&content(10)).unwrap();
        let intact = fs::read(one.path()).unwrap();
        for bit in 0..8 * intact.len() {
            let mut changed = intact.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(one.parse(&changed.into()).is_none(), "{bit}");
        }
        for length in 0..intact.len() {
            assert!(one.parse(&intact[..length].to_vec().into()).is_none(), "{length}");
        }
        assert!(one.parse(&intact.into()).is_some());
    }

    #[test]
    fn a_replaced_or_world_writable_directory_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let one = file(&path, "a", "1");
        fs::rename(&path, folder.path().join("old")).unwrap();
        assert!(one.write(&content(10)).is_err());
        fs::create_dir(&path).unwrap();
        assert!(one.write(&content(10)).is_err() && names(&path).is_empty());
        fs::remove_dir(&path).unwrap();
        fs::rename(folder.path().join("old"), &path).unwrap();
        one.write(&content(10)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(one.write(&content(10)).is_err());
        assert!(CacheFile::of(&path, &[], &[]).is_none());
    }

    #[test]
    fn the_least_recently_used_and_unfinished_files_are_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let hours = |hours: u64| SystemTime::now() - Duration::from_secs(3600 * hours);
        let create = |name: &str, bytes: u64, used: SystemTime| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(bytes).unwrap();
            file.set_modified(used).unwrap();
        };
        create("a.translations", MAX_BYTES / 2, hours(3));
        create("b.translations", MAX_BYTES / 4, hours(2));
        create("c.translations", MAX_BYTES / 4, hours(1));
        create("d.unfinished", 1, hours(2));
        create("e.unfinished", 1, hours(0));
        create("else", MAX_BYTES, hours(9));
        make_room(folder.path(), 1);
        assert_eq!(names(folder.path()), ["b.translations", "c.translations", "e.unfinished", "else"]);
        make_room(folder.path(), MAX_BYTES / 2);
        assert_eq!(names(folder.path()), ["b.translations", "c.translations", "e.unfinished", "else"]);
        make_room(folder.path(), 3 * (MAX_BYTES / 4));
        assert_eq!(names(folder.path()), ["c.translations", "e.unfinished", "else"]);
    }
}
