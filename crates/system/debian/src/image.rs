//! The image: a kernel and a RAM disk in a folder of the cache. A complete image is moved there atomically.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::download::{Archive, Failure, Observer, hash_of, sha256};
use crate::index::{LIST, hash_of_list};
use crate::package::{PackageError, files, unpack, unpack_index};
use crate::packages::{Packages, Pin};
use crate::ram_disk::RamDisk;

/// The kernel and the RAM disk in the folder of an image.
const KERNEL: &str = "vmlinuz";
const RAM_DISK: &str = "initrd.cpio";
/// The folder of fetched packages.
const DOWNLOADS: &str = "packages";
/// The file with the hashes of the image's other files, in the format of `sha256sum`.
const SUMS: &str = "sha256sums";
/// The drivers in the RAM disk. Their dependencies are added.
const MODULES: &[&str] =
    &["virtio_blk", "virtio_net", "virtio_rng", "9pnet_virtio", "9p", "ext4", "squashfs", "overlay"];
/// The programs in the RAM disk besides busybox.
const GUEST: &[(&str, &str)] =
    &[("init", include_str!("../guest/init")), ("etc/udhcpc.script", include_str!("../guest/lease"))];
/// Debian's unstable distribution, the first to include new architectures.
const DISTRIBUTION: &str = "dists/unstable";
/// Possible locations of Debian's keys.
const KEYS: &[&str] =
    &["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];

/// The image cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no image, and the network must not be used.
    #[error(
        "there is no Debian image in {0}; run `longma boot debian` once without --offline, or copy that folder from a machine that has it"
    )]
    Offline(PathBuf),
    /// The image has changed, and the network must not be used.
    #[error("the Debian image in {0} is damaged; run `longma boot debian` once without --offline")]
    Damaged(PathBuf),
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("there is no folder for the image; set XDG_CACHE_HOME or HOME to an absolute path")]
    Cache,
    /// The cache cannot be written.
    #[error("{}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The host's reason.
        error: io::Error,
    },
    /// A file cannot be fetched.
    #[error(
        "{0}; the incomplete download is kept: run the command again, or set LONGMA_DEBIAN_ARCHIVE to a mirror that can be reached by http"
    )]
    Download(String),
    /// The hash of a file differs from the expected one.
    #[error(
        "{0} does not have the expected hash: the archive or the network has changed it; set LONGMA_DEBIAN_ARCHIVE to another mirror"
    )]
    Hash(String),
    /// The list of packages is not signed by Debian.
    #[error(
        "the archive's list of packages has no valid signature of Debian: {0}; set LONGMA_DEBIAN_ARCHIVE to another mirror"
    )]
    Signature(String),
    /// The list of packages has no kernel.
    #[error(
        "Debian's list of packages has no kernel with modules and busybox for loong64; set LONGMA_DEBIAN_ARCHIVE to another mirror"
    )]
    NoKernel,
    /// A package cannot be read.
    #[error("{name}: {error}")]
    Package {
        /// The name of the package's file.
        name: String,
        /// A description of the error.
        error: PackageError,
    },
    /// A package has no such file.
    #[error("{name} has no {file}")]
    Missing {
        /// The name of the package's file.
        name: String,
        /// The file.
        file: String,
    },
}

/// A kernel and its RAM disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The kernel, as Debian ships it.
    pub kernel: PathBuf,
    /// The RAM disk.
    pub initrd: PathBuf,
}

impl Image {
    /// Whether the files in `folder` are unchanged; `None` if there are none.
    fn is_intact(&self, folder: &Path) -> Option<bool> {
        let sums = std::fs::read_to_string(folder.join(SUMS)).unwrap_or_default();
        let has_sum = |path: &Path, name: &str| {
            hash_of(path).is_ok_and(|hash| sums.lines().any(|line| line == sum_line(&hash, name).trim_end()))
        };
        let exists = self.kernel.is_file() && self.initrd.is_file();
        exists.then(|| has_sum(&self.kernel, KERNEL) && has_sum(&self.initrd, RAM_DISK))
    }
}

/// A line of [`SUMS`].
fn sum_line(hash: &str, name: &str) -> String {
    format!("{hash}  {name}\n")
}

/// Whether all packages have been fetched.
fn has_packages(packages: &Packages, cache: &Path) -> bool {
    let folder = cache.join(DOWNLOADS);
    packages
        .each()
        .iter()
        .all(|pin| hash_of(&folder.join(file_name(pin))).is_ok_and(|hash| hash == pin.sha256))
}

/// The permitted sources of an image.
pub enum Source {
    /// The cache only.
    Cache,
    /// The cache, else an archive.
    Archive(Archive),
}

/// The folder of images: `longma/boot` in `XDG_CACHE_HOME`, or in `.cache` in the home folder.
///
/// # Errors
/// Neither variable is an absolute path.
pub fn cache_folder() -> Result<PathBuf, ImageError> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Ok(cache.ok_or(ImageError::Cache)?.join("longma/boot"))
}

/// Returns the image in the folder `cache`, after making it if it is missing.
///
/// # Errors
/// The image is missing and `source` is the cache, the archive cannot be reached or has other files, or the folder
/// cannot be written.
pub fn image(cache: &Path, source: &Source, observer: &mut dyn Observer) -> Result<Image, ImageError> {
    image_of(&Packages::pinned(), cache, source, observer)
}

/// The image of these packages, or of their newest versions if the archive has replaced them.
fn image_of(
    packages: &Packages,
    cache: &Path,
    source: &Source,
    observer: &mut dyn Observer,
) -> Result<Image, ImageError> {
    let folder = cache.join(format!("debian-{}", recipe(packages)));
    let image = Image { kernel: folder.join(KERNEL), initrd: folder.join(RAM_DISK) };
    let is_damaged = match image.is_intact(&folder) {
        Some(true) => return Ok(image),
        Some(false) => true,
        None => false,
    };
    let archive = match source {
        Source::Archive(archive) => Some(archive),
        Source::Cache if has_packages(packages, cache) => None,
        Source::Cache if is_damaged => return Err(ImageError::Damaged(folder)),
        Source::Cache => return Err(ImageError::Offline(cache.to_owned())),
    };
    if is_damaged {
        observer.note(&format!("{} is damaged: making it again", folder.display()));
    }
    let write = |path: &Path| {
        let path = path.to_owned();
        move |error| ImageError::Write { path, error }
    };
    std::fs::create_dir_all(cache).map_err(write(cache))?;
    let lock = cache.join("lock");
    let locked = File::create(&lock).map_err(write(&lock))?;
    // If another command is making the image, that command holds the lock until the image is complete.
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| write(&lock)(error.into()))?;
    if image.is_intact(&folder) == Some(true) {
        return Ok(image);
    }
    let contents = fetch(archive, packages, cache, observer)?;
    observer.begin("making the image", 0);
    let made = tempfile::Builder::new().prefix("new-").tempdir_in(cache).map_err(write(cache))?;
    let names = contents.names.join("\n") + "\n";
    let ram_disk = contents.ram_disk();
    let sums = sum_line(&sha256(&contents.kernel), KERNEL) + &sum_line(&sha256(&ram_disk), RAM_DISK);
    let parts = [
        (KERNEL, contents.kernel.as_slice()),
        (RAM_DISK, ram_disk.as_slice()),
        ("packages.txt", names.as_bytes()),
        (SUMS, sums.as_bytes()),
    ];
    for (name, bytes) in parts {
        let path = made.path().join(name);
        std::fs::write(&path, bytes).map_err(write(&path))?;
    }
    // Removes a damaged image.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::rename(made.keep(), &folder).map_err(write(&folder))?;
    let downloads = cache.join(DOWNLOADS);
    let _ = std::fs::remove_dir_all(downloads);
    Ok(image)
}

/// Identifies the contents of the image, which also depend on the version of this program.
fn recipe(packages: &Packages) -> String {
    let mut text = format!("{MODULES:?} {GUEST:?}");
    for pin in packages.each() {
        text += &pin.sha256;
    }
    sha256(text.as_bytes())[..12].to_owned()
}

/// The files extracted from packages.
struct Contents {
    /// The packages' files.
    names: Vec<String>,
    kernel: Vec<u8>,
    busybox: Vec<u8>,
    /// Modules in the order in which they are loaded, with their names.
    modules: Vec<(String, Vec<u8>)>,
}

/// Fetches the pinned packages, or the newest versions if the archive no longer has them. Without an archive, all
/// packages must have been fetched before.
fn fetch(
    archive: Option<&Archive>,
    pinned: &Packages,
    cache: &Path,
    observer: &mut dyn Observer,
) -> Result<Contents, ImageError> {
    let folder = cache.join(DOWNLOADS);
    std::fs::create_dir_all(&folder).map_err(|error| ImageError::Write { path: folder.clone(), error })?;
    let Some(archive) = archive else { return Contents::of(pinned, &folder) };
    match fetch_all(archive, pinned, &folder, observer) {
        Ok(()) => Contents::of(pinned, &folder),
        Err((name, Failure::Gone)) => {
            observer.note(&format!("{name} is no longer in Debian's archive: using the newest kernel"));
            let newest = Packages::newest(&list(archive, observer)?).ok_or(ImageError::NoKernel)?;
            fetch_all(archive, &newest, &folder, observer).map_err(report)?;
            Contents::of(&newest, &folder)
        }
        Err(failure) => Err(report(failure)),
    }
}

fn report((name, failure): (String, Failure)) -> ImageError {
    match failure {
        Failure::Gone => ImageError::Download(format!("the archive has no {name}")),
        Failure::Hash => ImageError::Hash(name),
        Failure::Other(reason) => ImageError::Download(reason),
    }
}

fn fetch_all(
    archive: &Archive,
    packages: &Packages,
    folder: &Path,
    observer: &mut dyn Observer,
) -> Result<(), (String, Failure)> {
    packages.each().into_iter().try_for_each(|pin| {
        let fetched = archive.fetch(&pin.path, &pin.sha256, &folder.join(file_name(pin)), observer);
        fetched.map_err(|failure| (file_name(pin).to_owned(), failure))
    })
}

/// The name of a package's file.
fn file_name(pin: &Pin) -> &str {
    pin.path.rsplit('/').next().unwrap_or(&pin.path)
}

/// Debian's list of packages, after a check of its hash and, if possible, of Debian's signature.
fn list(archive: &Archive, observer: &mut dyn Observer) -> Result<String, ImageError> {
    let signed = archive.get(&format!("{DISTRIBUTION}/InRelease"));
    let signed = signed.map_err(|failure| report(("InRelease".to_owned(), failure)))?;
    let hash = hash_of_list(&signed_text(&signed, observer)?).ok_or(ImageError::NoKernel)?;
    list_with(archive, &hash)
}

/// The list of packages with this hash.
fn list_with(archive: &Archive, hash: &str) -> Result<String, ImageError> {
    let list = archive.get(&format!("{DISTRIBUTION}/{LIST}"));
    let list = list.map_err(|failure| report((LIST.to_owned(), failure)))?;
    if sha256(&list) != hash {
        return Err(ImageError::Hash(LIST.to_owned()));
    }
    let damaged = |error: io::Error| ImageError::Package { name: LIST.to_owned(), error: error.into() };
    Ok(String::from_utf8_lossy(&unpack_index(&list).map_err(damaged)?).into_owned())
}

/// The text of a signed file. Without gpgv or Debian's keys, the signature is not checked, and a note says so.
fn signed_text(signed: &[u8], observer: &mut dyn Observer) -> Result<String, ImageError> {
    let Some(keys) = KEYS.iter().copied().find(|keys| Path::new(keys).exists()) else {
        observer.note("Debian's signature was not checked: debian-archive-keyring is not installed");
        return Ok(String::from_utf8_lossy(signed).into_owned());
    };
    let failed = |error: io::Error| ImageError::Signature(error.to_string());
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    io::Write::write_all(&mut file, signed).map_err(failed)?;
    let checked = Command::new("gpgv")
        .args(["--keyring", keys, "--output", "-"])
        .arg(file.path())
        .stdin(Stdio::null())
        .output();
    match checked {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            Err(ImageError::Signature(reason.lines().last().unwrap_or("gpgv failed").to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            observer.note("Debian's signature was not checked: gpgv is not installed");
            Ok(String::from_utf8_lossy(signed).into_owned())
        }
        Err(error) => Err(failed(error)),
    }
}

impl Contents {
    /// Extracts the files from packages in a folder.
    fn of(packages: &Packages, folder: &Path) -> Result<Self, ImageError> {
        let read = |pin: &Pin, choose: &mut dyn FnMut(&str) -> bool| {
            let (path, name) = (folder.join(file_name(pin)), file_name(pin).to_owned());
            let bytes = std::fs::read(&path).map_err(|error| ImageError::Write { path, error })?;
            files(&bytes, choose).map_err(|error| ImageError::Package { name, error })
        };
        let one = |pin: &Pin, file: &str| {
            let end = format!("/{file}");
            let mut found = read(pin, &mut |path| path.ends_with(&end))?;
            let missing = || ImageError::Missing { name: file_name(pin).to_owned(), file: file.to_owned() };
            found.pop().map(|(_, content)| content).ok_or_else(missing)
        };
        let modules = read(&packages.modules, &mut |path| path.contains(".ko"))?;
        Ok(Self {
            names: packages.each().map(|pin| format!("{} {}", pin.sha256, pin.path)).to_vec(),
            kernel: one(&packages.kernel, "vmlinuz")?,
            busybox: one(&packages.busybox, "bin/busybox")?,
            modules: in_order(modules, file_name(&packages.modules))?,
        })
    }

    /// The archive of programs and modules.
    fn ram_disk(&self) -> Vec<u8> {
        let mut disk = RamDisk::default();
        for folder in ["dev", "proc", "sys", "tmp", "root", "mnt", "usr/bin", "usr/sbin", "bin", "sbin"] {
            disk.folder(folder);
        }
        disk.file("bin/busybox", &self.busybox);
        disk.link("bin/sh", "busybox");
        for (path, content) in GUEST {
            disk.file(path, content.as_bytes());
        }
        let mut order = String::new();
        for (name, content) in &self.modules {
            order += &format!("{name}\n");
            disk.file(&format!("lib/modules/{name}.ko"), content);
        }
        disk.file("lib/modules/order", order.as_bytes());
        disk.finish()
    }
}

/// The available modules of [`MODULES`] and their dependencies, in load order.
fn in_order(files: Vec<(String, Vec<u8>)>, package: &str) -> Result<Vec<(String, Vec<u8>)>, ImageError> {
    let mut all = BTreeMap::new();
    for (path, content) in files {
        let name = path.rsplit('/').next().unwrap_or(&path).split(".ko").next().unwrap_or_default();
        all.insert(name.replace('-', "_"), (path, content));
    }
    let mut ordered = Vec::new();
    for name in MODULES {
        add_module(name, &mut all, &mut ordered)
            .map_err(|error| ImageError::Package { name: package.to_owned(), error: error.into() })?;
    }
    Ok(ordered)
}

/// Moves a module and its dependencies from `all` to `ordered`. A module that is not in `all` is built into the kernel
/// or already being moved.
fn add_module(
    name: &str,
    all: &mut BTreeMap<String, (String, Vec<u8>)>,
    ordered: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    let Some((path, content)) = all.remove(name) else { return Ok(()) };
    let content = unpack(&path, content)?;
    for need in needs(&content) {
        add_module(&need, all, ordered)?;
    }
    ordered.push((name.to_owned(), content));
    Ok(())
}

/// The dependencies of a module, from its `.modinfo` section.
fn needs(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(FIELD.len()).position(|part| part == FIELD) else { return Vec::new() };
    let list = module[at + FIELD.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = list.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

#[cfg(test)]
mod tests;
