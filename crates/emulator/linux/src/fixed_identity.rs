//! Constant names of the program, its directories, its user and its system, so that runs do not depend on the host. A
//! constant name refers to the same file as the host's name.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// The directory that the constant names are in. It looks like a directory of the host, but no other name in it exists.
const PARENT: &str = "/longma";
/// The guest's name of the directory in the program's path.
const PROGRAM: &str = "/longma/program";
/// The guest's name of the directory of the program file, if the program's path is a symbolic link into another
/// directory.
const TARGET: &str = "/longma/target";
/// The guest's name of the initial working directory.
const WORK: &str = "/longma/here";
/// The user and group id, which most systems give to the first user.
pub(crate) const USER: u64 = 1000;
/// The node, release, version and domain name that uname(2) returns.
pub(crate) const SYSTEM: [&str; 4] = ["longma", "6.6.0", "#1 SMP", "(none)"];

/// Maps constant names to directories on the host.
#[derive(Clone, Debug)]
pub(crate) struct FixedIdentity {
    /// The host path of the program that the names were created for.
    program: PathBuf,
    /// Pairs of constant name and host directory. A constant name maps to the directory of its first pair; host
    /// directories of all pairs map to their constant name. Empty for a guest with a root, whose paths do not depend on
    /// the host.
    folders: Vec<(&'static str, PathBuf)>,
}

impl FixedIdentity {
    /// Creates the names for a program at the absolute path `program`, started in the directory `work`. A `confined`
    /// guest has a root and gets no constant names.
    pub fn new(program: &Path, work: &Path, confined: bool) -> Self {
        if confined {
            return Self { program: program.to_owned(), folders: Vec::new() };
        }
        let folder = |file: &Path| file.parent().unwrap_or(Path::new("/")).to_owned();
        let named = folder(program);
        let linked = named.canonicalize().unwrap_or_else(|_| named.clone());
        let target = program.canonicalize().map_or_else(|_| linked.clone(), |file| folder(&file));
        Self {
            program: program.to_owned(),
            folders: vec![(PROGRAM, linked), (PROGRAM, named), (TARGET, target), (WORK, work.to_owned())],
        }
    }

    /// The host path of the program that the names were created for.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The host's initial working directory, if it has a constant name.
    pub fn work(&self) -> Option<&Path> {
        self.folders.iter().find(|(name, _)| *name == WORK).map(|(_, folder)| folder.as_path())
    }

    /// Converts a guest path to a host path.
    pub fn host(&self, path: Vec<u8>) -> Vec<u8> {
        let named = Path::new(OsStr::from_bytes(&path));
        let mut folders = self.folders.iter();
        let below = folders.find_map(|(name, folder)| replace_prefix(named, Path::new(name), folder));
        let translated = below.or_else(|| {
            let parent = named.strip_prefix(PARENT).ok().filter(|_| !self.folders.is_empty())?;
            let is_above = parent.components().next().is_none_or(|first| first == Component::ParentDir);
            is_above.then(|| Path::new("/").join(parent))
        });
        translated.map_or(path, |host| host.into_os_string().into_vec())
    }

    /// The guest's name of a file in one of the program's directories. Other paths are unchanged.
    pub fn of_program(&self, host: &Path) -> PathBuf {
        self.guest_name(host, &[PROGRAM, TARGET])
    }

    /// The guest's name of a file or directory in one of the directories. Other paths are unchanged.
    pub fn of_file(&self, host: &Path) -> PathBuf {
        self.guest_name(host, &[PROGRAM, TARGET, WORK])
    }

    /// Like [`Self::of_file`], for the working directory: prefers the name of the initial working directory if several
    /// directories are equally close.
    pub fn of_working_directory(&self, host: &Path) -> PathBuf {
        self.guest_name(host, &[WORK, PROGRAM, TARGET])
    }

    fn guest_name(&self, host: &Path, names: &[&str]) -> PathBuf {
        let folders =
            names.iter().flat_map(|wanted| self.folders.iter().filter(move |(name, _)| name == wanted));
        let guest_names = folders.filter_map(|(name, folder)| replace_prefix(host, folder, Path::new(name)));
        // The directory closest to the file: `/a/b/../fft` is in `/a/b/..`, and its path begins with `/a`, too.
        let closest = guest_names.min_by_key(|name| name.components().count());
        closest.unwrap_or_else(|| host.to_owned())
    }
}

/// Replaces the prefix `from` of `path` with `to`; `None` if `path` is not below `from`.
fn replace_prefix(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(from).ok()?;
    // Joining an empty path would add a slash.
    Some(if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_names_map_to_the_files_and_back() {
        let names = FixedIdentity::new(Path::new("/home/u/bin/fft"), Path::new("/home/u"), false);
        for (guest, host) in [
            ("/longma/program/fft", "/home/u/bin/fft"),
            ("/longma/program/../lib/x.so", "/home/u/bin/../lib/x.so"),
            ("/longma/here", "/home/u"),
            ("/longma/here/data/1", "/home/u/data/1"),
            ("/longma/hereabouts", "/longma/hereabouts"),
            ("/longma", "/"),
            ("/longma/", "/"),
            ("/longma/..", "/.."),
            ("/longma/../etc/passwd", "/../etc/passwd"),
            ("/longma/etc", "/longma/etc"),
            ("/longmasters", "/longmasters"),
            ("relative", "relative"),
        ] {
            assert_eq!(names.host(guest.into()), host.as_bytes(), "{guest}");
        }
        assert_eq!(names.of_program(Path::new("/home/u/bin/fft")), Path::new("/longma/program/fft"));
        assert_eq!(names.of_program(Path::new("/usr/lib/libc.so")), Path::new("/usr/lib/libc.so"));
        assert_eq!(names.of_working_directory(Path::new("/home/u")), Path::new("/longma/here"));
        assert_eq!(names.of_file(Path::new("/home/u/bin/fft")), Path::new("/longma/program/fft"));
        assert_eq!(names.of_file(Path::new("/tmp")), Path::new("/tmp"));
    }

    #[test]
    fn a_program_has_the_same_name_by_whatever_path_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().canonicalize().unwrap();
        let below = program.join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(program.join("fft"), "").unwrap();
        for path in [program.join("fft"), below.join("../../fft"), below.join("./../../fft")] {
            let names = FixedIdentity::new(&path, &below, false);
            assert_eq!(names.of_program(&path), Path::new("/longma/program/fft"), "{}", path.display());
        }
    }

    #[test]
    fn inside_a_root_names_are_not_mapped() {
        let names = FixedIdentity::new(Path::new("/bin/fft"), Path::new("/"), true);
        assert_eq!(names.host(b"/longma/here".to_vec()), b"/longma/here");
        assert_eq!(names.of_program(Path::new("/bin/fft")), Path::new("/bin/fft"));
    }
}
