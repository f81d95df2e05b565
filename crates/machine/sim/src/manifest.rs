//! The manifest of a result: all inputs that are needed to reproduce it bit for bit.
//!
//! Source: digests are SHA-256 (FIPS 180-4).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::{self, Read};

/// The inputs of a result. Part of every result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version: [`Manifest::FORMAT`].
    pub format: u32,
    /// Version of Longma.
    pub longma: String,
    /// The machine; `None` for a functional run without one.
    pub machine: Option<ManifestMachine>,
    /// The program.
    pub program: ManifestProgram,
    /// Level of detail: "functional", "cache" or "timing".
    pub level: String,
    /// The core model, such as "in-order"; `None` at levels without one.
    pub core_model: Option<String>,
    /// The random seed.
    pub seed: u64,
    /// Differences from the default translation of programs for other architectures; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<String>,
    /// The part of the run that was measured.
    pub region: Region,
    /// The parameters of sampling; `None` if every instruction was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<String>,
}

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestMachine {
    /// Its name.
    pub name: String,
    /// SHA-256 of the machine file with all defaults written out, in hexadecimal.
    pub sha256: String,
}

/// The program of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestProgram {
    /// Path as given on the command line.
    pub path: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Its arguments, without the program name.
    pub arguments: Vec<String>,
}

/// The part of a run that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Region {
    /// The whole run.
    Whole,
    /// The program's region of interest.
    OfInterest,
}

impl Manifest {
    /// The format version that this library writes.
    pub const FORMAT: u32 = 1;
}

impl ManifestMachine {
    /// The machine `name`. `resolved` is its file with all defaults written out.
    pub fn new(name: &str, resolved: &str) -> Self {
        Self { name: name.into(), sha256: hexadecimal(&Sha256::digest(resolved)) }
    }
}

impl ManifestProgram {
    /// The program at `path`, whose contents are read from `file`.
    ///
    /// # Errors
    /// If `file` cannot be read.
    pub fn read(path: &str, mut file: impl Read, arguments: &[String]) -> io::Result<Self> {
        let mut digest = Sha256::new();
        let mut chunk = vec![0; 1 << 16];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => digest.update(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let sha256 = hexadecimal(&digest.finalize());
        Ok(Self { path: path.into(), sha256, arguments: arguments.to_vec() })
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            longma: "0.1.0".into(),
            machine: Some(ManifestMachine::new("m", "abc")),
            program: ManifestProgram::read("a.out", &b""[..], &["-n".into(), "3".into()]).unwrap(),
            level: "timing".into(),
            core_model: Some("in-order".into()),
            seed: 7,
            translation: None,
            region: Region::OfInterest,
            sampling: None,
        }
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-4's examples: "abc" and the empty message.
        let manifest = manifest();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(manifest.machine.unwrap().sha256, abc);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(manifest.program.sha256, empty);
    }

    #[test]
    fn a_file_longer_than_a_chunk_is_read_to_its_end() {
        let bytes = vec![b'a'; 1_000_000];
        // FIPS 180-4's third example: a million letters a.
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(ManifestProgram::read("a", &bytes[..], &[]).unwrap().sha256, million);
    }

    #[test]
    fn a_written_manifest_is_read_back() {
        let text = serde_json::to_string(&manifest()).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest());
        assert!(text.contains("\"region\":\"of-interest\""), "{text}");
    }
}
