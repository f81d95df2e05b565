//! What a result came from: enough to make the same bits again.
//! Not the result.
//! Source: digests are SHA-256 (FIPS 180-4).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::{self, Read};

/// Where a result came from. It stands inside every result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format: [`Manifest::FORMAT`].
    pub format: u32,
    /// Version of Longma.
    pub longma: String,
    /// The machine; `None` at the functional level without one.
    pub machine: Option<ManifestMachine>,
    /// The program.
    pub program: ManifestProgram,
    /// How closely time was modelled: "functional", "cache" or "timing".
    pub level: String,
    /// The core's model, such as "in-order"; `None` at levels that have none.
    pub core_model: Option<String>,
    /// The seed of all that is random.
    pub seed: u64,
    /// What differs from the usual translation of programs for other architectures; `None` if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<String>,
    /// The part of the run that was counted.
    pub region: Region,
}

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestMachine {
    /// Its name.
    pub name: String,
    /// SHA-256 of its text with every default written out, in hexadecimal.
    pub sha256: String,
}

/// The program of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestProgram {
    /// Its path as it was given.
    pub path: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Its arguments, without its own name.
    pub arguments: Vec<String>,
}

/// Which part of a run was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Region {
    /// All of it.
    Whole,
    /// What lies between the program's marks of its region of interest.
    OfInterest,
}

impl Manifest {
    /// The version of the format that this library writes.
    pub const FORMAT: u32 = 1;
}

impl ManifestMachine {
    /// The machine called `name`, whose text with every default written out is `resolved`.
    pub fn new(name: &str, resolved: &str) -> Self {
        Self { name: name.into(), sha256: hexadecimal(&Sha256::digest(resolved)) }
    }
}

impl ManifestProgram {
    /// The program at `path`, whose file is read from `file`.
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
        // Writing to a String cannot fail.
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
        }
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-4's examples: "abc" and the empty message.
        let manifest = manifest();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(manifest.machine.unwrap().sha256, abc);
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(manifest.program.sha256, nothing);
    }

    #[test]
    fn a_file_longer_than_a_chunk_is_read_to_its_end() {
        let bytes = vec![b'a'; 1_000_000];
        // FIPS 180-4's third example: a million letters a.
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(ManifestProgram::read("a", &bytes[..], &[]).unwrap().sha256, million);
    }

    #[test]
    fn a_manifest_reads_back_as_it_was_written() {
        let text = serde_json::to_string(&manifest()).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest());
        assert!(text.contains("\"region\":\"of-interest\""), "{text}");
    }
}
