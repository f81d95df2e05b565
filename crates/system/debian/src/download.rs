//! Downloads from Debian's archive. Incomplete downloads are stored in a file, so that they can be resumed.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::package::read_all;

/// The archive, unless the environment variable `LONGMA_DEBIAN_ARCHIVE` names another.
const ARCHIVE: &str = "http://deb.debian.org/debian";
/// Time limit for a connection, and for the next bytes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes between reports of progress.
const CHUNK: usize = 1 << 16;
/// The maximum size of a download in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Receives progress, to display it.
pub trait Observer {
    /// A step begins. `bytes` is its length, or 0 if the length is unknown.
    fn begin(&mut self, step: &str, bytes: u64);
    /// The number of bytes of the step that are complete.
    fn reach(&mut self, bytes: u64);
    /// A note for the user.
    fn note(&mut self, text: &str);
}

/// The reason why a download failed.
#[derive(Debug)]
pub enum Failure {
    /// The archive does not have the file.
    Gone,
    /// The file has another hash.
    Hash,
    /// The archive cannot be reached, or the file cannot be written.
    Other(String),
}

/// An archive of Debian's packages.
pub struct Archive {
    address: String,
    agent: ureq::Agent,
}

impl Archive {
    /// The archive that the environment names, or Debian's.
    pub fn of_environment() -> Self {
        let given = std::env::var("LONGMA_DEBIAN_ARCHIVE").ok().filter(|given| !given.is_empty());
        Self::at(given.as_deref().unwrap_or(ARCHIVE))
    }

    /// The archive at an address.
    pub fn at(address: &str) -> Self {
        let settings = ureq::Agent::config_builder()
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .http_status_as_error(false);
        Self { address: address.trim_end_matches('/').to_owned(), agent: settings.build().into() }
    }

    /// The address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The bytes of a small file.
    pub fn get(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let (_, mut body) = self.request(path, 0)?;
        read_all(&mut body).map_err(|error| Failure::Other(error.to_string()))
    }

    /// Downloads a file to `place`, unless it exists, and checks its hash. An incomplete download is stored beside it.
    pub fn fetch(
        &self,
        path: &str,
        sha256: &str,
        place: &Path,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if hash_of(place).is_ok_and(|hash| hash == sha256) {
            return Ok(());
        }
        let part = place.with_extension("part");
        let refused = |error: io::Error| Failure::Other(format!("{}: {error}", place.display()));
        let was_there = part.exists();
        self.fetch_rest(path, &part, observer)?;
        let mut is_right = hash_of(&part).map_err(refused)? == sha256;
        if !is_right && was_there {
            // The incomplete download was part of another file.
            std::fs::remove_file(&part).map_err(refused)?;
            self.fetch_rest(path, &part, observer)?;
            is_right = hash_of(&part).map_err(refused)? == sha256;
        }
        if !is_right {
            std::fs::remove_file(&part).map_err(refused)?;
            return Err(Failure::Hash);
        }
        std::fs::rename(&part, place).map_err(refused)
    }

    /// Appends the missing bytes to an incomplete download.
    fn fetch_rest(&self, path: &str, part: &Path, observer: &mut dyn Observer) -> Result<(), Failure> {
        let refused = |error: io::Error| Failure::Other(format!("{}: {error}", part.display()));
        let mut file = File::options().append(true).create(true).open(part).map_err(refused)?;
        let mut done = file.metadata().map_err(refused)?.len();
        let (answer, mut body) = self.request(path, done)?;
        match answer {
            // The download is complete.
            416 => return Ok(()),
            206 => {}
            _ => {
                file.set_len(0).and_then(|()| file.rewind()).map_err(refused)?;
                done = 0;
            }
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        observer.begin(name, done + body.length.unwrap_or(0));
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => return Err(Failure::Other(format!("{}/{path}: {error}", self.address))),
            };
            file.write_all(&chunk[..count]).map_err(refused)?;
            done += count as u64;
            if done > MAX_BYTES {
                return Err(Failure::Other(format!("{path} has more than {MAX_BYTES} bytes")));
            }
            observer.reach(done);
        }
        Ok(())
    }

    /// Requests a file from byte `from` on. Returns the status and the body.
    fn request(&self, path: &str, from: u64) -> Result<(u16, Body), Failure> {
        let address = format!("{}/{path}", self.address);
        let mut request = self.agent.get(&address);
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let answer = request.call().map_err(|error| Failure::Other(format!("{address}: {error}")))?;
        let status = answer.status().as_u16();
        match status {
            200 | 206 | 416 => {
                let body = answer.into_body();
                let length = body.content_length();
                Ok((status, Body { length, reader: Box::new(body.into_reader()) }))
            }
            404 | 410 => Err(Failure::Gone),
            _ => Err(Failure::Other(format!("{address}: the server answers {status}"))),
        }
    }
}

/// The body of a response.
struct Body {
    length: Option<u64>,
    reader: Box<dyn Read>,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

/// The SHA-256 of a file.
pub fn hash_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => hasher.update(&chunk[..count]),
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// The SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
