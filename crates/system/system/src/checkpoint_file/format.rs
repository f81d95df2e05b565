//! The format of checkpoint files, with little-endian numbers: "LONGMASC", a version (u32), one Zstandard frame (RFC
//! 8878), and the SHA-256 of everything before it. The frame contains the length of the description (u32), the
//! description as JSON, and runs of bytes. A run consists of a space (u32), an address in the space (u64), a length
//! (u32) and that many bytes. The last run is empty and in space 2^32 - 1. Space 0 is memory, and space n the blocks
//! that the guest has written to the n-th device of the PCI bus.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"LONGMASC";
/// The magic number of a checkpoint of `longma run`.
const MAGIC_OF_PROCESSES: [u8; 8] = *b"LONGMACP";
/// Increment this when the meaning of a part of the state changes. Only this version can be read. New, missing and
/// renamed fields are detected without it.
pub const VERSION: u32 = 1;
/// The space of the terminating run.
const END: u32 = u32::MAX;
const DIGEST_BYTES: usize = 32;
/// The first bytes of a Zstandard frame. Source: RFC 8878, section 3.1.1.
const FRAME_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The maximum length of the description in bytes, so that a damaged length does not exhaust memory.
const MAX_DESCRIPTION_BYTES: u32 = 256 << 20;
/// The maximum length of a run in bytes.
pub const MAX_RUN_BYTES: usize = 1 << 20;
/// A low compression level is fast, and guest memory compresses well.
const LEVEL: i32 = 3;

/// Why a file is not a usable checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It has another magic number.
    #[error("it is not a checkpoint of a machine")]
    Other,
    /// It is a checkpoint of a process.
    #[error("it is a checkpoint of `longma run`: continue it with `longma run --restore`")]
    Process,
    /// It has another version.
    #[error("checkpoint version {0} is not supported, only version {VERSION}; save it again")]
    Version(u32),
    /// It is truncated or corrupted.
    #[error("the checkpoint is damaged: {0}; save it again")]
    Damaged(&'static str),
    /// Its description has other fields, or values that no machine has.
    #[error("the checkpoint does not fit this build of longma: {0}; save it again")]
    Layout(String),
    /// It cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] io::Error),
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
pub struct Writer<W: Write> {
    frame: zstd::Encoder<'static, Hashing<W>>,
}

impl<W: Write> Writer<W> {
    /// Writes the header and the description.
    pub fn new(inner: W, description: &impl Serialize) -> io::Result<Self> {
        let mut out = Hashing { inner, hash: Sha256::new() };
        let description = serde_json::to_vec(description)?;
        let length = u32::try_from(description.len()).ok().filter(|length| *length <= MAX_DESCRIPTION_BYTES);
        let length = length.ok_or_else(|| io::Error::other("the description is too long"))?;
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let mut frame = zstd::Encoder::new(out, LEVEL)?;
        frame.write_all(&length.to_le_bytes())?;
        frame.write_all(&description)?;
        Ok(Self { frame })
    }

    /// Writes a run of at most [`MAX_RUN_BYTES`] bytes.
    pub fn run(&mut self, space: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.frame.write_all(&space.to_le_bytes())?;
        self.frame.write_all(&address.to_le_bytes())?;
        self.frame.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.frame.write_all(bytes)
    }

    /// Completes the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.run(END, 0, &[])?;
        let mut writer = self.frame.finish()?;
        let digest = writer.hash.finalize();
        writer.inner.write_all(&digest)?;
        Ok(writer.inner)
    }
}

/// Verifies magic number, version and checksum of a file.
pub fn check(file: &mut impl Read) -> Result<(), FormatError> {
    let mut header = Vec::new();
    file.take(MAGIC.len() as u64 + 4).read_to_end(&mut header)?;
    match header.get(..MAGIC.len()) {
        Some(magic) if magic == MAGIC => {}
        Some(magic) if magic == MAGIC_OF_PROCESSES => return Err(FormatError::Process),
        _ => return Err(FormatError::Other),
    }
    let version = header[MAGIC.len()..].try_into().map_err(|_| Damaged("it is truncated"))?;
    match u32::from_le_bytes(version) {
        VERSION => {}
        other => return Err(FormatError::Version(other)),
    }
    // Without this, a large file of zeros would be read to its end.
    let mut buffered = Vec::new();
    file.take(FRAME_MAGIC.len() as u64).read_to_end(&mut buffered)?;
    if buffered != FRAME_MAGIC {
        return Err(Damaged("it has no contents"));
    }
    let mut hash = Sha256::new();
    hash.update(&header);
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
        let content = buffered.len().saturating_sub(DIGEST_BYTES);
        hash.update(&buffered[..content]);
        buffered.drain(..content);
    }
    if buffered.len() < DIGEST_BYTES {
        return Err(Damaged("it is truncated"));
    }
    let is_intact = hash.finalize()[..] == buffered[..];
    if is_intact { Ok(()) } else { Err(Damaged("it is truncated or changed: its checksum does not match")) }
}

/// A run of bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// 0 for memory, or the number of a device, counted from 1.
    pub space: u32,
    /// The address of the first byte.
    pub address: u64,
    /// The bytes, at least one.
    pub bytes: Vec<u8>,
}

/// Reads a checkpoint that [`check`] has found intact.
pub struct Reader<R: Read> {
    frame: zstd::Decoder<'static, io::BufReader<R>>,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header and the description.
    pub fn new<T: DeserializeOwned>(mut inner: R) -> Result<(T, Self), FormatError> {
        inner.read_exact(&mut [0; MAGIC.len() + 4])?;
        let mut frame = zstd::Decoder::new(inner)?.single_frame();
        let length = number(&mut frame)?;
        if length > MAX_DESCRIPTION_BYTES {
            return Err(Damaged("the description is too long"));
        }
        let mut description = Vec::new();
        let read = (&mut frame).take(length.into()).read_to_end(&mut description);
        if read.is_err() || description.len() != length as usize {
            return Err(Damaged("the description cannot be decompressed"));
        }
        let description =
            serde_json::from_slice(&description).map_err(|error| FormatError::Layout(error.to_string()))?;
        Ok((description, Self { frame, has_ended: false }))
    }

    /// Reads the next run.
    pub fn run(&mut self) -> Result<Option<Run>, FormatError> {
        if self.has_ended {
            return Ok(None);
        }
        let space = number(&mut self.frame)?;
        let mut address = [0; 8];
        read(&mut self.frame, &mut address)?;
        let length = number(&mut self.frame)? as usize;
        if space == END {
            self.has_ended = true;
            return if length == 0 { Ok(None) } else { Err(Damaged("the end marker is malformed")) };
        }
        if length == 0 || length > MAX_RUN_BYTES {
            return Err(Damaged("a run has an invalid length"));
        }
        let mut bytes = vec![0; length];
        read(&mut self.frame, &mut bytes)?;
        Ok(Some(Run { space, address: u64::from_le_bytes(address), bytes }))
    }
}

fn read(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), FormatError> {
    from.read_exact(bytes).map_err(|_| Damaged("the contents cannot be decompressed"))
}

fn number(from: &mut impl Read) -> Result<u32, FormatError> {
    let mut bytes = [0; 4];
    read(from, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Runs = Vec<(u32, u64, Vec<u8>)>;

    fn written(description: &str, runs: &Runs) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &description).expect("memory takes all");
        for (space, address, bytes) in runs {
            writer.run(*space, *address, bytes).expect("memory takes all");
        }
        writer.finish().expect("memory takes all")
    }

    /// Reads a file in the same way as a restore.
    fn read_all(bytes: &[u8]) -> Result<(String, Runs), FormatError> {
        check(&mut &*bytes)?;
        let (description, mut reader) = Reader::new(bytes)?;
        let mut runs = Vec::new();
        while let Some(Run { space, address, bytes }) = reader.run()? {
            runs.push((space, address, bytes));
        }
        Ok((description, runs))
    }

    fn with_digest(mut file: Vec<u8>) -> Vec<u8> {
        let end = file.len() - DIGEST_BYTES;
        let digest = Sha256::digest(&file[..end]);
        file[end..].copy_from_slice(&digest);
        file
    }

    #[test]
    fn a_later_version_is_distinguished_from_damage() {
        let mut file = written("", &Vec::new());
        file[8] = VERSION as u8 + 1;
        for file in [file.clone(), with_digest(file)] {
            let error = read_all(&file).expect_err("it is of another version");
            assert!(matches!(error, FormatError::Version(version) if version == VERSION + 1), "{error}");
        }
    }

    #[test]
    fn other_files_are_not_checkpoints() {
        for other in [&b""[..], b"#!/bin/sh", b"LONGMA"] {
            assert!(matches!(read_all(other), Err(FormatError::Other)));
        }
        assert!(matches!(read_all(b"LONGMACP\x02\0\0\0"), Err(FormatError::Process)));
        assert!(matches!(read_all(b"LONGMASC\x01\0"), Err(Damaged(_))));
    }

    #[test]
    fn a_file_without_contents_is_not_read_to_its_end() {
        let mut endless = (&b"LONGMASC\x01\0\0\0"[..]).chain(io::repeat(0));
        assert!(matches!(check(&mut endless), Err(Damaged("it has no contents"))));
    }

    proptest! {
        #[test]
        fn a_checkpoint_round_trips(
            description in ".{0,40}",
            runs in prop::collection::vec((0..END, any::<u64>(), prop::collection::vec(any::<u8>(), 1..5000)), 0..8),
        ) {
            let (read, actual) = read_all(&written(&description, &runs)).expect("it is intact");
            prop_assert_eq!(read, description);
            prop_assert_eq!(actual, runs);
        }

        #[test]
        fn a_truncated_or_changed_file_is_rejected(cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let file = written("state", &vec![(0, 0x4000, vec![7; 10_000])]);
            prop_assert!(read_all(&file[..cut.index(file.len())]).is_err());
            let mut changed = file.clone();
            changed[at.index(file.len())] ^= 1 << bit;
            prop_assert!(read_all(&changed).is_err());
        }

        /// Corruption with a valid checksum.
        #[test]
        fn arbitrary_contents_do_not_panic(at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..40)) {
            let mut file = written("state", &vec![(0, 0x4000, vec![7; 10_000])]);
            let end = file.len() - DIGEST_BYTES;
            let at = at.index(end);
            let count = bytes.len().min(end - at);
            file[at..at + count].copy_from_slice(&bytes[..count]);
            let _ = read_all(&with_digest(file));
        }
    }
}
