//! The names by which a guest knows itself, its folders, its user and its system when they are to be the same wherever it runs.
//! Not where files are: under these names the guest finds the same files as under their own.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The folder that the program was named in.
const PROGRAM: &str = "/longma/program";
/// The folder that the program's file is in, if its name was a link into another one.
const TARGET: &str = "/longma/target";
/// The folder that the program was started in.
const WORK: &str = "/longma/here";
/// The user and the group, as of the first person on most systems.
pub(crate) const USER: u64 = 1000;
/// What uname(2) says of the system: its node, release, version and domain.
pub(crate) const SYSTEM: [&str; 4] = ["longma", "6.6.0", "#1 SMP", "(none)"];

/// What stands behind the constant names.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// The host's folders, the first of a name the one that it leads to. None for a guest inside a root, whose paths are its own
    /// already.
    folders: Vec<(&'static str, PathBuf)>,
}

impl Surroundings {
    /// Of a program at the absolute path `program`, started in the folder `work`.
    pub fn new(program: &Path, work: &Path, confined: bool) -> Self {
        if confined {
            return Self { folders: Vec::new() };
        }
        let folder = |file: &Path| file.parent().unwrap_or(Path::new("/")).to_owned();
        let named = folder(program);
        let linked = named.canonicalize().unwrap_or_else(|_| named.clone());
        let target = program.canonicalize().map_or_else(|_| linked.clone(), |file| folder(&file));
        Self { folders: vec![(PROGRAM, linked), (PROGRAM, named), (TARGET, target), (WORK, work.to_owned())] }
    }

    /// The host's folder that the program was started in, as far as it has a constant name.
    pub fn work(&self) -> Option<&Path> {
        self.folders.iter().find(|(name, _)| *name == WORK).map(|(_, folder)| folder.as_path())
    }

    /// Where a guest's path leads on the host.
    pub fn host(&self, path: Vec<u8>) -> Vec<u8> {
        let named = Path::new(OsStr::from_bytes(&path));
        let leads = self.folders.iter().find_map(|(name, folder)| moved(named, Path::new(name), folder));
        leads.map_or(path, |host| host.into_os_string().into_vec())
    }

    /// What the guest calls a file of the program's folder, such as the program; other files keep their names.
    pub fn of_program(&self, host: &Path) -> PathBuf {
        self.shown(host, &[PROGRAM, TARGET])
    }

    /// What the guest calls a folder that it works in.
    pub fn of_work(&self, host: &Path) -> PathBuf {
        self.shown(host, &[WORK])
    }

    fn shown(&self, host: &Path, names: &[&str]) -> PathBuf {
        let mut known = self.folders.iter().filter(|(name, _)| names.contains(name));
        let shown = known.find_map(|(name, folder)| moved(host, folder, Path::new(name)));
        shown.unwrap_or_else(|| host.to_owned())
    }
}

/// `path` as it is called when the folder `from` is called `to`; `None` if it is not below `from`.
fn moved(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(from).ok()?;
    // `join` of nothing would add a slash.
    Some(if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_names_lead_to_the_files_and_back() {
        let names = Surroundings::new(Path::new("/home/u/bin/fft"), Path::new("/home/u"), false);
        for (guest, host) in [
            ("/longma/program/fft", "/home/u/bin/fft"),
            ("/longma/program/../lib/x.so", "/home/u/bin/../lib/x.so"),
            ("/longma/here", "/home/u"),
            ("/longma/here/data/1", "/home/u/data/1"),
            ("/longma/hereabouts", "/longma/hereabouts"),
            ("relative", "relative"),
        ] {
            assert_eq!(names.host(guest.into()), host.as_bytes(), "{guest}");
        }
        assert_eq!(names.of_program(Path::new("/home/u/bin/fft")), Path::new("/longma/program/fft"));
        assert_eq!(names.of_program(Path::new("/usr/lib/libc.so")), Path::new("/usr/lib/libc.so"));
        assert_eq!(names.of_work(Path::new("/home/u")), Path::new("/longma/here"));
        assert_eq!(names.of_work(Path::new("/tmp")), Path::new("/tmp"));
    }

    #[test]
    fn inside_a_root_names_are_the_guests_own() {
        let names = Surroundings::new(Path::new("/bin/fft"), Path::new("/"), true);
        assert_eq!(names.host(b"/longma/here".to_vec()), b"/longma/here");
        assert_eq!(names.of_program(Path::new("/bin/fft")), Path::new("/bin/fft"));
    }
}
