//! The fields of messages: little-endian integers, and strings with a length of two bytes. Source: Plan 9 manual,
//! intro(5).

use rustix::io::Errno;

/// The bytes of a request that have not been read yet.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// EPROTO: the request ends before them.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Errno> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Errno> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string of any bytes.
    pub fn text(&mut self) -> Result<&'a [u8], Errno> {
        let count = self.u16()?;
        self.bytes(count.into())
    }

    /// The name of an entry of a folder.
    ///
    /// # Errors
    /// EINVAL: the name is empty, `.`, `..` or longer than 255 bytes, or it contains a slash or NUL.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.text()?;
        let is_plain =
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        match name.len() {
            256.. => Err(Errno::NAMETOOLONG),
            _ if !is_plain => Err(Errno::INVAL),
            _ => Ok(name),
        }
    }

    /// Checks that nothing follows.
    pub fn end(self) -> Result<(), Errno> {
        if self.0.is_empty() { Ok(()) } else { Err(Errno::PROTO) }
    }
}

/// A reply under construction.
#[derive(Debug, Default)]
pub struct Reply(Vec<u8>);

impl Reply {
    /// Appends integers and other fields in their form on the wire.
    pub fn put(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    /// Appends a string, whose length the caller limits to 65535 bytes.
    pub fn text(&mut self, text: &[u8]) -> &mut Self {
        self.put((text.len() as u16).to_le_bytes()).put(text)
    }

    /// The number of bytes appended so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes appended so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The message with its header: length, kind and tag.
    pub fn message(&self, kind: u8, tag: u16) -> Vec<u8> {
        let bytes = (HEADER + self.0.len()) as u32;
        [&bytes.to_le_bytes()[..], &[kind], &tag.to_le_bytes(), &self.0].concat()
    }
}

/// Bytes of a message's header.
pub const HEADER: usize = 7;
