//! Runs the subcommands of `longma NAME` from a folder outside the project.
#![allow(dead_code, reason = "every test program uses a part")]

use std::process::{Command, Output};

/// The commands `longma NAME ...`.
pub struct Subcommand(pub &'static str);

impl Subcommand {
    /// The command with these arguments, not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        command.arg(self.0).args(arguments).current_dir("/");
        command
    }

    /// Runs the command.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub fn success(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stderr), text(&output.stdout));
        text(&output.stdout)
    }

    /// The same, parsed as JSON.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.success(arguments)).unwrap()
    }

    /// Standard error of a command that must fail.
    pub fn failure(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

/// Bytes as text; panics if they are not UTF-8.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
