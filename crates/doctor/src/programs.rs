//! Finds programs that longma or its tests start, by asking each for its version.

use crate::reason::reason;
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for printing a version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// Result of a child process.
pub struct Ended {
    pub succeeded: bool,
    pub output: String,
    pub errors: String,
}

/// Runs a command, and kills it at the time limit.
pub fn output(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let output = std::thread::spawn(move || read_limited(output));
    let errors = std::thread::spawn(move || read_limited(errors));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            // Kill the whole group: children of a script hold the pipes open.
            if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            child.wait()?;
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("it did not end within {} s", limit.as_secs()),
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(Ended { succeeded: status.success(), output: text(output), errors: text(errors) })
}

/// The first line of a program's version output.
pub fn version(name: &str, arguments: &[&str]) -> Result<String, String> {
    let ended =
        output(Command::new(name).args(arguments), VERSION_LIMIT).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("there is no program {name}"),
            _ => format!("{name}: {}", reason(&error)),
        })?;
    let lines = ended.output.lines().chain(ended.errors.lines());
    let first = lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_string();
    if ended.succeeded { Ok(first) } else { Err(format!("{name} does not run: {first}")) }
}

/// Finds zig as a program, or as the Python package that `guests/build` uses.
pub fn zig() -> Result<String, String> {
    let found = version("zig", &["version"]).or_else(|_| version("python3", &["-m", "ziglang", "version"]));
    found.map(|version| format!("zig {version}")).map_err(|_| "there is no zig".into())
}

/// Finds a gdb that supports LoongArch.
pub fn gdb() -> Result<String, String> {
    let supports_loongarch = |name: &str| {
        let arguments = ["-nx", "-batch", "-ex", "set architecture Loongarch64"];
        let ended = output(Command::new(name).args(arguments), VERSION_LIMIT).ok()?;
        Some(!ended.errors.contains("ndefined item"))
    };
    let names = ["gdb-multiarch", "gdb"];
    match names.iter().find(|name| supports_loongarch(name) == Some(true)) {
        Some(name) => version(name, &["--version"]),
        None => version("gdb", &["--version"])
            .and_then(|version| Err(format!("{version}, which does not know LoongArch"))),
    }
}

/// Reads from a pipe, up to a limit.
fn read_limited(pipe: Option<impl Read>) -> String {
    const MAX_BYTES: u64 = 64 << 10;
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // On an error, use the lines read so far.
        let _ = pipe.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
