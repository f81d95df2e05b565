//! Byte streams.

use crate::connection::{Connection, ReceivedFrame, blocking};
use crate::error::Error;
use crate::wire::FrameKind;
use std::io;

/// A connection as a stream of bytes in both directions.
///
/// `write` posts the bytes to the NIC before it returns; nothing is buffered. `read` returns 0 when the peer has called
/// [`Stream::finish`] or [`Stream::close`]. If the peer drops the stream without either, for example after an error during
/// a copy, or its process ends, `read` fails with [`io::ErrorKind::ConnectionReset`], so that a truncated transfer is
/// detected.
pub struct Stream {
    connection: Connection,
    /// The frame that is being read, and the number of its bytes that have been read.
    frame: Option<(ReceivedFrame, usize)>,
}

impl Connection {
    /// Uses the connection as a stream of bytes. The peer must do the same.
    pub fn into_stream(mut self) -> Stream {
        self.is_stream = true;
        Stream { connection: self, frame: None }
    }
}

impl Stream {
    /// Ends the direction that this side writes. This side can still read.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn finish(&mut self) -> io::Result<()> {
        Ok(self.connection.finish()?)
    }

    /// Closes the stream after the NIC has sent everything written.
    ///
    /// # Errors
    /// Those of [`Connection::close`].
    pub fn close(self) -> io::Result<()> {
        Ok(self.connection.close()?)
    }

    /// The connection, for its time limit and statistics.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn next_frame(&mut self) -> Result<Option<(ReceivedFrame, usize)>, Error> {
        if let Some(frame) = self.frame.take() {
            return Ok(Some(frame));
        }
        let wait = self.connection.until();
        let Some(frame) = blocking(self.connection.next_frame(wait))? else {
            return Ok(None);
        };
        if frame.header.kind != FrameKind::Bytes || frame.length == 0 {
            return Err(self.connection.violation("a message where bytes of a stream were expected"));
        }
        Ok(Some((frame, 0)))
    }
}

impl io::Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let Some((frame, start)) = self.next_frame()? else { return Ok(0) };
        let length = into.len().min(frame.length - start);
        self.connection.read(&frame, start, &mut into[..length]);
        if start + length < frame.length {
            self.frame = Some((frame, start + length));
        } else {
            self.connection.received(&frame);
            self.connection.release(frame);
        }
        Ok(length)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wait = self.connection.until();
        Ok(blocking(self.connection.send_bytes(bytes, wait))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
