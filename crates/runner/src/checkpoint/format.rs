//! The format of checkpoint files. Little-endian: "LONGMACP", a version (u32), the length of the description (u32), the
//! description as JSON; then one Zstandard frame (RFC 8878) of runs of memory, each an address (u64), a length (u32)
//! and that many bytes, the last one with the address 2^64 - 1 and no bytes; then the SHA-256 of everything before.

use std::io::{self, Read, Write};

use longma_linux::image::PAGE_RUN_BYTES;
use sha2::{Digest, Sha256};

use super::SavedState;

const MAGIC: [u8; 8] = *b"LONGMACP";
/// Increment this when the format changes. Only this version can be read.
const VERSION: u32 = 2;
/// The address of the terminating run.
const END: u64 = u64::MAX;
const DIGEST_BYTES: usize = 32;
/// The maximum length of the description in bytes, so that a damaged length does not exhaust memory.
const MAX_DESCRIPTION_BYTES: u32 = 256 << 20;
/// A low compression level is fast, and guest memory compresses well.
const LEVEL: i32 = 3;

const SAVE_AGAIN: &str = "save it again";

/// Why a checkpoint file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It has the wrong magic number.
    #[error("not a checkpoint file")]
    Other,
    /// It has another version.
    #[error("checkpoint version {0} is not supported, only version {VERSION}; {SAVE_AGAIN}")]
    Version(u32),
    /// It is truncated or corrupted.
    #[error("the checkpoint is damaged: {0}; {SAVE_AGAIN}")]
    Damaged(&'static str),
    /// It cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] io::Error),
}

impl FormatError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Version(_) | Damaged(_) => Some(SAVE_AGAIN),
            Self::Other | Self::Read(_) => None,
        }
    }
}

use FormatError::Damaged;

/// Hashes all data written through it.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a checkpoint.
pub(super) struct Writer<W: Write> {
    frame: zstd::Encoder<'static, Hashing<W>>,
}

impl<W: Write> Writer<W> {
    /// Writes the header and the description.
    pub fn new(inner: W, state: &SavedState) -> io::Result<Self> {
        let mut out = Hashing { inner, hash: Sha256::new() };
        let description = serde_json::to_vec(state)?;
        let length = u32::try_from(description.len()).ok().filter(|length| *length <= MAX_DESCRIPTION_BYTES);
        let length =
            length.ok_or_else(|| io::Error::other("the process has too many mappings and threads"))?;
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&description)?;
        Ok(Self { frame: zstd::Encoder::new(out, LEVEL)? })
    }

    /// Writes a run of memory of at most [`PAGE_RUN_BYTES`] bytes.
    pub fn run(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.frame.write_all(&address.to_le_bytes())?;
        self.frame.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.frame.write_all(bytes)
    }

    /// Completes the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.run(END, &[])?;
        let mut writer = self.frame.finish()?;
        let digest = writer.hash.finalize();
        writer.inner.write_all(&digest)?;
        Ok(writer.inner)
    }
}

/// Verifies the checksum of a file.
pub(super) fn check(file: &mut impl Read) -> Result<(), FormatError> {
    let mut hash = Sha256::new();
    let mut buffered = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        buffered.extend_from_slice(&buffer[..read]);
        // Hold back the last bytes, which are the digest.
        let sure = buffered.len().saturating_sub(DIGEST_BYTES);
        hash.update(&buffered[..sure]);
        buffered.drain(..sure);
    }
    if buffered.len() < DIGEST_BYTES {
        return Err(if buffered.starts_with(&MAGIC) {
            Damaged("it is truncated")
        } else {
            FormatError::Other
        });
    }
    if hash.finalize()[..] == buffered[..] { Ok(()) } else { Err(Damaged("the checksum does not match")) }
}

/// Reads a checkpoint.
pub(super) struct Reader<R: Read> {
    pub state: SavedState,
    frame: zstd::Decoder<'static, io::BufReader<R>>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header and the description.
    pub fn new(mut inner: R) -> Result<Self, FormatError> {
        let mut magic = [0; 8];
        read(&mut inner, &mut magic).map_err(|_| FormatError::Other)?;
        if magic != MAGIC {
            return Err(FormatError::Other);
        }
        let version = number(&mut inner)?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let length = number(&mut inner)?;
        if length > MAX_DESCRIPTION_BYTES {
            return Err(Damaged("the description is too long"));
        }
        let mut description = Vec::new();
        (&mut inner).take(length.into()).read_to_end(&mut description)?;
        if description.len() != length as usize {
            return Err(Damaged("it is truncated"));
        }
        let state =
            serde_json::from_slice(&description).map_err(|_| Damaged("the description is malformed"))?;
        Ok(Self { state, frame: zstd::Decoder::new(inner)?, ended: false })
    }

    /// Reads the next run of memory: its address and bytes.
    pub fn run(&mut self) -> Result<Option<(u64, Vec<u8>)>, FormatError> {
        if self.ended {
            return Ok(None);
        }
        let mut address = [0; 8];
        read(&mut self.frame, &mut address)?;
        let address = u64::from_le_bytes(address);
        let length = number(&mut self.frame)? as usize;
        if address == END {
            self.ended = true;
            return if length == 0 { Ok(None) } else { Err(Damaged("the end marker is malformed")) };
        }
        if length == 0 || length > PAGE_RUN_BYTES {
            return Err(Damaged("a memory run has an invalid length"));
        }
        let mut bytes = vec![0; length];
        read(&mut self.frame, &mut bytes)?;
        Ok(Some((address, bytes)))
    }
}

fn read(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), FormatError> {
    from.read_exact(bytes).map_err(|_| Damaged("the memory contents cannot be decompressed"))
}

fn number(from: &mut impl Read) -> Result<u32, FormatError> {
    let mut bytes = [0; 4];
    read(from, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_linux::image::ProcessImage;
    use proptest::prelude::*;

    use crate::schedule::ThreadTableImage;

    fn saved_state() -> SavedState {
        let process = ProcessImage {
            executable: b"/bin/program".to_vec(),
            program_hash: "00".into(),
            arguments: vec![b"program".to_vec()],
            environment: Vec::new(),
            working_directory: b"/".to_vec(),
            started_in: Vec::new(),
            first_program: Vec::new(),
            limits: vec![(7, 64, u64::MAX)],
            open_files: (1024, 4096),
            umask: 0o22,
            limit: 1 << 46,
            top: 1 << 45,
            heap: (0, 0),
            stack: (0, (0, 0), (0, 0), Vec::new()),
            program_range: (0, 0),
            signal_return: 0,
            mappings: Vec::new(),
            actions: Vec::new(),
            files: Vec::new(),
            threads: Vec::new(),
            threads_made: 0,
            random: u64::MAX,
            shown_ps: 7,
            timers: Vec::new(),
            timers_made: 0,
        };
        SavedState {
            process,
            thread_table: ThreadTableImage { cores: Vec::new(), threads: Vec::new() },
            now_ps: 8,
        }
    }

    #[test]
    fn the_keys_of_the_description_are_those_of_earlier_versions() {
        let description = serde_json::to_value(saved_state()).unwrap();
        assert_eq!(description["roster"]["threads"], serde_json::json!([]));
    }

    fn written(runs: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &saved_state()).unwrap();
        runs.iter().for_each(|(address, bytes)| writer.run(*address, bytes).unwrap());
        writer.finish().unwrap()
    }

    /// Addresses and contents of memory.
    type Runs = Vec<(u64, Vec<u8>)>;

    /// Reads a file in the same way as a restore.
    fn read_all(mut bytes: &[u8]) -> Result<(SavedState, Runs), FormatError> {
        check(&mut &*bytes)?;
        let mut reader = Reader::new(&mut bytes)?;
        let mut runs = Vec::new();
        while let Some(run) = reader.run()? {
            runs.push(run);
        }
        Ok((reader.state, runs))
    }

    #[test]
    fn a_later_version_is_distinguished_from_damage() {
        let mut file = written(&[]);
        file[8] = VERSION as u8 + 1;
        let end = file.len() - DIGEST_BYTES;
        let digest = Sha256::digest(&file[..end]);
        file[end..].copy_from_slice(&digest);
        assert!(matches!(read_all(&file), Err(FormatError::Version(version)) if version == VERSION + 1));
    }

    #[test]
    fn other_files_are_not_checkpoints() {
        assert!(matches!(read_all(b""), Err(FormatError::Other)));
        assert!(matches!(read_all(b"#!/bin/sh"), Err(FormatError::Other)));
    }

    proptest! {
        #[test]
        fn a_checkpoint_round_trips(runs in prop::collection::vec((0..END, prop::collection::vec(any::<u8>(), 1..5000)), 0..8)) {
            let (read, actual) = read_all(&written(&runs)).unwrap();
            prop_assert_eq!(read, saved_state());
            prop_assert_eq!(actual, runs);
        }

        #[test]
        fn a_truncated_or_changed_file_is_rejected(cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let file = written(&[(0x4000, vec![7; 10_000])]);
            prop_assert!(read_all(&file[..cut.index(file.len())]).is_err());
            let mut changed = file.clone();
            changed[at.index(file.len())] ^= 1 << bit;
            prop_assert!(read_all(&changed).is_err());
        }

        /// Corruption with a valid checksum.
        #[test]
        fn arbitrary_contents_do_not_panic(at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..40)) {
            let mut file = written(&[(0x4000, vec![7; 10_000])]);
            let end = file.len() - DIGEST_BYTES;
            let at = at.index(end);
            let count = bytes.len().min(end - at);
            file[at..at + count].copy_from_slice(&bytes[..count]);
            let digest = Sha256::digest(&file[..end]);
            file[end..].copy_from_slice(&digest);
            let _ = read_all(&file);
        }
    }
}
