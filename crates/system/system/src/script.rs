//! Scripts for the serial console, which wait for output and type input. Time limits are in the machine's time, so that
//! the outcome of a script does not depend on the host.

/// The script is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The line has an unknown command.
    #[error("line {0}: expected `expect TEXT`, `send TEXT`, `limit SECONDS` or `checkpoint`")]
    Command(usize),
    /// A line follows `checkpoint`.
    #[error("line {0}: `checkpoint` ends the run, so no line may follow it")]
    Checkpoint(usize),
    /// The line has an unknown escape sequence.
    #[error("line {0}: after `\\` comes n, r, t, \\ or xHH")]
    Escape(usize),
    /// The time limit is not valid.
    #[error("line {0}: `limit` takes a whole number of seconds from 1 to 1000000")]
    Limit(usize),
    /// `expect` has no text.
    #[error("line {0}: `expect` takes a text")]
    Empty(usize),
}

/// The guest did not print the expected text in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("script, line {line}: the guest did not print {expected:?} in {seconds} s of its time")]
pub struct Late {
    /// The line of the script, counted from 1.
    pub line: usize,
    /// The expected text.
    pub expected: String,
    /// The limit in seconds of the machine's time.
    pub seconds: u64,
}

/// The limit that applies to `expect` before the first `limit`.
const DEFAULT_LIMIT_S: u64 = 60;
const MAX_LIMIT_S: u64 = 1_000_000;
const CYCLES_PER_S: u64 = crate::COUNTER_HZ as u64 * crate::CYCLES_PER_TICK;

#[derive(Clone, Debug, PartialEq, Eq)]
enum ScriptStep {
    Expect { line: usize, text: Vec<u8>, seconds: u64 },
    Send(Vec<u8>),
    Checkpoint,
}

/// A script and its progress.
#[derive(Clone, Debug)]
pub struct Script {
    steps: std::collections::VecDeque<ScriptStep>,
    /// The guest's output since the last match.
    printed: Vec<u8>,
    /// The cycle at which the current step began.
    start: u64,
}

impl Script {
    /// Parses a script. Empty lines and lines that start with `#` are comments.
    ///
    /// # Errors
    /// The first line that is not valid.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut steps = std::collections::VecDeque::new();
        let mut seconds = DEFAULT_LIMIT_S;
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            if content.trim().is_empty() || content.starts_with('#') {
                continue;
            }
            if steps.back() == Some(&ScriptStep::Checkpoint) {
                return Err(ScriptError::Checkpoint(line));
            }
            let (command, argument) = content.split_once(' ').unwrap_or((content, ""));
            match command {
                "expect" => {
                    let text = unescape(argument, line)?;
                    if text.is_empty() {
                        return Err(ScriptError::Empty(line));
                    }
                    steps.push_back(ScriptStep::Expect { line, text, seconds });
                }
                "send" => steps.push_back(ScriptStep::Send(unescape(argument, line)?)),
                "checkpoint" if argument.is_empty() => steps.push_back(ScriptStep::Checkpoint),
                "limit" => {
                    let given = argument.trim().parse().ok();
                    seconds = given
                        .filter(|seconds| (1..=MAX_LIMIT_S).contains(seconds))
                        .ok_or(ScriptError::Limit(line))?;
                }
                _ => return Err(ScriptError::Command(line)),
            }
        }
        Ok(Self { steps, printed: Vec::new(), start: 0 })
    }

    /// Starts the script's time at `cycle`, which is 0 by default.
    pub fn start_at(&mut self, cycle: u64) {
        self.start = cycle;
    }

    /// Whether the script ends with a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        self.steps.back() == Some(&ScriptStep::Checkpoint)
    }

    /// Whether the script has reached its checkpoint. It does not continue past it.
    pub fn is_at_checkpoint(&self) -> bool {
        self.steps.front() == Some(&ScriptStep::Checkpoint)
    }

    /// Whether the script has finished.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes the output that the guest has printed until `cycle`. Returns the input to type.
    ///
    /// # Errors
    /// The guest has not printed the expected text in time.
    pub fn advance(&mut self, printed: &[u8], cycle: u64) -> Result<Vec<u8>, Late> {
        self.printed.extend_from_slice(printed);
        let mut typed = Vec::new();
        while let Some(step) = self.steps.front() {
            match step {
                ScriptStep::Send(bytes) => typed.extend_from_slice(bytes),
                ScriptStep::Checkpoint => return Ok(typed),
                ScriptStep::Expect { line, text, seconds } => {
                    let place = self.printed.windows(text.len()).position(|window| window == text);
                    let Some(place) = place else {
                        if cycle - self.start > seconds.saturating_mul(CYCLES_PER_S) {
                            return Err(self.late(*line, text, *seconds));
                        }
                        // A later match can begin in this output, but cannot be complete in it.
                        let kept = self.printed.len().min(text.len() - 1);
                        self.printed.drain(..self.printed.len() - kept);
                        return Ok(typed);
                    };
                    self.printed.drain(..place + text.len());
                }
            }
            self.start = cycle;
            self.steps.pop_front();
        }
        self.printed.clear();
        Ok(typed)
    }

    /// The error of a guest that stopped before it printed the next expected text; `None` if the script expects no more
    /// text.
    pub fn unfinished(&self) -> Option<Late> {
        self.steps.iter().find_map(|step| match step {
            ScriptStep::Expect { line, text, seconds } => Some(self.late(*line, text, *seconds)),
            ScriptStep::Send(_) | ScriptStep::Checkpoint => None,
        })
    }

    fn late(&self, line: usize, text: &[u8], seconds: u64) -> Late {
        Late { line, expected: String::from_utf8_lossy(text).into_owned(), seconds }
    }
}

fn unescape(text: &str, line: usize) -> Result<Vec<u8>, ScriptError> {
    let wrong = ScriptError::Escape(line);
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().ok_or(wrong.clone())? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'\\' => b'\\',
                b'x' => {
                    let mut digit = || (rest.next()? as char).to_digit(16);
                    let digits = digit().zip(digit()).ok_or(wrong.clone())?;
                    (digits.0 << 4 | digits.1) as u8
                }
                _ => return Err(wrong),
            },
            byte => byte,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_types_after_it_has_seen_what_it_expects_even_in_pieces() {
        let mut script =
            Script::parse("# log in\nexpect login:\nsend root\\r\n\nexpect # \nsend ls\\x20-l\\n").unwrap();
        assert_eq!(script.advance(b"kernel\nlog", 1), Ok(vec![]));
        assert_eq!(script.advance(b"in: ", 2), Ok(b"root\r".to_vec()));
        assert_eq!(script.unfinished().map(|late| late.line), Some(5));
        assert_eq!(script.advance(b"Welcome # ", 3), Ok(b"ls -l\n".to_vec()));
        assert!(script.is_done());
        assert_eq!(script.unfinished(), None);
    }

    #[test]
    fn a_text_is_matched_once() {
        let mut script = Script::parse("expect $ \nsend a\nexpect $ \nsend b").unwrap();
        assert_eq!(script.advance(b"$ ", 0), Ok(b"a".to_vec()));
        assert_eq!(script.advance(b"", 0), Ok(vec![]));
        assert_eq!(script.advance(b"$ ", 0), Ok(b"b".to_vec()));
    }

    #[test]
    fn a_limit_is_in_the_time_of_the_machine_and_starts_with_its_step() {
        let mut script = Script::parse("expect a\nlimit 2\nexpect b").unwrap();
        assert_eq!(script.advance(b"a", 50_000_000_000), Ok(vec![]));
        assert_eq!(script.advance(b"", 52_000_000_000), Ok(vec![]));
        let late = script.advance(b"", 52_000_000_001).unwrap_err();
        assert_eq!(late.to_string(), "script, line 3: the guest did not print \"b\" in 2 s of its time");
    }

    #[test]
    fn a_script_stays_at_its_checkpoint() {
        let mut script = Script::parse("expect $ \nsend a\ncheckpoint\n# the end\n").unwrap();
        assert!(script.has_checkpoint() && !script.is_at_checkpoint());
        assert_eq!(script.advance(b"$ $ ", 0), Ok(b"a".to_vec()));
        assert!(script.is_at_checkpoint());
        assert_eq!(script.advance(b"$ ", u64::MAX), Ok(vec![]));
        assert!(script.is_at_checkpoint() && !script.is_done());
    }

    #[test]
    fn a_script_whose_time_starts_later_has_its_whole_limit() {
        let mut script = Script::parse("limit 1\nexpect a").unwrap();
        script.start_at(50_000_000_000);
        assert_eq!(script.advance(b"", 51_000_000_000), Ok(vec![]));
        assert!(script.advance(b"", 51_000_000_001).is_err());
    }

    #[test]
    fn an_invalid_line_is_named() {
        let cases = [
            ("expect a\nwait 3", ScriptError::Command(2)),
            ("send \\q", ScriptError::Escape(1)),
            ("send \\x4", ScriptError::Escape(1)),
            ("send \\", ScriptError::Escape(1)),
            ("limit 0", ScriptError::Limit(1)),
            ("limit 1s", ScriptError::Limit(1)),
            ("expect ", ScriptError::Empty(1)),
            ("checkpoint now", ScriptError::Command(1)),
            ("checkpoint\n\nsend a", ScriptError::Checkpoint(3)),
        ];
        for (text, error) in cases {
            assert_eq!(Script::parse(text).err(), Some(error), "{text}");
        }
    }
}
