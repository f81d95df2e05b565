//! A client's session: executes its requests, and keeps its authentication, watched keys and queued commands. It does
//! no I/O on the connection.

use crate::command::{Command, Effect, SPECIFICATIONS, Specification, specification};
use crate::commit::{Job, Work};
use crate::execute;
use crate::output::{Output, Protocol};
use crate::request::{Words, size};
use crate::shared::Shared;
use crate::watch::WatchedKeys;
use longma_zoned::ZonedDevice;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// The longest request before authentication, bytes.
pub(crate) const STRANGER_BYTES: usize = 16 << 10;
/// The number of wrong passwords after which a client is disconnected.
const WRONG_PASSWORDS: u32 = 3;
/// How long the reply to a wrong password is delayed.
const WRONG_PASSWORD_DELAY: Duration = Duration::from_millis(200);
/// Pipelined changes are committed when they take this much memory, bytes.
const PENDING_BYTES: usize = 1 << 20;

/// Whether the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    /// Send the replies and close.
    Close,
}

/// The commands of a transaction after MULTI.
#[derive(Debug, Default)]
struct Queued {
    commands: Vec<Command>,
    bytes: usize,
    /// A command was refused, so EXEC refuses the transaction.
    is_broken: bool,
}

/// A client's session.
pub(crate) struct Session<'s, D: ZonedDevice> {
    shared: &'s Shared<D>,
    id: u64,
    name: Vec<u8>,
    is_admitted: bool,
    wrong_passwords: u32,
    /// Changes that arrived together and are not committed yet.
    pending: Vec<Command>,
    pending_bytes: usize,
    queued: Option<Queued>,
    watched: WatchedKeys,
    is_closing: bool,
}

impl<D: ZonedDevice> Drop for Session<'_, D> {
    fn drop(&mut self) {
        self.unwatch();
    }
}

impl<'s, D: ZonedDevice> Session<'s, D> {
    /// The session of a new client.
    pub fn new(shared: &'s Shared<D>, id: u64) -> Self {
        Self {
            shared,
            id,
            name: Vec::new(),
            is_admitted: shared.password.is_none(),
            wrong_passwords: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            queued: None,
            watched: WatchedKeys::default(),
            is_closing: false,
        }
    }

    /// Whether the client has authenticated, or need not.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// The memory of the session, bytes.
    pub fn bytes(&self) -> usize {
        self.pending_bytes + self.queued.as_ref().map_or(0, |queued| queued.bytes) + self.watched.bytes()
    }

    fn unwatch(&mut self) {
        self.shared.watches.unwatch(std::mem::take(&mut self.watched));
    }

    /// Executes a request, or queues it until [`Session::settle`].
    pub fn request(&mut self, words: Words, output: &mut Output) -> Next {
        self.shared.counts.requests.fetch_add(1, Ordering::Relaxed);
        let bytes = size(&words);
        let known = words.first().and_then(|name| specification(name));
        if !self.is_admitted && known.is_none_or(|known| !known.flags.contains(&"no_auth")) {
            output.error("NOAUTH Authentication required: send AUTH with the password first");
            return Next::Continue;
        }
        match Command::parse(words, self.shared.lengths) {
            Ok(command) if self.queued.is_some() => {
                self.reply(output, |session, output| session.enqueue(command, bytes, output));
            }
            Ok(command) if command.effect() == Effect::Write => {
                self.pending.push(command);
                self.pending_bytes += bytes;
                if self.pending.len() >= self.shared.limits.pipeline || self.pending_bytes >= PENDING_BYTES {
                    self.settle(output);
                }
            }
            Ok(command) => {
                self.settle(output);
                self.reply(output, |session, output| session.execute(command, output));
            }
            Err(reason) => {
                self.settle(output);
                if let Some(queued) = &mut self.queued {
                    queued.is_broken = true;
                }
                output.error(&format!("ERR {reason}"));
            }
        }
        if self.is_closing { Next::Close } else { Next::Continue }
    }

    /// Adds one reply, or an error if `work` fails or the reply does not fit.
    fn reply(
        &mut self,
        output: &mut Output,
        work: impl FnOnce(&mut Self, &mut Output) -> longma_zoned::Result<()>,
    ) {
        let start = output.begin();
        let protocol = output.protocol();
        let failed = work(self, output).err().map(|error| error.to_string());
        if output.overflow().is_some() {
            output.set_protocol(protocol);
        }
        output.complete(start, failed);
    }

    /// Commits the pending changes and appends their replies.
    pub fn settle(&mut self, output: &mut Output) {
        if !self.pending.is_empty() {
            let commands = std::mem::take(&mut self.pending);
            let bytes = std::mem::take(&mut self.pending_bytes);
            self.commit(Work::Separate(commands), bytes, output);
        }
    }

    /// Waits until the work is committed.
    fn commit(&mut self, work: Work, bytes: usize, output: &mut Output) {
        let lent = std::mem::replace(output, output.nested());
        let (done, result) = sync_channel(1);
        self.shared.queue.push(Job { work, bytes, output: lent, done });
        match result.recv() {
            Ok(job) => {
                *output = job.output;
                if let Work::Atomic { watched, .. } = job.work {
                    self.shared.watches.unwatch(watched);
                }
            }
            // The committer has failed and dropped the job.
            Err(_) => self.is_closing = true,
        }
    }

    /// A command after MULTI.
    fn enqueue(&mut self, command: Command, bytes: usize, output: &mut Output) -> longma_zoned::Result<()> {
        let Some(queued) = &mut self.queued else { return Ok(()) };
        let refusal = match command {
            Command::Execute => {
                self.execute_queued(output);
                return Ok(());
            }
            Command::Discard => {
                self.queued = None;
                self.unwatch();
                output.simple("OK");
                return Ok(());
            }
            Command::Quit => return self.execute(Command::Quit, output),
            // As in Redis, these two do not abort the transaction.
            Command::Begin => {
                output.error("ERR MULTI calls can not be nested");
                return Ok(());
            }
            Command::Watch(_) => {
                output.error("ERR WATCH inside MULTI is not allowed");
                return Ok(());
            }
            Command::Unwatch => None,
            _ if command.effect() == Effect::Control => Some(
                "only commands that read or write keys can be part of a transaction, and not SCAN".into(),
            ),
            _ if queued.commands.len() >= self.shared.limits.pipeline => {
                Some(format!("a transaction has at most {} commands", self.shared.limits.pipeline))
            }
            _ if queued.bytes + bytes > self.shared.limits.command_bytes => {
                Some(format!("a transaction has at most {} bytes", self.shared.limits.command_bytes))
            }
            _ => None,
        };
        match refusal {
            Some(reason) => {
                queued.is_broken = true;
                output.error(&format!("ERR {reason}"));
            }
            None => {
                queued.commands.push(command);
                queued.bytes += bytes;
                output.simple("QUEUED");
            }
        }
        Ok(())
    }

    fn execute_queued(&mut self, output: &mut Output) {
        let Some(queued) = self.queued.take() else { return };
        if queued.is_broken {
            self.unwatch();
            return output.error("EXECABORT Transaction discarded because of previous errors.");
        }
        let watched = std::mem::take(&mut self.watched);
        self.commit(Work::Atomic { commands: queued.commands, watched }, queued.bytes, output);
    }

    fn execute(&mut self, command: Command, output: &mut Output) -> longma_zoned::Result<()> {
        match command {
            Command::Authenticate { user, password } => self.authenticate(user.as_deref(), &password, output),
            Command::Hello { version, login, name } => self.hello(version, login, name, output),
            Command::Begin => {
                self.queued = Some(Queued::default());
                output.simple("OK");
            }
            Command::Execute => output.error("ERR EXEC without MULTI"),
            Command::Discard => output.error("ERR DISCARD without MULTI"),
            Command::Watch(keys) => self.watch(keys, output),
            Command::Unwatch => {
                self.unwatch();
                output.simple("OK");
            }
            Command::SetName(name) => {
                self.name = name;
                output.simple("OK");
            }
            Command::GetName if self.name.is_empty() => output.null(),
            Command::GetName => output.bulk(&self.name),
            Command::Identify => output.integer(self.id),
            Command::Select | Command::Introduce => output.simple("OK"),
            Command::Quit => {
                self.is_closing = true;
                output.simple("OK");
            }
            Command::Size => output.integer(self.shared.store.len()),
            Command::Info => output.text(&self.shared.info()),
            Command::Describe(words) => describe(&words, output),
            command => return self.read(&command, output),
        }
        Ok(())
    }

    fn read(&self, command: &Command, output: &mut Output) -> longma_zoned::Result<()> {
        let shared = self.shared;
        match command {
            // These commands do not read the map, so they need not wait for the gate.
            Command::Ping(_) | Command::Echo(_) => execute::read_store(&shared.store, command, output),
            Command::Scan { .. } => shared.scanners.pass(|| self.scan(command, output)),
            _ => shared.readers.pass(|| execute::read_store(&shared.store, command, output)),
        }
    }

    fn scan(&self, command: &Command, output: &mut Output) -> longma_zoned::Result<()> {
        let Command::Scan { cursor, pattern, count } = command else { return Ok(()) };
        let after = match cursor {
            0 => None,
            cursor => match self.shared.cursors.get(*cursor) {
                Some(key) => Some(key),
                None => {
                    output.error("ERR the cursor is unknown or too old: start again at 0");
                    return Ok(());
                }
            },
        };
        let view = self.shared.store.snapshot();
        let part = execute::scan(&view, after.as_deref(), pattern.as_ref(), *count)?;
        let next = part.last.map_or(0, |last| self.shared.cursors.add(last));
        output.array(2);
        output.bulk(next.to_string().as_bytes());
        output.array(part.keys.len());
        part.keys.iter().for_each(|key| output.bulk(key));
        Ok(())
    }

    fn watch(&mut self, keys: Words, output: &mut Output) {
        let most = self.shared.limits.pipeline;
        if self.watched.len() + keys.len() > most {
            return output.error(&format!("ERR a client watches at most {most} keys"));
        }
        self.shared.watches.watch(&mut self.watched, keys);
        output.simple("OK");
    }

    /// Checks a password. Returns whether it is right; if not, writes the error reply.
    fn admits(&mut self, user: Option<&[u8]>, password: &[u8], output: &mut Output) -> bool {
        let Some(expected) = &self.shared.password else {
            output.error("ERR this server has no password: connect without AUTH");
            return false;
        };
        if expected.is(password) && user.is_none_or(|user| user == b"default") {
            self.is_admitted = true;
            return true;
        }
        std::thread::sleep(WRONG_PASSWORD_DELAY);
        self.wrong_passwords += 1;
        self.is_closing |= self.wrong_passwords == WRONG_PASSWORDS;
        output.error("WRONGPASS invalid username-password pair: the user is `default`");
        false
    }

    fn authenticate(&mut self, user: Option<&[u8]>, password: &[u8], output: &mut Output) {
        if self.admits(user, password, output) {
            output.simple("OK");
        }
    }

    fn hello(
        &mut self,
        version: Option<Vec<u8>>,
        login: Option<(Vec<u8>, Vec<u8>)>,
        name: Option<Vec<u8>>,
        output: &mut Output,
    ) {
        let protocol = match version.as_deref() {
            None => output.protocol(),
            Some(b"2") => Protocol::Resp2,
            Some(b"3") => Protocol::Resp3,
            Some(_) => return output.error("NOPROTO unsupported protocol version: use 2 or 3"),
        };
        if let Some((user, password)) = login
            && !self.admits(Some(&user), &password, output)
        {
            return;
        }
        if !self.is_admitted {
            return output.error("NOAUTH HELLO needs AUTH and a password here");
        }
        if let Some(name) = name {
            self.name = name;
        }
        output.set_protocol(protocol);
        output.map(7);
        for (field, text) in [("server", "longma"), ("version", env!("CARGO_PKG_VERSION"))] {
            output.bulk(field.as_bytes());
            output.bulk(text.as_bytes());
        }
        output.bulk(b"proto");
        output.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
        output.bulk(b"id");
        output.integer(self.id);
        for (field, text) in [("mode", "standalone"), ("role", "master")] {
            output.bulk(field.as_bytes());
            output.bulk(text.as_bytes());
        }
        output.bulk(b"modules");
        output.array(0);
    }
}

/// COMMAND and its subcommands.
fn describe(words: &Words, output: &mut Output) {
    match words.split_first().map(|(subcommand, names)| (subcommand.to_ascii_uppercase(), names)) {
        None => {
            output.array(SPECIFICATIONS.len());
            SPECIFICATIONS.iter().for_each(|known| describe_one(known, output));
        }
        Some((subcommand, [])) if subcommand == b"COUNT" => output.integer(SPECIFICATIONS.len() as u64),
        Some((subcommand, names)) if subcommand == b"INFO" => {
            output.array(names.len());
            for name in names {
                match specification(name) {
                    Some(known) => describe_one(known, output),
                    None => output.null_array(),
                }
                if output.overflow().is_some() {
                    break;
                }
            }
        }
        // Interactive clients request the documentation, but work without it.
        Some((subcommand, _)) if subcommand == b"DOCS" => output.array(0),
        Some(_) => output.error("ERR COMMAND has the subcommands COUNT, INFO and DOCS"),
    }
}

fn describe_one(known: &Specification, output: &mut Output) {
    output.array(6);
    output.bulk(known.name.as_bytes());
    output.signed(known.words);
    output.set(known.flags.len());
    known.flags.iter().for_each(|flag| output.simple(flag));
    let (first, last, step) = known.keys;
    [first, last, step].into_iter().for_each(|number| output.signed(number));
}
