//! The memory limit of the engines' processes, including the page cache, by a control group for each piece of work.
//! Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.max) and cgroup-v1/memory.rst; cgroups(7),
//! proc(5) (mountinfo).

use crate::Outcome;
use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group; removed when dropped.
#[derive(Debug)]
pub struct Limit {
    group: PathBuf,
    processes: File,
}

/// The folder for a new group, and the name of its limit file.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    folder: PathBuf,
    limit: &'static str,
}

impl Limit {
    /// Creates a group with this memory limit in bytes.
    pub fn new(bytes: u64) -> Outcome<Self> {
        let read =
            |path: &str| std::fs::read_to_string(path).map_err(|error| without(&format!("{path}: {error}")));
        let hierarchy = hierarchy(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)?;
        Self::in_hierarchy(&hierarchy, bytes)
    }

    fn in_hierarchy(hierarchy: &Hierarchy, bytes: u64) -> Outcome<Self> {
        let group = hierarchy.folder.join(format!("longma-bench-{}", std::process::id()));
        let failed = |what: &Path, error: Error| without(&format!("{}: {error}", what.display()));
        std::fs::create_dir(&group).map_err(|error| failed(&group, error))?;
        let limit = group.join(hierarchy.limit);
        let processes = group.join("cgroup.procs");
        // The kernel creates both files with the group. If the memory controller is not delegated, the first one is
        // missing.
        let opened =
            std::fs::write(&limit, bytes.to_string()).map_err(|error| failed(&limit, error)).and_then(|()| {
                OpenOptions::new().write(true).open(&processes).map_err(|error| failed(&processes, error))
            });
        match opened {
            Ok(processes) => Ok(Self { group, processes }),
            Err(error) => {
                let _ = std::fs::remove_dir(&group);
                Err(error)
            }
        }
    }

    /// Makes a command run in the group from its first instruction on.
    pub fn hold(&self, command: &mut Command) {
        let processes = self.processes.as_raw_fd();
        let enter = move || {
            // SAFETY: writes one byte of a constant to a descriptor that is open as long as this group, which outlives
            // the start.
            let written = unsafe { libc::write(processes, b"0".as_ptr().cast(), 1) };
            if written == 1 { Ok(()) } else { Err(Error::last_os_error()) }
        };
        // SAFETY: the closure makes one write between fork and exec, which is async-signal-safe, and does not allocate.
        unsafe { command.pre_exec(enter) };
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The group is empty once the piece's process has been waited for.
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// The error if a limit is impossible.
fn without(why: &str) -> String {
    format!(
        "cannot limit the engines' memory by a control group ({why}): run this as root or under `systemd-run --user --scope -p Delegate=yes`, or \
         say --no-memory-limit, and LMDB may use all of the page cache"
    )
}

/// The folder in which this process may create a group, according to /proc/self/mountinfo and /proc/self/cgroup.
fn hierarchy(mounts: &str, groups: &str) -> Outcome<Hierarchy> {
    let group_of = |wanted: &dyn Fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(number, controllers).then(|| path.to_owned())
        })
    };
    let has = |list: &str, wanted: &str| list.split(',').any(|one| one == wanted);
    let older = group_of(&|_, controllers| has(controllers, "memory"));
    let (path, kind, limit) =
        match (older, group_of(&|number, controllers| number == "0" && controllers.is_empty())) {
            (Some(path), _) => (path, "cgroup", "memory.limit_in_bytes"),
            (None, Some(path)) => (path, "cgroup2", "memory.max"),
            (None, None) => return Err(without("this process is in no group with a memory controller")),
        };
    for line in mounts.lines() {
        // ID, parent, device, root, mount point, options, optional fields, "-", kind, source, options.
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (before, after): (Vec<_>, Vec<_>) = (before.split(' ').collect(), after.split(' ').collect());
        let ([_, _, _, root, point, ..], [this, _, options, ..]) = (before.as_slice(), after.as_slice())
        else {
            continue;
        };
        if *this != kind || (kind == "cgroup" && !has(options, "memory")) {
            continue;
        }
        let Ok(below) = Path::new(&path).strip_prefix(root) else { continue };
        let own = Path::new(point).join(below);
        // In cgroup v2, a group with processes cannot have children with controllers, so create a sibling.
        let folder = match own.parent() {
            Some(parent) if kind == "cgroup2" && !below.as_os_str().is_empty() => parent.to_path_buf(),
            _ => own,
        };
        return Ok(Hierarchy { folder, limit });
    }
    Err(without(&format!("the {kind} hierarchy is not mounted where this process could see it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLDER: &str = "\
30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const NEWER: &str = "25 22 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_group_is_made_where_the_kernel_allows_it() {
        let at = |folder: &str, limit| Ok(Hierarchy { folder: folder.into(), limit });
        let older = at("/sys/fs/cgroup/memory/user/7", "memory.limit_in_bytes");
        assert_eq!(hierarchy(OLDER, "4:memory:/user/7\n2:cpu,cpuacct:/\n0::/\n"), older);
        let newer = at("/sys/fs/cgroup/user.slice", "memory.max");
        assert_eq!(hierarchy(NEWER, "0::/user.slice/session-3.scope\n"), newer);
        assert_eq!(hierarchy(NEWER, "0::/\n"), at("/sys/fs/cgroup", "memory.max"));
        // In a container, the mount's root is not the hierarchy's.
        let inside = "25 22 0:22 /docker/a /sys/fs/cgroup rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            hierarchy(inside, "4:memory:/docker/a/b\n"),
            at("/sys/fs/cgroup/b", "memory.limit_in_bytes")
        );
    }

    #[test]
    fn an_unavailable_counter_is_reported_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        // The kernel does not create the files in an ordinary folder.
        let missing = Hierarchy { folder: folder.path().join("no"), limit: "memory.max" };
        for error in [
            hierarchy(NEWER, "").unwrap_err(),
            hierarchy("", "0::/a\n").unwrap_err(),
            Limit::in_hierarchy(&missing, 1 << 20).unwrap_err(),
        ] {
            assert!(error.contains("--no-memory-limit") && error.contains("systemd-run"), "{error}");
        }
    }
}
