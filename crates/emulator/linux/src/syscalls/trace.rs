//! Prints system calls like strace. Source: strace(1).

use std::fmt::Write;

use longma_guest::Errno;

use super::Row;
use crate::arguments::{Kind, Names};
use crate::process::Completion;
use crate::{Outcome, Thread};

/// The maximum number of bytes shown of a string or buffer.
const SHOWN_BYTES: usize = 48;

/// Formats the arguments before the call, except buffers that the call fills.
pub(super) fn before(thread: &Thread, row: &Row, arguments: &[u64; 6]) -> Vec<Option<String>> {
    let show = |(index, kind): (usize, &Kind)| match kind {
        Kind::OutBuffer(_) => None,
        kind => Some(argument(thread, *kind, index, arguments, u64::MAX)),
    };
    row.arguments.iter().enumerate().map(show).collect()
}

/// Formats the whole line.
pub(super) fn line(
    thread: &Thread,
    row: &Row,
    arguments: &[u64; 6],
    formatted: Vec<Option<String>>,
    completion: &Result<Completion, Errno>,
) -> String {
    let written = match completion {
        Ok(Completion::Value(value)) => *value,
        _ => 0,
    };
    let arguments_text: Vec<_> = formatted
        .into_iter()
        .enumerate()
        .map(|(index, text)| {
            text.unwrap_or_else(|| argument(thread, row.arguments[index], index, arguments, written))
        })
        .collect();
    let mut line = format!("[{}] {}({}) = ", thread.tid, row.name, arguments_text.join(", "));
    match completion {
        Ok(Completion::Value(value)) if *value > 0xffff_ffff => write!(line, "{value:#x}"),
        Ok(Completion::Value(value)) => write!(line, "{value}"),
        Ok(Completion::RegistersSet(Outcome::Execute)) => write!(line, "0"),
        Ok(Completion::RegistersSet(Outcome::Continue)) => write!(line, "?"),
        Ok(Completion::RegistersSet(outcome)) => write!(line, "? {outcome:?}"),
        Err(Errno::RESTART | Errno::RESTART_ALWAYS) => write!(line, "? (interrupted)"),
        Err(error) => {
            // "No such file or directory (os error 2)" without the number, since the name is printed.
            let text = error.to_string();
            let meaning = text.split(" (os error").next().unwrap_or_default();
            write!(line, "-1 {} ({meaning})", error.name())
        }
    }
    .expect("writing to a string cannot fail");
    line
}

fn argument(thread: &Thread, kind: Kind, index: usize, arguments: &[u64; 6], written: u64) -> String {
    let value = arguments[index];
    match kind {
        Kind::Int | Kind::Id(_) | Kind::Fd => (value as i32).to_string(),
        Kind::DirFd if value as i32 == libc::AT_FDCWD => "AT_FDCWD".into(),
        Kind::DirFd => (value as i32).to_string(),
        Kind::Long => (value as i64).to_string(),
        Kind::Size => value.to_string(),
        Kind::Mode => format!("{value:#o}"),
        Kind::Signal => signal(value),
        Kind::Text => text(thread, value),
        Kind::InBuffer(length) => bytes(thread, value, arguments[usize::from(length)]),
        Kind::OutBuffer(length) => bytes(thread, value, arguments[usize::from(length)].min(written)),
        Kind::Flags(names) => flags(value, names),
        Kind::Choice(names) => names
            .iter()
            .find(|(number, _)| *number == value)
            .map_or_else(|| value.to_string(), |(_, name)| (*name).into()),
        _ if value == 0 => "NULL".into(),
        _ => format!("{value:#x}"),
    }
}

fn flags(value: u64, names: Names) -> String {
    let mut rest = value;
    let mut names_set = Vec::new();
    for (bits, name) in names {
        let is_set = if *bits == 0 { value & 3 == 0 } else { rest & bits == *bits };
        if is_set {
            names_set.push((*name).to_owned());
            rest &= !bits;
        }
    }
    if rest != 0 || names_set.is_empty() {
        names_set.push(format!("{rest:#x}"));
    }
    names_set.join("|")
}

/// The name of a signal.
pub(crate) fn signal(number: u64) -> String {
    const NAMES: &str = "0 SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 \
        SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU \
        SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS";
    match NAMES.split(' ').nth(number as usize) {
        Some(name) => name.into(),
        None if number <= 64 => format!("SIGRT_{}", number - 32),
        None => number.to_string(),
    }
}

fn text(thread: &Thread, address: u64) -> String {
    if address == 0 {
        return "NULL".into();
    }
    match thread.process.memory().read_c_string(address, 4096) {
        Ok(Some(text)) => quoted(&text, 256, false),
        _ => format!("{address:#x}"),
    }
}

fn bytes(thread: &Thread, address: u64, length: u64) -> String {
    let mut buffer = vec![0; (length as usize).min(SHOWN_BYTES)];
    match thread.process.memory().read(address, &mut buffer) {
        Ok(()) if address != 0 => quoted(&buffer, SHOWN_BYTES, length as usize > SHOWN_BYTES),
        _ => format!("{address:#x}"),
    }
}

fn quoted(bytes: &[u8], limit: usize, more: bool) -> String {
    let cut = &bytes[..bytes.len().min(limit)];
    let more = if more || cut.len() < bytes.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}
