//! Attaches the devices that the options of `longma boot` name.

use super::{Arguments, usage};
use longma_system::net::{Network, NetworkError};
use longma_system::{Access, Disk, DiskOptions, ImageFormat, Machine, Share, SharedFolder};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

/// Seeds the device of random numbers, so that runs repeat.
const SEED: u64 = 1;
/// The tag of a shared folder without `tag=`.
const TAG: &str = "share";
/// The number of open files that a machine with shared folders may have, if the host allows it.
const OPEN_FILES: u64 = 1 << 14;

/// Attaches the disks, a source of random numbers, the NIC and the shared folders to the machine's bus; with
/// `needs_nic`, the NIC also without a network. Returns whether the machine has a network.
pub fn attach(machine: &mut Machine, arguments: &Arguments, needs_nic: bool) -> Result<bool, Box<dyn Error>> {
    for disk in &arguments.disk {
        let (path, options) = disk_options(disk);
        let opened = Disk::open(Path::new(path), &options);
        machine.attach_disk(opened.map_err(|error| format!("--disk {disk}: {error}"))?)?;
    }
    machine.attach_entropy(SEED)?;
    let network = Network::open(&arguments.net).map_err(|error| match error {
        NetworkError::Text(_) => usage(format!("--net: {error}")),
        _ => format!("--net: {error}").into(),
    })?;
    let has_network = network.is_some();
    let network = network.or_else(|| needs_nic.then(Network::empty));
    network.map(|network| machine.attach_network(network)).transpose()?;
    attach_shares(machine, &arguments.share)?;
    Ok(has_network)
}

/// The first value of `--disk` with the option `write`.
pub fn changed_disk(disks: &[String]) -> Option<&String> {
    disks.iter().find(|disk| disk_options(disk).1.changes_image)
}

/// The path and the options of a value of `--disk`. Options are at the end; the path can contain commas.
pub fn disk_options(value: &str) -> (&str, DiskOptions) {
    let (mut path, mut options) = (value, DiskOptions::default());
    while let Some((rest, option)) = path.rsplit_once(',') {
        match option.split_once('=').unwrap_or((option, "")) {
            ("write", "") => options.changes_image = true,
            ("format", "raw") => options.format = Some(ImageFormat::Raw),
            ("format", "qcow2") => options.format = Some(ImageFormat::Qcow2),
            ("backing", file) => options.backing.push(file.into()),
            _ => break,
        }
        path = rest;
    }
    (path, options)
}

fn attach_shares(machine: &mut Machine, shares: &[String]) -> Result<(), Box<dyn Error>> {
    if !shares.is_empty() {
        permit_open_files();
    }
    let mut tags = BTreeSet::new();
    for option in shares {
        let Folder { path, access, tag } = Folder::parse(option);
        let say = |error: &dyn std::fmt::Display| format!("--share {option}: {error}");
        if !tags.insert(tag) {
            return Err(usage(say(&format!("another folder has the tag {tag:?}; add ,tag=NAME"))));
        }
        let share = Share::open(Path::new(path), access).map_err(|error| say(&error))?;
        machine.attach_share(SharedFolder::new(share, tag).map_err(|error| usage(say(&error)))?)?;
    }
    Ok(())
}

/// A value of `--share`.
#[derive(Debug, PartialEq, Eq)]
struct Folder<'a> {
    path: &'a str,
    access: Access,
    tag: &'a str,
}

impl<'a> Folder<'a> {
    /// Splits options off the end; the rest is the path, which can contain commas.
    fn parse(value: &'a str) -> Self {
        let mut folder = Self { path: value, access: Access::Write, tag: TAG };
        while let Some((path, option)) = folder.path.rsplit_once(',') {
            match option.strip_prefix("tag=") {
                Some(tag) => folder.tag = tag,
                None if option == "ro" => folder.access = Access::Read,
                None => break,
            }
            folder.path = path;
        }
        folder
    }
}

/// Raises the limit of open files: the guest has a descriptor for each file that it knows. With a lower limit it has
/// fewer.
fn permit_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < most) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_disk_follow_its_path() {
        assert_eq!(disk_options("/a,b.img").0, "/a,b.img");
        let (path, options) = disk_options("a.qcow2,write,format=qcow2,backing=/base.img,backing=c");
        assert_eq!(
            (path, options.changes_image, options.format),
            ("a.qcow2", true, Some(ImageFormat::Qcow2))
        );
        assert_eq!(options.backing, ["c", "/base.img"].map(std::path::PathBuf::from));
        assert_eq!(disk_options("a,format=vmdk").0, "a,format=vmdk");
    }

    #[test]
    fn options_of_a_share_follow_its_path() {
        let folder = |path, access, tag| Folder { path, access, tag };
        assert_eq!(Folder::parse("a"), folder("a", Access::Write, "share"));
        assert_eq!(Folder::parse("/a,b,ro,tag=x"), folder("/a,b", Access::Read, "x"));
        assert_eq!(Folder::parse("a,tag=x,ro"), folder("a", Access::Read, "x"));
        assert_eq!(Folder::parse("a,ro,b"), folder("a,ro,b", Access::Write, "share"));
    }
}
