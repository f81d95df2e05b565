//! The command table, and the parser from requests to commands.
//!
//! Source: Redis documentation, pages of the commands; the keys' positions and flags as in COMMAND's reply.

use crate::pattern::Pattern;
use crate::request::{Words, number};
use std::ops::Bound;

/// The condition of SET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Always,
    /// NX.
    IfAbsent,
    /// XX.
    IfPresent,
}

/// The arguments of RANGE.
#[derive(Debug)]
pub(crate) struct Range {
    pub start: Bound<Vec<u8>>,
    pub end: Bound<Vec<u8>>,
    pub reverse: bool,
    pub count: u64,
}

/// A parsed request.
#[derive(Debug)]
pub(crate) enum Command {
    Get(Vec<u8>),
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
        condition: Condition,
    },
    Delete(Words),
    Exists(Words),
    GetMany(Words),
    SetMany(Vec<(Vec<u8>, Vec<u8>)>),
    Range(Range),
    Ping(Option<Vec<u8>>),
    Echo(Vec<u8>),
    Scan {
        cursor: u64,
        pattern: Option<Pattern>,
        count: u64,
    },
    Size,
    Info,
    Authenticate {
        user: Option<Vec<u8>>,
        password: Vec<u8>,
    },
    Hello {
        version: Option<Vec<u8>>,
        login: Option<(Vec<u8>, Vec<u8>)>,
        name: Option<Vec<u8>>,
    },
    Describe(Words),
    SetName(Vec<u8>),
    GetName,
    Identify,
    /// CLIENT SETINFO: information about the client library, which is ignored.
    Introduce,
    Begin,
    Execute,
    Discard,
    Watch(Words),
    Unwatch,
    Select,
    Quit,
}

/// The effect class of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It does not change the map, and may be part of a transaction.
    Read,
    /// It changes the map.
    Write,
    /// It concerns the connection or the server.
    Control,
}

impl Command {
    /// The command's effect class.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Get(_) | Self::Exists(_) | Self::GetMany(_) | Self::Range(_) => Effect::Read,
            Self::Ping(_) | Self::Echo(_) => Effect::Read,
            Self::Set { .. } | Self::Delete(_) | Self::SetMany(_) => Effect::Write,
            _ => Effect::Control,
        }
    }
}

/// A command as COMMAND describes it.
pub(crate) struct Specification {
    pub name: &'static str,
    /// The number of words; a negative value is minus the minimum.
    pub words: i32,
    pub flags: &'static [&'static str],
    /// First and last key, and the distance of keys, in words. The last one counts from the end if it is negative.
    pub keys: (i32, i32, i32),
    parse: fn(Arguments) -> Result<Command, String>,
}

const fn command(
    name: &'static str,
    words: i32,
    flags: &'static [&'static str],
    keys: (i32, i32, i32),
    parse: fn(Arguments) -> Result<Command, String>,
) -> Specification {
    Specification { name, words, flags, keys, parse }
}

const READ: &[&str] = &["readonly"];
const FAST_READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom"];
const DELETE: &[&str] = &["write"];
const FAST: &[&str] = &["fast"];
const LOGIN: &[&str] = &["noscript", "fast", "no_auth"];
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

/// All commands.
pub(crate) const SPECIFICATIONS: &[Specification] = &[
    command("auth", -2, LOGIN, NO_KEYS, Arguments::authenticate),
    command("client", -2, FAST, NO_KEYS, Arguments::client),
    command("command", -1, FAST, NO_KEYS, |arguments| Ok(Command::Describe(arguments.words))),
    command("dbsize", 1, FAST_READ, NO_KEYS, |_| Ok(Command::Size)),
    command("del", -2, DELETE, (1, -1, 1), |arguments| Ok(Command::Delete(arguments.words))),
    command("discard", 1, FAST, NO_KEYS, |_| Ok(Command::Discard)),
    command("echo", 2, FAST, NO_KEYS, |arguments| arguments.only().map(Command::Echo)),
    command("exec", 1, FAST, NO_KEYS, |_| Ok(Command::Execute)),
    command("exists", -2, FAST_READ, (1, -1, 1), |arguments| Ok(Command::Exists(arguments.words))),
    command("get", 2, FAST_READ, (1, 1, 1), |arguments| arguments.only().map(Command::Get)),
    command("hello", -1, LOGIN, NO_KEYS, Arguments::hello),
    command("info", -1, FAST, NO_KEYS, |_| Ok(Command::Info)),
    command("mget", -2, FAST_READ, (1, -1, 1), |arguments| Ok(Command::GetMany(arguments.words))),
    command("mset", -3, WRITE, (1, -1, 2), Arguments::set_many),
    command("multi", 1, FAST, NO_KEYS, |_| Ok(Command::Begin)),
    command("ping", -1, FAST, NO_KEYS, Arguments::ping),
    command("quit", -1, LOGIN, NO_KEYS, |_| Ok(Command::Quit)),
    command("range", -3, READ, NO_KEYS, Arguments::range),
    command("scan", -2, READ, NO_KEYS, Arguments::scan),
    command("select", 2, FAST, NO_KEYS, Arguments::select),
    command("set", -3, WRITE, (1, 1, 1), Arguments::set),
    command("unwatch", 1, FAST, NO_KEYS, |_| Ok(Command::Unwatch)),
    command("watch", -2, FAST, (1, -1, 1), |arguments| Ok(Command::Watch(arguments.words))),
];

/// The specification of a command.
pub(crate) fn specification(name: &[u8]) -> Option<&'static Specification> {
    SPECIFICATIONS.iter().find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A client's text, shortened for a message.
fn shown(word: &[u8]) -> String {
    word[..word.len().min(64)].escape_ascii().to_string()
}

/// The lengths of keys and values that the map accepts, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub key: usize,
    pub value: usize,
}

impl Command {
    /// Parses a request.
    ///
    /// # Errors
    /// A message for the client, without a code.
    pub fn parse(mut words: Words, lengths: Lengths) -> Result<Self, String> {
        if words.is_empty() {
            return Err("the request is empty".into());
        }
        let name = words.remove(0);
        let Some(known) = specification(&name) else {
            return Err(format!("unknown command '{}': COMMAND lists the known ones", shown(&name)));
        };
        let count = words.len() + 1;
        let least = known.words.unsigned_abs() as usize;
        if count < least || (known.words > 0 && count > least) {
            return Err(format!("wrong number of arguments for '{}' command", known.name));
        }
        let command = (known.parse)(Arguments { name: known.name, words })?;
        command.check(lengths)?;
        Ok(command)
    }

    /// Checks the lengths of keys and values.
    fn check(&self, lengths: Lengths) -> Result<(), String> {
        let check_key = |key: &[u8]| match key.len() <= lengths.key {
            true => Ok(()),
            false => Err(format!("the key has {} bytes: keys have at most {}", key.len(), lengths.key)),
        };
        let check_value = |value: &[u8]| match value.len() <= lengths.value {
            true => Ok(()),
            false => {
                Err(format!("the value has {} bytes: values have at most {}", value.len(), lengths.value))
            }
        };
        match self {
            Self::Get(key) => check_key(key),
            Self::Set { key, value, .. } => check_key(key).and_then(|()| check_value(value)),
            Self::SetMany(pairs) => {
                pairs.iter().try_for_each(|(key, value)| check_key(key).and_then(|()| check_value(value)))
            }
            Self::Delete(keys) | Self::Exists(keys) | Self::GetMany(keys) | Self::Watch(keys) => {
                keys.iter().try_for_each(|key| check_key(key))
            }
            _ => Ok(()),
        }
    }
}

/// The words after a command's name.
pub(crate) struct Arguments {
    name: &'static str,
    words: Words,
}

impl Arguments {
    fn wrong_count<T>(&self) -> Result<T, String> {
        Err(format!("wrong number of arguments for '{}' command", self.name))
    }

    fn unknown_option<T>(&self, option: &[u8]) -> Result<T, String> {
        Err(format!("{} has no option '{}'", self.name.to_uppercase(), shown(option)))
    }

    /// The single argument.
    fn only(mut self) -> Result<Vec<u8>, String> {
        self.words.pop().ok_or_else(|| format!("wrong number of arguments for '{}' command", self.name))
    }

    fn ping(mut self) -> Result<Command, String> {
        if self.words.len() > 1 {
            return self.wrong_count();
        }
        Ok(Command::Ping(self.words.pop()))
    }

    fn set(self) -> Result<Command, String> {
        let mut condition = Condition::Always;
        for option in &self.words[2..] {
            let given = match option.to_ascii_uppercase().as_slice() {
                b"NX" => Condition::IfAbsent,
                b"XX" => Condition::IfPresent,
                name @ (b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"KEEPTTL") => {
                    let name = String::from_utf8_lossy(name);
                    return Err(format!("SET has no option {name} here: keys do not expire"));
                }
                _ => return self.unknown_option(option),
            };
            if condition != Condition::Always {
                return Err("SET takes one of NX and XX".into());
            }
            condition = given;
        }
        let mut words = self.words.into_iter();
        let (key, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        Ok(Command::Set { key, value, condition })
    }

    fn set_many(self) -> Result<Command, String> {
        if self.words.len() % 2 == 1 {
            return self.wrong_count();
        }
        let mut words = self.words.into_iter();
        Ok(Command::SetMany(
            std::iter::from_fn(|| words.next().and_then(|key| Some((key, words.next()?)))).collect(),
        ))
    }

    /// The number after an option.
    fn count_after(&self, option: usize) -> Result<u64, String> {
        let count = self.words.get(option + 1).and_then(|word| number(word)).filter(|count| *count > 0);
        let name = String::from_utf8_lossy(&self.words[option]).to_uppercase();
        count.ok_or_else(|| format!("{name} needs a number of at least 1"))
    }

    fn range(self) -> Result<Command, String> {
        const COUNT: u64 = 1000;
        let mut range =
            Range { start: Bound::Unbounded, end: Bound::Unbounded, reverse: false, count: COUNT };
        let mut at = 2;
        while let Some(option) = self.words.get(at) {
            match option.to_ascii_uppercase().as_slice() {
                b"REV" => range.reverse = true,
                b"COUNT" => {
                    range.count = self.count_after(at)?;
                    at += 1;
                }
                _ => return self.unknown_option(option),
            }
            at += 1;
        }
        if self.words[0] == b"+" || self.words[1] == b"-" {
            // The range is empty: it begins after the last key or ends before the first one.
            (range.start, range.end) = (Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new()));
            return Ok(Command::Range(range));
        }
        range.start = bound(&self.words[0], b"-")?;
        range.end = bound(&self.words[1], b"+")?;
        Ok(Command::Range(range))
    }

    fn scan(self) -> Result<Command, String> {
        const COUNT: u64 = 10;
        const MAX_PATTERN_BYTES: usize = 1024;
        let cursor = number(&self.words[0]).ok_or("the cursor is not a number")?;
        let (mut pattern, mut count, mut at) = (None, COUNT, 1);
        while let Some(option) = self.words.get(at) {
            match option.to_ascii_uppercase().as_slice() {
                b"MATCH" => {
                    let text = self.words.get(at + 1).ok_or("MATCH needs a pattern")?;
                    if text.len() > MAX_PATTERN_BYTES {
                        return Err(format!(
                            "the pattern has {} bytes: patterns have at most {MAX_PATTERN_BYTES}",
                            text.len()
                        ));
                    }
                    pattern = Some(Pattern::new(text));
                }
                b"COUNT" => count = self.count_after(at)?,
                _ => return self.unknown_option(option),
            }
            at += 2;
        }
        Ok(Command::Scan { cursor, pattern, count })
    }

    fn select(self) -> Result<Command, String> {
        match self.words[0].as_slice() {
            b"0" => Ok(Command::Select),
            _ => Err("DB index is out of range: there is only database 0".into()),
        }
    }

    fn authenticate(mut self) -> Result<Command, String> {
        if self.words.len() > 2 {
            return self.wrong_count();
        }
        let password = self.words.pop().unwrap_or_default();
        Ok(Command::Authenticate { user: self.words.pop(), password })
    }

    fn hello(self) -> Result<Command, String> {
        let mut words = self.words.into_iter();
        let version = words.next();
        let (mut login, mut name) = (None, None);
        while let Some(option) = words.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"AUTH" => {
                    login = Some(words.next().zip(words.next()).ok_or("AUTH needs a user and a password")?)
                }
                b"SETNAME" => name = Some(client_name(words.next().ok_or("SETNAME needs a name")?)?),
                _ => return Err(format!("HELLO has no option '{}'", shown(&option))),
            }
        }
        Ok(Command::Hello { version, login, name })
    }

    fn client(mut self) -> Result<Command, String> {
        let subcommand = self.words[0].to_ascii_uppercase();
        match (subcommand.as_slice(), self.words.len()) {
            (b"SETNAME", 2) => Ok(Command::SetName(client_name(self.words.swap_remove(1))?)),
            (b"GETNAME", 1) => Ok(Command::GetName),
            (b"ID", 1) => Ok(Command::Identify),
            (b"SETINFO", 3) => Ok(Command::Introduce),
            (b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO", _) => self.wrong_count(),
            _ => Err(format!("CLIENT has no subcommand '{}'", shown(&self.words[0]))),
        }
    }
}

/// Checks a name for CLIENT SETNAME.
fn client_name(name: Vec<u8>) -> Result<Vec<u8>, String> {
    const MAX_NAME_BYTES: usize = 256;
    match name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic) {
        true => Ok(name),
        false => Err("names have at most 256 printable ASCII characters and no spaces".into()),
    }
}

/// A bound of RANGE: `[key` includes the key, `(key` excludes it, `unbounded` is `-` or `+`.
fn bound(word: &[u8], unbounded: &[u8]) -> Result<Bound<Vec<u8>>, String> {
    match word {
        [b'[', key @ ..] => Ok(Bound::Included(key.to_vec())),
        [b'(', key @ ..] => Ok(Bound::Excluded(key.to_vec())),
        _ if word == unbounded => Ok(Bound::Unbounded),
        _ => Err(format!(
            "'{}' is not a bound: write [key to include the key, (key to exclude it, - for the first key, + for the last",
            shown(word)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(request: &str) -> Result<Command, String> {
        let words = request.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        Command::parse(words, Lengths { key: 8, value: 16 })
    }

    #[test]
    fn requests_are_refused_with_the_reason() {
        for (request, reason) in [
            ("INCR a", "unknown command 'INCR'"),
            ("get", "wrong number of arguments for 'get'"),
            ("get a b", "wrong number of arguments for 'get'"),
            ("mset a 1 b", "wrong number of arguments for 'mset'"),
            ("set a 1 ex 10", "no option EX here: keys do not expire"),
            ("set a 1 KEEPTTL", "no option KEEPTTL here"),
            ("set a 1 get", "SET has no option 'get'"),
            ("set a 1 nx xx", "one of NX and XX"),
            ("set 123456789 1", "the key has 9 bytes: keys have at most 8"),
            ("mset a 12345678901234567", "the value has 17 bytes"),
            ("range a b", "'a' is not a bound"),
            ("range - x", "'x' is not a bound"),
            ("range - + count 0", "COUNT needs a number of at least 1"),
            ("range - + limit 0", "RANGE has no option 'limit'"),
            ("scan x", "the cursor is not a number"),
            ("scan 0 match", "MATCH needs a pattern"),
            ("select 1", "only database 0"),
            ("client list", "CLIENT has no subcommand 'list'"),
            ("client setname a\nb", "no spaces"),
        ] {
            let error = parsed(request).unwrap_err();
            assert!(error.contains(reason), "{request}: {error}");
        }
    }

    #[test]
    fn names_and_options_have_no_case() {
        assert!(matches!(parsed("SeT a 1 xX"), Ok(Command::Set { condition: Condition::IfPresent, .. })));
        assert!(matches!(parsed("SCAN 12 count 3 match a*"), Ok(Command::Scan { cursor: 12, count: 3, .. })));
        assert!(matches!(
            parsed("range [a (b rev"),
            Ok(Command::Range(Range {
                start: Bound::Included(_),
                end: Bound::Excluded(_),
                reverse: true,
                ..
            }))
        ));
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(SPECIFICATIONS.is_sorted_by_key(|known| known.name));
    }
}
