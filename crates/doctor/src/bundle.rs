//! The bundle for a bug report: a compressed tar file of text files, without data that identifies a user or a host.

use crate::redact::{Redactor, environment};
use crate::system;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// zstd's default level.
const ZSTD_LEVEL: i32 = 3;

/// A bundle whose file is created but still empty.
pub struct Bundle {
    path: PathBuf,
    file: File,
    compression: Compression,
}

#[derive(Clone, Copy)]
enum Compression {
    Gzip,
    Zstd,
}

impl Bundle {
    /// Creates the file. Called before the checks run, so that an unusable name is reported early.
    ///
    /// # Errors
    /// If the name's ending is unknown, or the file exists or cannot be created.
    pub fn create(path: &Path) -> Result<Self, Box<dyn Error>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let compression = if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Compression::Gzip
        } else if name.ends_with(".tar.zst") {
            Compression::Zstd
        } else {
            return Err(format!(
                "cannot write a bundle to {}: give a name that ends in .tar.gz or .tar.zst",
                path.display()
            )
            .into());
        };
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => format!("{} exists; name another file, or remove it", path.display()),
            _ => format!("cannot write {}: {error}", path.display()),
        })?;
        Ok(Self { path: path.into(), file, compression })
    }

    /// Writes the version of the command, the doctor's output as text and JSON, and a description of the host. Returns the path.
    ///
    /// # Errors
    /// If the file cannot be written. It is then removed.
    pub fn write(
        self,
        version: &str,
        text: &str,
        report: &Value,
        redactor: &Redactor,
    ) -> Result<PathBuf, Box<dyn Error>> {
        let files = files(version, text, report, redactor);
        let written = match self.compression {
            Compression::Gzip => {
                let gzip = GzEncoder::new(&self.file, flate2::Compression::default());
                pack(gzip, &files).and_then(|gzip| gzip.finish().map(drop))
            }
            Compression::Zstd => zstd::Encoder::new(&self.file, ZSTD_LEVEL)
                .and_then(|zstd| pack(zstd, &files))
                .and_then(|zstd| zstd.finish().map(drop)),
        };
        written.map_err(|error| {
            // Remove the partial file: the next attempt would refuse to overwrite it.
            let _ = fs::remove_file(&self.path);
            format!("cannot write {}: {error}", self.path.display())
        })?;
        Ok(self.path)
    }
}

/// The files of a bundle, redacted.
fn files(version: &str, text: &str, report: &Value, redactor: &Redactor) -> Vec<(&'static str, String)> {
    let files = [
        ("version.txt", version.into()),
        ("doctor.txt", text.into()),
        ("doctor.json", format!("{report:#}\n")),
        ("host.txt", system::host()),
        ("limits.txt", system::limits()),
        ("environment.txt", environment()),
    ];
    files.into_iter().map(|(name, content)| (name, redactor.redact(&content))).collect()
}

/// Writes a tar file whose entries name no user.
fn pack<W: Write>(into: W, files: &[(&str, String)]) -> io::Result<W> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut archive = tar::Builder::new(into);
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("longma-doctor/{name}"), content.as_bytes())?;
    }
    archive.into_inner()
}
