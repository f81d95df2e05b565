//! Reads requests: arrays of bulk strings. A request may arrive in any number of pieces. Each byte is parsed once, and
//! memory is allocated only for bytes that have arrived.
//!
//! Source: Redis serialization protocol specification (RESP2), "Sending commands to a Redis server".

/// The overhead of a word, bytes: its allocation and its entry in the list.
pub(crate) const WORD_BYTES: usize = 32;

/// The longest line: a type character, the digits of a length, CR and LF.
const LINE_BYTES: usize = 24;

/// A word is allocated in steps of at most this many bytes, as it arrives.
const STEP_BYTES: usize = 64 << 10;

/// The words of a request: the name of a command and its arguments.
pub type Words = Vec<Vec<u8>>;

/// A request that does not follow the protocol. The rest of the input has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A byte that violates the protocol.
    #[error("expected '{}', got '{}'", .expected.escape_default(), .found.escape_ascii())]
    Unexpected {
        /// The byte that the protocol requires.
        expected: char,
        /// The byte found.
        found: u8,
    },
    /// A length that is not a number.
    #[error("the length '{}' is not a number", .text.escape_ascii())]
    Length {
        /// The text found.
        text: Vec<u8>,
    },
    /// The request exceeds the limit.
    #[error("the command is longer than {longest} bytes")]
    TooLong {
        /// The limit, bytes.
        longest: usize,
    },
}

/// The syntactic position of the next byte.
#[derive(Debug)]
enum Position {
    /// The line with the number of words.
    Count,
    /// The line feed of an empty line before a request.
    EmptyLine,
    /// The line with the length of a word.
    Length,
    /// A word, of which this many bytes are missing.
    Word(usize),
    /// The carriage return after a word.
    Return,
    /// The line feed after a word.
    Feed,
}

/// Reads requests from a stream of bytes.
#[derive(Debug)]
pub struct RequestReader {
    longest: usize,
    place: Position,
    line: Vec<u8>,
    words: Words,
    missing: usize,
    bytes: usize,
}

impl RequestReader {
    /// A reader of requests of at most `longest` bytes. A word is counted as 32 bytes plus its length.
    pub fn new(longest: usize) -> Self {
        let (line, words) = (Vec::new(), Words::new());
        Self { longest, place: Position::Count, line, words, missing: 0, bytes: 0 }
    }

    /// Changes the limit.
    pub fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// The memory that the incomplete request takes, bytes; 0 between two requests.
    pub fn held_bytes(&self) -> usize {
        self.words.iter().map(|word| word.capacity() + WORD_BYTES).sum()
    }

    /// Whether a request has begun.
    pub fn is_within_request(&self) -> bool {
        !matches!(self.place, Position::Count) || !self.line.is_empty()
    }

    /// Reads from the start of `input` up to the end of the next request, and removes what it has read. `None`: all of
    /// `input` was read, and the request is incomplete.
    ///
    /// # Errors
    /// If the input is not a request. The reader cannot be used any more.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Words>, RequestError> {
        while let Some(&first) = input.first() {
            match self.place {
                // As in Redis, empty lines between requests have no meaning: `redis-cli --pipe` sends one.
                Position::Count if self.line.is_empty() && first == b'\r' => {
                    take(first, '\r', input)?;
                    self.place = Position::EmptyLine;
                }
                Position::EmptyLine => {
                    take(first, '\n', input)?;
                    self.place = Position::Count;
                }
                Position::Count => {
                    let Some(count) = self.number('*', input)? else { break };
                    self.charge(count, WORD_BYTES)?;
                    // An empty request has no reply.
                    if count > 0 {
                        (self.missing, self.place) = (count, Position::Length);
                    } else {
                        self.bytes = 0;
                    }
                }
                Position::Length => {
                    let Some(length) = self.number('$', input)? else { break };
                    self.charge(length, 1)?;
                    self.words.push(Vec::with_capacity(length.min(STEP_BYTES)));
                    self.place = if length > 0 { Position::Word(length) } else { Position::Return };
                }
                Position::Word(missing) => {
                    let (arrived, rest) = input.split_at(missing.min(input.len()));
                    if let Some(word) = self.words.last_mut() {
                        word.extend_from_slice(arrived);
                    }
                    *input = rest;
                    let missing = missing - arrived.len();
                    self.place = if missing > 0 { Position::Word(missing) } else { Position::Return };
                }
                Position::Return => {
                    take(first, '\r', input)?;
                    self.place = Position::Feed;
                }
                Position::Feed => {
                    take(first, '\n', input)?;
                    self.missing -= 1;
                    if self.missing == 0 {
                        (self.place, self.bytes) = (Position::Count, 0);
                        return Ok(Some(std::mem::take(&mut self.words)));
                    }
                    self.place = Position::Length;
                }
            }
        }
        Ok(None)
    }

    /// Reads a line that consists of `kind` and a number.
    fn number(&mut self, kind: char, input: &mut &[u8]) -> Result<Option<usize>, RequestError> {
        while let Some((&byte, rest)) = input.split_first() {
            if self.line.is_empty() {
                take(byte, kind, input)?;
                self.line.push(byte);
                continue;
            }
            *input = rest;
            self.line.push(byte);
            if byte == b'\n' || self.line.len() == LINE_BYTES {
                let wrong = |line: &[u8]| RequestError::Length { text: line[1..].trim_ascii_end().to_vec() };
                let digits = self.line[1..].strip_suffix(b"\r\n").ok_or_else(|| wrong(&self.line))?;
                let number = number(digits).ok_or_else(|| wrong(&self.line))?;
                self.line.clear();
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Counts the announced `count` words or bytes of `size` bytes each.
    fn charge(&mut self, count: usize, size: usize) -> Result<(), RequestError> {
        let bytes = count.checked_mul(size).and_then(|more| self.bytes.checked_add(more));
        match bytes.filter(|bytes| *bytes <= self.longest) {
            Some(bytes) => {
                self.bytes = bytes;
                Ok(())
            }
            None => Err(RequestError::TooLong { longest: self.longest }),
        }
    }
}

/// Removes `first`, which must be `expected`, from the input.
fn take(first: u8, expected: char, input: &mut &[u8]) -> Result<(), RequestError> {
    if char::from(first) != expected {
        return Err(RequestError::Unexpected { expected, found: first });
    }
    *input = &input[1..];
    Ok(())
}

/// A number in decimal digits, without a sign.
pub(crate) fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| are_digits)?.parse().ok()
}

/// The size of a request's words in memory, bytes.
pub(crate) fn size(words: &Words) -> usize {
    words.iter().map(|word| word.len() + WORD_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(words: &Words) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    fn words() -> impl Strategy<Value = Words> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6)
    }

    /// All requests of `input`, which arrives in pieces.
    fn read(input: &[u8], piece: usize, longest: usize) -> Result<Vec<Words>, RequestError> {
        let (mut reader, mut requests) = (RequestReader::new(longest), Vec::new());
        for mut piece in input.chunks(piece) {
            while let Some(words) = reader.next(&mut piece)? {
                assert!(size(&words) <= longest);
                requests.push(words);
            }
            assert!(piece.is_empty());
            assert!(reader.held_bytes() <= longest);
        }
        Ok(requests)
    }

    proptest! {
        #[test]
        fn requests_are_read_from_pieces_of_any_size(
            requests in prop::collection::vec(words(), 0..5),
            piece in 1usize..40,
        ) {
            let input: Vec<u8> = requests.iter().flat_map(encoded).collect();
            prop_assert_eq!(read(&input, piece, 1000), Ok(requests));
        }

        #[test]
        fn any_bytes_are_read_or_refused_whatever_the_pieces(
            input in prop::collection::vec(prop::sample::select(&b"*$0123\r\nab-+"[..]), 0..60),
            piece in 1usize..10,
        ) {
            prop_assert_eq!(read(&input, piece, 200), read(&input, 60, 200));
        }

        #[test]
        fn a_changed_byte_does_no_harm(words in words(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut input = encoded(&words);
            let at = at.index(input.len());
            input[at] = byte;
            let _ = read(&input, 7, 500);
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_reason() {
        for (input, reason) in [
            (&b"GET / HTTP/1.1\r\n"[..], "expected '*', got 'G'"),
            (b"*1\r\n:5\r\n", "expected '$', got ':'"),
            (b"*1\r\n$3\r\nabcd\r\n", "expected '\\r', got 'd'"),
            (b"*-1\r\n", "the length '-1' is not a number"),
            (b"*+1\r\n", "the length '+1' is not a number"),
            (b"*1\n", "the length '1' is not a number"),
            (b"*00000000000000000000000000001\r\n", "is not a number"),
            (b"*99999999\r\n", "longer than 1000 bytes"),
            (b"*18446744073709551615\r\n", "longer than 1000 bytes"),
            (b"*1\r\n$1000\r\n", "longer than 1000 bytes"),
            (b"*2\r\n$500\r\n", "incomplete"),
        ] {
            let mut input = input;
            match RequestReader::new(1000).next(&mut input) {
                Err(error) => assert!(error.to_string().contains(reason), "{error}"),
                Ok(read) => assert_eq!((read, reason), (None, "incomplete")),
            }
        }
    }

    #[test]
    fn empty_lines_between_requests_are_ignored() {
        let input = b"\r\n\r\n*1\r\n$1\r\na\r\n\r\n*1\r\n$1\r\nb\r\n\r\n";
        for piece in 1..input.len() {
            assert_eq!(read(input, piece, 100), Ok(vec![vec![b"a".to_vec()], vec![b"b".to_vec()]]));
        }
        for wrong in [&b"\r*1\r\n"[..], b"\r\nGET / HTTP/1.1\r\n", b"*1\r\n\r\n"] {
            assert!(matches!(read(wrong, 5, 100), Err(RequestError::Unexpected { .. })));
        }
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut reader = RequestReader::new(usize::MAX / 2);
        let mut input = &b"*1000000000\r\n$1000000000000\r\nabc"[..];
        assert_eq!(reader.next(&mut input), Ok(None));
        assert!(reader.held_bytes() <= STEP_BYTES + WORD_BYTES && reader.is_within_request());
    }
}
