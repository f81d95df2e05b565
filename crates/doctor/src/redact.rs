//! Removes text that identifies a user, a host or a network. The doctor's own text contains none, but error messages of
//! other programs may.

use regex::Regex;
use std::env;
use std::fs;

/// Environment variables whose values are kept. They change what longma prints and identify no user.
pub const KEPT_VARIABLES: [&str; 6] = ["TERM", "LANG", "LC_ALL", "NO_COLOR", "COLUMNS", "RUST_BACKTRACE"];
/// Minimum length in bytes of an environment value to remove. Shorter ones are numbers and switches, which occur in any
/// text.
const MIN_VALUE_BYTES: usize = 8;
/// Names of users and hosts that exist on every system.
const COMMON_NAMES: [&str; 4] = ["root", "localhost", "localhost.localdomain", "nobody"];

/// Words and patterns to remove.
pub struct Redactor {
    /// Words to find, longest first, and their replacements.
    words: Vec<(String, &'static str)>,
    patterns: Vec<(Regex, &'static str)>,
}

impl Redactor {
    /// Collects the user, host and environment of this process.
    pub fn of_process() -> Self {
        let mut words = Vec::new();
        let user = rustix::process::geteuid().as_raw().to_string();
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let accounts = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        for account in accounts.filter(|fields| fields.get(2) == Some(&&*user)) {
            let field = |index: usize| account.get(index).map(ToString::to_string).unwrap_or_default();
            words.extend([(field(0), "(user)"), (field(4), "(user)"), (field(5), "(home)")]);
        }
        let variable = |name: &str| env::var(name).unwrap_or_default();
        words.extend(["USER", "LOGNAME", "SUDO_USER"].map(|name| (variable(name), "(user)")));
        words.push((variable("HOME"), "(home)"));
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let file = |path| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let first = name.split('.').next().unwrap_or_default().to_string();
        words.extend([(name, "(host)"), (first, "(host)"), (file("/etc/hostname"), "(host)")]);
        words.push((file("/etc/machine-id"), "(id)"));
        if let Ok(current) = env::current_dir() {
            words.push((current.display().to_string(), "(folder)"));
        }
        let removed = env::vars_os().filter(|(name, _)| !KEPT_VARIABLES.iter().any(|shown| name == shown));
        let values = removed.filter_map(|(_, value)| value.into_string().ok());
        words.extend(values.filter(|value| value.len() >= MIN_VALUE_BYTES).map(|value| (value, "(removed)")));
        Self::new(words)
    }

    fn new(mut words: Vec<(String, &'static str)>) -> Self {
        words.retain(|(word, _)| word.len() > 1 && !COMMON_NAMES.contains(&&**word));
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        let pattern = |text: &str| Regex::new(text).expect("the pattern is well formed");
        let patterns = vec![
            (pattern(r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b"), "(address)"),
            (pattern(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "(address)"),
            (pattern(r"\b(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{1,4}\b"), "(address)"),
            (
                pattern(
                    r"(?:\b[0-9A-Fa-f]{1,4}:)+:(?:[0-9A-Fa-f]{1,4}:?)*|::(?:[0-9A-Fa-f]{1,4}:)*[0-9A-Fa-f]{1,4}\b",
                ),
                "(address)",
            ),
            (pattern(r"/(?:home|root|Users)/[^\s/:]+"), "(home)"),
        ];
        Self { words, patterns }
    }

    /// Replaces the words and patterns in a text.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (word, replacement) in &self.words {
            text = replace_whole(&text, word, replacement);
        }
        for (pattern, replacement) in &self.patterns {
            text = pattern.replace_all(&text, *replacement).into_owned();
        }
        text
    }
}

/// Replaces a word. A short one is replaced only where no letter, digit or underscore precedes or follows it.
fn replace_whole(text: &str, word: &str, replacement: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        out.push_str(before);
        let is_open = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let is_whole = is_open(out.chars().next_back()) && is_open(after.chars().next());
        out.push_str(if is_whole || word.len() >= MIN_VALUE_BYTES { replacement } else { word });
        rest = after;
    }
    out + rest
}

/// The kept environment variables, one per line, and the names of longma's own variables that are set.
pub fn environment() -> String {
    let is_plain = |value: &str| {
        value.len() <= 40 && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@".contains(&b))
    };
    let shown = KEPT_VARIABLES.iter().filter_map(|name| Some((name, env::var(name).ok()?)));
    let shown = shown
        .map(|(name, value)| format!("{name}={}\n", if is_plain(&value) { &*value } else { "(removed)" }));
    let longma_variables = env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("LONGMA_"));
    shown.chain(longma_variables.map(|name| format!("{name} is set\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_home_folders_are_redacted_and_versions_kept() {
        let redactor = Redactor::new(Vec::new());
        let redacted = [
            "00:1b:44:11:3a:b7",
            "192.168.1.17",
            "fe80::1ff:fe23:4567:890a",
            "2001:db8:85a3:0:0:8a2e:370:7334",
            "::1",
            "/home/alice",
        ];
        for address in redacted {
            let text = redactor.redact(&format!("at {address} today"));
            assert!(
                !text.contains(address) && text.starts_with("at (") && text.ends_with(") today"),
                "{address}: {text}"
            );
        }
        for kept in [
            "6.12.41-amd64",
            "12:34:56",
            "version 8.2.2",
            "#1 SMP Thu Jan 1 00:00:00 UTC 2026",
            "crate::module",
        ] {
            assert_eq!(redactor.redact(kept), kept);
        }
    }

    #[test]
    fn names_are_redacted_where_they_are_whole_words() {
        let redactor = Redactor::new(vec![
            ("vm".into(), "(host)"),
            ("alice".into(), "(user)"),
            ("root".into(), "(user)"),
        ]);
        assert_eq!(redactor.redact("vm: vmx, alice's svm as root"), "(host): vmx, (user)'s svm as root");
    }
}
