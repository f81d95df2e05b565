//! Messages for the user, in the format and with the environment variables of libfabric's own messages (`FI_LOG_LEVEL`,
//! `FI_LOG_PROV`). The provider does not call libfabric to write them, because libfabric's symbols may not be visible
//! to it.

use std::sync::OnceLock;

/// The importance of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Warn,
    Info,
    Debug,
}

fn threshold() -> Option<Level> {
    static THRESHOLD: OnceLock<Option<Level>> = OnceLock::new();
    *THRESHOLD.get_or_init(|| {
        if let Ok(providers) = std::env::var("FI_LOG_PROV") {
            let is_named = |list: &str| list.split(',').any(|name| name.eq_ignore_ascii_case("longma"));
            let (negated, list) = match providers.strip_prefix('^') {
                Some(list) => (true, list),
                None => (false, providers.as_str()),
            };
            if is_named(list) == negated {
                return None;
            }
        }
        match std::env::var("FI_LOG_LEVEL").ok()?.to_ascii_lowercase().as_str() {
            "warn" => Some(Level::Warn),
            "trace" | "info" => Some(Level::Info),
            "debug" => Some(Level::Debug),
            _ => None,
        }
    })
}

/// Whether messages of this level are written.
pub(crate) fn is_enabled(level: Level) -> bool {
    threshold().is_some_and(|threshold| level <= threshold)
}

/// Writes a message to standard error, if the user has asked for this level.
pub(crate) fn write(level: Level, arguments: std::fmt::Arguments<'_>) {
    if is_enabled(level) {
        let word = format!("{level:?}").to_lowercase();
        eprintln!("libfabric:{}:longma: <{word}> {arguments}", std::process::id());
    }
}

macro_rules! warning {
    ($($argument:tt)*) => { $crate::core::log::write($crate::core::log::Level::Warn, format_args!($($argument)*)) };
}
macro_rules! info {
    ($($argument:tt)*) => { $crate::core::log::write($crate::core::log::Level::Info, format_args!($($argument)*)) };
}
pub(crate) use {info, warning};
