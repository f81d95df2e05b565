//! Input modes of a terminal that deliver each key without waiting for the end of the line.
//!
//! Source: `termios(3)`.

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// An input mode of a terminal. Dropping it restores the previous mode. It has no effect on a descriptor that is not a
/// terminal.
pub struct RawMode<F: AsFd> {
    terminal: F,
    before: Option<Termios>,
}

impl<F: AsFd + IsTerminal> RawMode<F> {
    /// Delivers all keys unchanged, even Ctrl-C. Output is not processed either: lines end with `\r\n`.
    pub fn all_keys(terminal: F) -> io::Result<Self> {
        Self::begin(terminal, termios::cfmakeraw)
    }

    /// Disables line buffering and echo. Ctrl-C still sends a signal.
    pub fn with_signals(terminal: F) -> io::Result<Self> {
        Self::begin(terminal, |mode| mode.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO))
    }

    fn begin(terminal: F, change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let before = if terminal.is_terminal() { Some(termios::tcgetattr(&terminal)?) } else { None };
        let guard = Self { terminal, before };
        if let Some(before) = &guard.before {
            let mut mode = before.clone();
            change(&mut mode);
            termios::tcsetattr(&guard.terminal, SetArg::TCSADRAIN, &mode)?;
        }
        Ok(guard)
    }
}

impl<F: AsFd> RawMode<F> {
    /// Returns whether the descriptor is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.before.is_some()
    }
}

impl<F: AsFd> Drop for RawMode<F> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Fails if the terminal is closed.
            let _ = termios::tcsetattr(&self.terminal, SetArg::TCSADRAIN, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use nix::sys::termios::tcgetattr;

    #[test]
    fn each_mode_disables_line_buffering_and_is_restored() {
        let pair = openpty(None, None).unwrap();
        let flags = || tcgetattr(&pair.slave).unwrap().local_flags;
        let before = flags();
        assert!(before.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG));

        let mode = RawMode::all_keys(pair.slave.as_fd()).unwrap();
        assert!(mode.is_terminal());
        assert!(!flags().intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG));
        drop(mode);
        assert_eq!(flags(), before);

        let mode = RawMode::with_signals(pair.slave.as_fd()).unwrap();
        assert!(!flags().intersects(LocalFlags::ICANON | LocalFlags::ECHO));
        assert!(flags().contains(LocalFlags::ISIG));
        drop(mode);
        assert_eq!(flags(), before);
    }

    #[test]
    fn a_descriptor_that_is_not_a_terminal_is_recognized() {
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!RawMode::all_keys(reader.as_fd()).unwrap().is_terminal());
    }
}
