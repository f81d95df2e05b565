//! Reads trace files, compressed with zstd or not.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
};

use crate::instruction::{Instruction, RECORD_BYTES, RecordError};

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Magic numbers of other compressed formats, and the programs that decompress them.
const OTHERS: [(&[u8], &str); 3] =
    [(&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"), (&[0x1f, 0x8b], "gzip"), (b"BZh", "bzip2")];

/// A trace file that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is compressed in another format.
    #[error(
        "the file is compressed with {0}; decompress it first, or compress it with zstd instead: `{0} -dc FILE | zstd > FILE.zst`"
    )]
    Compressed(&'static str),
}

/// A trace that cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read, or its compressed data is damaged.
    #[error("record {record} cannot be read: {error}")]
    Io {
        /// The number of the record, from 0.
        record: u64,
        /// The cause.
        error: io::Error,
    },
    /// The file ends within a record.
    #[error("the trace is cut off: record {record} has {bytes} bytes of {RECORD_BYTES}")]
    Truncated {
        /// The number of the record, from 0.
        record: u64,
        /// The number of bytes present.
        bytes: usize,
    },
    /// The bytes are not a record.
    #[error("record {record} is not one of a ChampSim trace: {error}")]
    Record {
        /// The number of the record, from 0.
        record: u64,
        /// A description of the error.
        error: RecordError,
    },
}

/// Compression level: traces are repetitive, and compression at higher levels is slower than the simulation.
const ZSTD_LEVEL: i32 = 3;

/// The file of a trace that is written.
pub enum Output {
    /// Uncompressed.
    Plain(BufWriter<File>),
    /// Compressed with zstd.
    Zstd(Box<zstd::Encoder<'static, BufWriter<File>>>),
}

impl Output {
    /// Writes to `file`, compressed with zstd if the extension of `path` is `zst`.
    ///
    /// # Errors
    /// The compressor cannot be set up.
    pub fn new(file: File, path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(file);
        if path.extension().is_some_and(|extension| extension == "zst") {
            return Ok(Self::Zstd(Box::new(zstd::Encoder::new(file, ZSTD_LEVEL)?)));
        }
        Ok(Self::Plain(file))
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Zstd(encoder) => encoder.finish()?.flush(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// Reads the instructions of a trace in order. Ends after the first error.
pub struct Reader<R> {
    from: R,
    record: u64,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads uncompressed records from `from`.
    pub fn new(from: R) -> Self {
        Self { from, record: 0, has_ended: false }
    }

    fn read(&mut self) -> Result<Option<Instruction>, ReadError> {
        let mut bytes = [0; RECORD_BYTES];
        let (mut filled, record) = (0, self.record);
        while filled < RECORD_BYTES {
            match self.from.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(ReadError::Truncated { record, bytes: filled }),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Io { record, error }),
            }
        }
        self.record += 1;
        Instruction::from_bytes(&bytes).map(Some).map_err(|error| ReadError::Record { record, error })
    }
}

impl Reader<Box<dyn Read + Send>> {
    /// Opens a trace file. Whether it is compressed with zstd is recognized by its first bytes.
    ///
    /// # Errors
    /// The file cannot be read, or is compressed in another format.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let mut file = File::open(path)?;
        let mut start = Vec::new();
        Read::by_ref(&mut file).take(6).read_to_end(&mut start)?;
        if let Some((_, program)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(OpenError::Compressed(program));
        }
        file.seek(SeekFrom::Start(0))?;
        Ok(Self::new(match start.starts_with(&ZSTD) {
            true => Box::new(BufReader::new(zstd::Decoder::new(file)?)),
            false => Box::new(BufReader::new(file)),
        }))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Instruction, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let read = self.read();
        self.has_ended = !matches!(read, Ok(Some(_)));
        read.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::tests::any_instruction;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cut_off_trace_has_its_whole_records_and_then_an_error(
            instructions in prop::collection::vec(any_instruction(), 1..20),
            cut in 1usize..RECORD_BYTES,
        ) {
            let bytes: Vec<u8> = instructions.iter().flat_map(Instruction::to_bytes).collect();
            let whole: Result<Vec<_>, _> = Reader::new(&bytes[..]).collect();
            prop_assert_eq!(whole.unwrap(), instructions.clone());
            let mut reader = Reader::new(&bytes[..bytes.len() - cut]);
            let read: Vec<_> = reader.by_ref().map_while(Result::ok).collect();
            prop_assert_eq!(&read[..], &instructions[..instructions.len() - 1]);
            let error = Reader::new(&bytes[..bytes.len() - cut]).find_map(Result::err).unwrap();
            prop_assert!(error.to_string().contains("cut off"), "{}", error);
            prop_assert!(reader.next().is_none());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = Reader::new(&bytes[..]).count();
        }
    }
}
