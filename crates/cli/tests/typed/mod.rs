//! A group of `longma`'s commands, run as a user types it from a folder that is not the project's.
//! Not what they print: each group has its test program.
#![allow(dead_code, reason = "every test program uses a part")]

use std::process::{Command, Output};

/// The commands `longma NAME ...`.
pub struct Group(pub &'static str);

impl Group {
    /// The command with these words, not started.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        command.arg(self.0).args(words).current_dir("/");
        command
    }

    /// What it did.
    pub fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What it printed, as it must succeed.
    pub fn success(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stderr), text(&output.stdout));
        text(&output.stdout)
    }

    /// The same, parsed.
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.success(words)).unwrap()
    }

    /// What it complained about, as it must fail.
    pub fn failure(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

/// Bytes that have to be text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
