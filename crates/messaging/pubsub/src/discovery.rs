//! The topics of this user, and their state.

use crate::error::Error;
use crate::folder::Folder;
use crate::socket;
use crate::wire::{Answer, Hello, Report};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a publisher may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a topic, and its state.
pub type NamedState = (String, Result<Report, Error>);

/// The topics of a folder, by default that of [`Options::folder`](crate::Options::folder), in alphabetical order. A
/// topic whose publisher was killed or does not answer within a second has an error.
///
/// # Errors
/// [`Error::Folder`].
pub fn topics(folder: Option<&Path>) -> Result<Vec<NamedState>, Error> {
    let folder = Folder::open(folder)?;
    let names = folder.topics()?;
    Ok(names
        .into_iter()
        .map(|name| {
            let state = query(&folder, &name);
            (name, state)
        })
        .collect())
}

/// The state of a topic.
///
/// # Errors
/// [`Error::NoPublisher`], [`Error::Folder`], [`Error::TimedOut`].
pub fn topic(name: &str, folder: Option<&Path>) -> Result<Report, Error> {
    query(&Folder::open(folder)?, name)
}

fn query(folder: &Folder, name: &str) -> Result<Report, Error> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let socket = socket::connect(&folder.socket(name)?, deadline)?;
    let socket = socket.ok_or_else(|| Error::NoPublisher(name.into()))?;
    socket::send(&socket, &Hello::Query.encode(), &[])?;
    match socket::receive_answer(&socket, deadline)? {
        (Answer::Report(report), files) if files.is_empty() => Ok(report),
        _ => Err(Error::Protocol("it answered a query with a frame of another kind")),
    }
}
