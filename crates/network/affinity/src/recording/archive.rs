//! Writes and reads the tar file of a recording. A file from elsewhere is not trusted: nothing is unpacked, only regular
//! files below `proc` and `sys` are accepted, and their sizes and numbers are limited.
//!
//! Source: POSIX.1-2017, pax (ustar); GNU tar manual, basic tar format.

use super::{FORMAT, Facts, Recording};
use longma_cpu_set::MAX_CPU;
use longma_text::{display_path, sanitize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Name of the member with everything except the texts of files.
const FACTS: &str = "recording.json";
/// Name of the last file, which holds the number of files before it. Without it, the recording is incomplete.
const END: &str = "recording.end";
/// Maximum number of files.
const MAX_FILES: usize = 200_000;
/// Maximum size of all texts in bytes.
const MAX_BYTES: u64 = 128 << 20;
/// Maximum size of the tar file in bytes, with headers and padding.
const MAX_TAR_BYTES: u64 = 512 << 20;
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 1024;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("{}: {error}", display_path(path))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file is not a recording.
    #[error("{}: not a recording of `longma affinity record`: {why}", display_path(path))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        why: String,
    },
}

impl Recording {
    /// Reads the tar file of a recording.
    ///
    /// # Errors
    /// If it cannot be read, or is not a recording.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = crate::files::readable(path)
            .map_err(|error| RecordingError::File { path: path.into(), error })?;
        read(file).map_err(|why| RecordingError::Invalid { path: path.into(), why })
    }

    /// Writes the tar file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn pack(&self, to: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(to);
        let mut add = |name: &str, text: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, text.as_bytes())
        };
        add(FACTS, &serde_json::to_string_pretty(&self.facts)?)?;
        for (path, text) in &self.files {
            add(path, text)?;
        }
        add(END, &format!("{}\n", self.files.len()))?;
        archive.into_inner()?.flush()
    }
}

/// First bytes of compressed files, and the programs that unpack them. Sources: RFC 1952, RFC 8878, the .xz file format.
const COMPRESSED: [(&[u8], &str); 3] = [
    (&[0x1f, 0x8b], "gunzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "unzstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "unxz"),
];

fn read(file: impl Read) -> Result<Recording, String> {
    let mut file = BufReader::new(file.take(MAX_TAR_BYTES));
    let begin = file.fill_buf().map_err(|error| error.to_string())?;
    if let Some((_, program)) = COMPRESSED.iter().find(|(magic, _)| begin.starts_with(magic)) {
        return Err(format!("it is compressed: unpack it with {program}"));
    }
    let mut archive = tar::Archive::new(file);
    let (mut files, mut facts, mut end) = (std::collections::BTreeMap::new(), None::<Facts>, None);
    let mut left = MAX_BYTES;
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry =
            entry.map_err(|error| match (facts.is_some() || !files.is_empty(), error.to_string()) {
                (false, _) => "it is not a tar file".into(),
                (true, error) => format!("it is damaged or cut off: {}; copy it again", sanitize(&error)),
            })?;
        let name = name(&entry.path_bytes())?;
        match entry.header().entry_type() {
            tar::EntryType::Regular => {}
            // An archive that was unpacked and packed again.
            tar::EntryType::Directory => continue,
            _ => return Err(format!("`{}` is not a regular file", sanitize(&name))),
        }
        let mut bytes = Vec::new();
        let length = entry.by_ref().take(left + 1).read_to_end(&mut bytes);
        let length = length.map_err(|error| format!("`{}`: {error}", sanitize(&name)))? as u64;
        if length > left || files.len() >= MAX_FILES {
            return Err(format!("it holds more than {MAX_FILES} files or {} MiB", MAX_BYTES >> 20));
        }
        if length != entry.size() {
            return Err(format!("`{}` is cut off", sanitize(&name)));
        }
        left -= length;
        let text = String::from_utf8(bytes).map_err(|_| format!("`{}` is not text", sanitize(&name)))?;
        if name == FACTS {
            if facts.replace(parse(&text)?).is_some() {
                return Err(format!("it has {FACTS} twice"));
            }
        } else if name == END {
            end = text.trim().parse::<usize>().ok();
        } else if !name.starts_with("proc/") && !name.starts_with("sys/") {
            return Err(format!("`{}` is neither below proc nor below sys", sanitize(&name)));
        } else if files.insert(name.clone(), text).is_some() {
            return Err(format!("it has `{}` twice", sanitize(&name)));
        }
    }
    let facts: Facts = facts.ok_or_else(|| format!("it has no {FACTS}"))?;
    let count =
        end.ok_or_else(|| format!("the recording is incomplete: it has no {END}; record the host again"))?;
    if files.len() < count {
        let found = files.len();
        return Err(format!(
            "the recording is incomplete: it has {found} of {count} files; record the host again"
        ));
    }
    Ok(Recording { files, facts })
}

/// A relative path without `..`; a leading `./`, as tar adds it, is removed.
fn name(bytes: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(bytes);
    let name = text.strip_prefix("./").unwrap_or(&text).trim_end_matches('/');
    let is_bad = |part: &str| matches!(part, ".." | "." | "") || part.contains('\0');
    // The root folder, which `tar c .` adds.
    let is_root = matches!(&*text, "." | "./");
    match !is_root && (name.len() > MAX_PATH || name.split('/').any(is_bad)) {
        true => {
            Err(format!("the path `{}` is not allowed", sanitize(&text.chars().take(80).collect::<String>())))
        }
        false => Ok(name.into()),
    }
}

fn parse(text: &str) -> Result<Facts, String> {
    let version: Option<u64> = serde_json::from_str::<serde_json::Value>(text)
        .ok()
        .and_then(|facts| facts.get("affinity_recording")?.as_u64());
    match version {
        Some(version) if version == u64::from(FORMAT) => {}
        Some(version) => return Err(format!("it has format {version}; this program reads format {FORMAT}")),
        None => return Err(format!("{FACTS} has no `affinity_recording`")),
    }
    let mut from = serde_json::Deserializer::from_str(text);
    let facts: Facts = serde_path_to_error::deserialize(&mut from)
        .map_err(|error| format!("{FACTS}: {}", sanitize(&error.to_string())))?;
    check(&facts).map_err(|why| format!("{FACTS}: {why}"))?;
    Ok(facts)
}

/// Checks numbers that are used as indices or CPUs.
fn check(facts: &Facts) -> Result<(), String> {
    let observation = &facts.observation;
    let places = facts.places.iter().flat_map(|place| {
        place.core.iter().chain(place.last_cache.iter().flatten()).chain([&place.cpu]).copied()
    });
    let queues = observation.queues.iter().filter_map(|queue| queue.cpu);
    let cpus = places.chain(queues).chain(observation.threads.iter().map(|thread| thread.cpu));
    if let Some(cpu) = cpus.chain(observation.cpus.keys().copied()).find(|cpu| *cpu >= MAX_CPU) {
        return Err(format!("there is no CPU {cpu}: the last one is {}", MAX_CPU - 1));
    }
    if facts.places.windows(2).any(|pair| pair[0].cpu >= pair[1].cpu) {
        return Err("places: the CPUs are not in ascending order".into());
    }
    let threads = observation.threads.len();
    if let Some(thread) = observation.flows.iter().filter_map(|flow| flow.thread).find(|of| *of >= threads) {
        return Err(format!("a flow has thread {thread}, but there are {threads} threads"));
    }
    let loads = observation.queues.iter().map(|queue| queue.load);
    let loads = loads.chain(observation.threads.iter().map(|thread| thread.load));
    let shares = observation.cpus.values().map(|shares| shares.busy());
    match loads.chain(shares).find(|load| !(0.0..=f64::from(MAX_CPU)).contains(load)) {
        Some(load) => Err(format!("a load of {load} CPUs is impossible")),
        None => Ok(()),
    }
}
