//! The console's input: the keys of a terminal, the bytes of a pipe, or a script.

use longma_system::script::{Late, Script};
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// Interval at which the console checks for signals while the core waits for input.
const NAP: Duration = Duration::from_millis(100);
/// Ctrl-A, which begins a command of the console.
const ESCAPE: u8 = 1;

/// Why the machine no longer runs.
pub enum End {
    /// The guest switched it off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The cycles of `--cycles` have passed.
    Limit,
    /// It waits for input, and the input has ended.
    NoInput,
    /// It waits for an interrupt and does not read the input.
    Halted,
    /// The guest did not print a text of the script in time.
    Late(Late),
    /// It was saved.
    Saved,
    /// The user ended it.
    User,
}

/// The source of the console's input.
pub enum Input {
    /// Standard input and its commands.
    Standard(Receiver<Vec<u8>>, Keys),
    /// A script.
    Script(Script),
}

impl Input {
    /// Reads a script, which starts at this cycle of the machine.
    pub fn script(path: &Path, cycle: u64) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut script = Script::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        script.start_at(cycle);
        Ok(Self::Script(script))
    }

    /// Whether the script ends with a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        matches!(self, Self::Script(script) if script.has_checkpoint())
    }

    /// Whether the script has reached its checkpoint.
    pub fn is_at_checkpoint(&self) -> bool {
        matches!(self, Self::Script(script) if script.is_at_checkpoint())
    }

    /// Reads standard input.
    pub fn standard() -> Self {
        Self::Standard(standard_input(), Keys::new())
    }

    /// Appends the next input to `guest`, which has printed `printed` by `cycle`. If the machine cannot continue
    /// without input, waits for some. Returns the end of the machine if the input has ended.
    pub fn next(
        &mut self,
        printed: &[u8],
        cycle: u64,
        is_stuck: bool,
        stopped: &AtomicBool,
        guest: &mut Vec<u8>,
    ) -> Option<End> {
        match self {
            Self::Standard(receiver, keys) => read_keys(receiver, keys, is_stuck, stopped, guest),
            Self::Script(script) => follow(script, printed, cycle, is_stuck, guest),
        }
    }
}

/// Appends typed keys to `guest`; waits for some if the machine cannot continue without input.
fn read_keys(
    receiver: &Receiver<Vec<u8>>,
    keys: &mut Keys,
    is_stuck: bool,
    stopped: &AtomicBool,
    guest: &mut Vec<u8>,
) -> Option<End> {
    if !keys.is_terminal && !guest.is_empty() {
        // A pipe is read only when the guest's buffer has space. A terminal is read anyway, because the user may type
        // the command that ends the machine.
        return is_stuck.then_some(End::Halted);
    }
    let mut typed = receiver.try_recv().unwrap_or_default();
    while is_stuck && typed.is_empty() && !stopped.load(Ordering::Relaxed) {
        match receiver.recv_timeout(NAP) {
            Ok(bytes) => typed = bytes,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if guest.is_empty() => return Some(End::NoInput),
            Err(RecvTimeoutError::Disconnected) => return Some(End::Halted),
        }
    }
    keys.take(&typed, guest).then_some(End::User)
}

/// Appends the script's next input to `guest`.
fn follow(
    script: &mut Script,
    printed: &[u8],
    cycle: u64,
    is_stuck: bool,
    guest: &mut Vec<u8>,
) -> Option<End> {
    let is_full = is_stuck && !guest.is_empty();
    match script.advance(printed, cycle) {
        Ok(_) if is_full => return Some(End::Halted),
        Ok(typed) => guest.extend(typed),
        Err(late) => return Some(End::Late(late)),
    }
    (is_stuck && guest.is_empty() && !script.is_at_checkpoint()).then_some(End::NoInput)
}

/// The console's commands among the keys of a terminal.
pub struct Keys {
    is_terminal: bool,
    is_escaped: bool,
}

impl Keys {
    fn new() -> Self {
        Self { is_terminal: io::stdin().is_terminal(), is_escaped: false }
    }

    /// Appends the keys that are not commands to `guest`. Returns whether the user ended the machine.
    fn take(&mut self, typed: &[u8], guest: &mut Vec<u8>) -> bool {
        for &key in typed {
            if !self.is_terminal {
                guest.push(key);
            } else if !self.is_escaped && key == ESCAPE {
                self.is_escaped = true;
            } else if std::mem::take(&mut self.is_escaped) && key == b'x' {
                return true;
            } else {
                // Ctrl-A twice sends it once.
                guest.push(key);
            }
        }
        false
    }
}

/// Prints the guest's output.
///
/// # Errors
/// Standard output is closed.
pub fn put(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes)?;
    output.flush()
}

/// Reads standard input on a separate thread, because a read blocks.
fn standard_input() -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_a_x_ends_the_machine_and_ctrl_a_twice_is_sent_once() {
        let mut keys = Keys { is_terminal: true, is_escaped: false };
        let mut guest = Vec::new();
        assert!(!keys.take(b"ab\x01", &mut guest));
        assert!(!keys.take(b"\x01c", &mut guest));
        assert_eq!(guest, b"ab\x01c");
        assert!(keys.take(b"\x01xd", &mut guest));
        assert_eq!(guest, b"ab\x01c");
    }

    #[test]
    fn input_that_is_not_a_terminal_has_no_commands() {
        let mut keys = Keys { is_terminal: false, is_escaped: false };
        let mut guest = Vec::new();
        assert!(!keys.take(b"\x01x", &mut guest));
        assert_eq!(guest, b"\x01x");
    }
}
