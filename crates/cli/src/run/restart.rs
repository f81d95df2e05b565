//! The command line with which execve of a LoongArch program starts this command anew, and the environment it hands over.
//! Not execve itself (see `longma-linux`).

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use longma_runner::optimizations::Optimizations;
use longma_runner::x86_features::Features;

use super::{Arguments, Format, MOST_ROOM_MIB, absolute, failure::Failure};

/// This command with the options that hold for the next program too.
pub fn command(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    let mut command: Vec<OsString> = vec!["longma".into(), "run".into()];
    let mut option = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            command.extend([name.into(), value]);
        }
    };
    let path = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into()).into_os_string();
    for (name, given) in [("--root", &arguments.root), ("--library-root", &arguments.library_root)] {
        option(name, directory(given.as_deref(), name)?.map(Into::into));
    }
    option("--strace-out", arguments.strace_out.as_deref().map(path));
    option("--profile-out", arguments.profile_out.as_deref().map(path));
    let machine = arguments.machine.as_deref().map(Path::new);
    option("--machine", machine.map(|name| if name.exists() { path(name) } else { name.into() }));
    option("--format", (arguments.format == Format::Json).then(|| "json".into()));
    for wire in &arguments.wire {
        option("--wire", Some(wire.into()));
    }
    option("--seed", Some(arguments.seed.to_string().into()));
    let features = Some(arguments.x86_features).filter(|features| *features != Features::default());
    option("--x86-features", features.map(|features| features.name().into()));
    let optimizations =
        Some(arguments.translation).filter(|optimizations| *optimizations != Optimizations::default());
    option("--translation", optimizations.map(|optimizations| optimizations.to_string().into()));
    let room = arguments.translation_room;
    option("--translation-room", (room != MOST_ROOM_MIB).then(|| room.to_string().into()));
    let cache = super::translation_cache(arguments).unwrap_or_else(|| "none".into());
    option("--translation-cache", Some(cache.into()));
    let reporting = arguments.reporting_process.unwrap_or_else(std::process::id);
    option("--reporting-process", Some(reporting.to_string().into()));
    let flags = [
        ("--stats", arguments.stats),
        ("--profile", arguments.profile),
        ("--strace", arguments.strace),
        ("--interpret", arguments.interpret),
        ("--fixed-names", arguments.fixed_names),
        ("--sandbox", arguments.sandbox),
        ("--sandboxed", arguments.sandbox),
    ];
    command.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
    Ok(command)
}

/// A directory that an option names, absolute: the program may go elsewhere.
pub fn directory(given: Option<&Path>, option: &str) -> Result<Option<PathBuf>, Failure> {
    given.map(|path| absolute(path, option)).transpose()
}

/// The environment that the program before has left in a file.
pub fn environment(descriptor: i32) -> Result<Vec<OsString>, Failure> {
    if descriptor < 3 || is_closed(descriptor) {
        return Err(Failure::own(
            "--environment-from names no open file",
            "leave it out: it is how this command starts itself",
        ));
    }
    // SAFETY: it is open, and whoever gave its number has given it away.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let mut bytes = Vec::new();
    // A pipe has only one place to read from.
    let _ = std::io::Seek::rewind(&mut file);
    file.read_to_end(&mut bytes)
        .map_err(|error| Failure::host("read the environment handed over", &error))?;
    let variables = bytes.split(|&byte| byte == 0).filter(|variable| !variable.is_empty());
    Ok(variables.map(|variable| OsString::from_vec(variable.to_vec())).collect())
}

fn is_closed(descriptor: i32) -> bool {
    // SAFETY: it only asks.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) == -1 }
}
