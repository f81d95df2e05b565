//! Writes trace events for Perfetto and Chrome's trace viewer.
//!
//! Source: Trace Event Format, Google, public document (JSON object format; phases M, X, C, i, s, f).

use crate::{Duration, Time};
use serde_json::Value;
use std::io::{self, Write};

/// A row of the viewer: a process (a host, a chip) and a thread in it (a core, a link).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Track {
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
}

/// Bytes reserved for the note about the size limit and for the end of the file.
const RESERVED_BYTES: u64 = 512;

/// A trace being written. The file is valid JSON in any case: it is closed by [`TraceEvents::finish`] or on drop.
#[derive(Debug)]
pub struct TraceEvents<W: Write> {
    /// `None` after `finish`.
    out: Option<W>,
    line: Vec<u8>,
    written: u64,
    limit: u64,
    events: u64,
    dropped: u64,
    note_written: bool,
    failed: bool,
}

impl<W: Write> TraceEvents<W> {
    /// Starts a trace of at most `limit_bytes` (at least 1 KiB). Further events are counted but omitted, with a note in
    /// the trace.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(mut out: W, limit_bytes: u64) -> io::Result<Self> {
        let head = b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
        out.write_all(head)?;
        Ok(Self {
            out: Some(out),
            line: Vec::new(),
            written: head.len() as u64,
            limit: limit_bytes.max(1024),
            events: 0,
            dropped: 0,
            note_written: false,
            failed: false,
        })
    }

    /// Names a process.
    ///
    /// # Errors
    /// If the event cannot be written.
    pub fn process_name(&mut self, process: u32, name: &str) -> io::Result<()> {
        let track = Track { process, thread: 0 };
        self.event('M', track, None, &[("name", text("process_name")), ("args", named(name))])
    }

    /// Names a thread.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn thread_name(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.event('M', track, None, &[("name", text("thread_name")), ("args", named(name))])
    }

    /// Adds a slice, an event from `at` with a duration.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn slice(&mut self, track: Track, name: &str, at: Time, duration: Duration) -> io::Result<()> {
        let duration = microseconds(duration.ps());
        self.event('X', track, Some(at), &[("name", text(name)), ("dur", duration)])
    }

    /// Like [`TraceEvents::slice`], with details that the viewer shows.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn slice_with(
        &mut self,
        track: Track,
        name: &str,
        at: Time,
        duration: Duration,
        details: &[(&str, Value)],
    ) -> io::Result<()> {
        let duration = microseconds(duration.ps());
        let details = object(details);
        self.event('X', track, Some(at), &[("name", text(name)), ("dur", duration), ("args", details)])
    }

    /// Sets the values of a counter from `at` on. The viewer stacks several series.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn counter(&mut self, process: u32, name: &str, at: Time, values: &[(&str, f64)]) -> io::Result<()> {
        let values: Vec<_> = values.iter().map(|(series, value)| (*series, Value::from(*value))).collect();
        let track = Track { process, thread: 0 };
        self.event('C', track, Some(at), &[("name", text(name)), ("args", object(&values))])
    }

    /// Adds an instantaneous event.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn instant(&mut self, track: Track, name: &str, at: Time) -> io::Result<()> {
        self.event('i', track, Some(at), &[("name", text(name)), ("s", text("t"))])
    }

    /// Starts the flow arrow `id` between two slices. The point must be inside a slice.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn flow_start(&mut self, track: Track, name: &str, id: u64, at: Time) -> io::Result<()> {
        self.event('s', track, Some(at), &[("name", text(name)), ("cat", text("flow")), ("id", number(id))])
    }

    /// Ends the flow arrow `id`.
    ///
    /// # Errors
    /// Same as [`TraceEvents::process_name`].
    pub fn flow_end(&mut self, track: Track, name: &str, id: u64, at: Time) -> io::Result<()> {
        let fields = [("name", text(name)), ("cat", text("flow")), ("id", number(id)), ("bp", text("e"))];
        self.event('f', track, Some(at), &fields)
    }

    /// Number of events written.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Number of events omitted because of the size limit.
    pub const fn omitted(&self) -> u64 {
        self.dropped
    }

    /// Closes the trace and returns the writer.
    ///
    /// # Errors
    /// If the end cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.end()?;
        // The writer is taken only here, and `finish` consumes the trace.
        Ok(self.out.take().expect("a trace has its writer until it is finished"))
    }

    fn event(
        &mut self,
        phase: char,
        track: Track,
        at: Option<Time>,
        fields: &[(&str, Fragment)],
    ) -> io::Result<()> {
        if self.note_written {
            self.dropped += 1;
            return Ok(());
        }
        self.compose(phase, track, at, fields);
        if self.written + self.line.len() as u64 + RESERVED_BYTES > self.limit {
            self.note_written = true;
            self.dropped += 1;
            let note = [
                ("name", text("the size limit of the trace was reached: later events are omitted")),
                ("s", text("g")),
            ];
            self.compose('i', track, Some(at.unwrap_or_default()), &note);
        }
        self.write_line()
    }

    fn compose(&mut self, phase: char, track: Track, at: Option<Time>, fields: &[(&str, Fragment)]) {
        self.line.clear();
        self.line.extend_from_slice(if self.events == 0 { b"\n" } else { b",\n" });
        let Track { process, thread } = track;
        // Writing to a vector cannot fail.
        let _ = write!(self.line, "{{\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread}");
        if let Some(at) = at {
            let _ = write!(self.line, ",\"ts\":{}", microseconds(at.ps()).0);
        }
        for (key, value) in fields {
            let _ = write!(self.line, ",\"{key}\":{}", value.0);
        }
        self.line.push(b'}');
    }

    fn write_line(&mut self) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        if self.failed {
            return Err(io::Error::other("an earlier write to the trace failed"));
        }
        // A partially written line cannot be undone, so later events are dropped.
        out.write_all(&self.line).inspect_err(|_| self.failed = true)?;
        self.written += self.line.len() as u64;
        self.events += 1;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        if self.failed {
            return Err(io::Error::other("the trace is incomplete because a write failed"));
        }
        write!(out, "\n],\"otherData\":{{\"events_left_out\":{}}}}}\n", self.dropped)?;
        out.flush()
    }
}

impl<W: Write> Drop for TraceEvents<W> {
    fn drop(&mut self) {
        // A drop cannot report errors; call `finish` to receive them.
        let _ = self.end();
    }
}

/// A fragment of JSON.
struct Fragment(String);

fn text(text: &str) -> Fragment {
    Fragment(Value::from(text).to_string())
}

fn number(number: u64) -> Fragment {
    Fragment(number.to_string())
}

fn named(name: &str) -> Fragment {
    object(&[("name", name.into())])
}

fn object(fields: &[(&str, Value)]) -> Fragment {
    let map: serde_json::Map<_, _> =
        fields.iter().map(|(key, value)| ((*key).into(), value.clone())).collect();
    Fragment(Value::Object(map).to_string())
}

/// The format's unit is microseconds, with any number of decimals.
fn microseconds(ps: u64) -> Fragment {
    Fragment(format!("{}.{:06}", ps / 1_000_000, ps % 1_000_000))
}
