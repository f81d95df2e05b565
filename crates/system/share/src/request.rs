//! Parses requests. An invalid request has no effect. Source: Linux, include/net/9p/9p.h (numbers); diod, protocol.md
//! (fields).

use rustix::io::Errno;

use crate::wire::{Fields, HEADER};

/// The maximum number of names in a walk.
const MAX_NAMES: usize = 16;

/// A message: its header, and the unparsed fields.
#[derive(Debug)]
pub struct Message<'a> {
    /// The type of request.
    pub kind: u8,
    /// The guest's number of the request, which the reply repeats.
    pub tag: u16,
    fields: Fields<'a>,
}

impl<'a> Message<'a> {
    /// Splits the header off. `None` if the length in the header is not the length of the message.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
        let (header, rest) = bytes.split_at_checked(HEADER).filter(|_| length == bytes.len())?;
        Some(Self {
            kind: header[4],
            tag: u16::from_le_bytes([header[5], header[6]]),
            fields: Fields::new(rest),
        })
    }
}

/// The owner, group, permissions, length and times to set.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Which fields are set: a sum of the constants of `attributes`.
    pub valid: u32,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Length in bytes.
    pub length: u64,
    /// Seconds and nanoseconds of the last access.
    pub accessed: (u64, u64),
    /// Seconds and nanoseconds of the last modification.
    pub modified: (u64, u64),
}

/// A request. Fields are named as in the protocol, if it names them.
#[derive(Debug)]
pub enum Request<'a> {
    Version {
        msize: u32,
        version: &'a [u8],
    },
    Attach {
        fid: u32,
        afid: u32,
        aname: &'a [u8],
    },
    Flush,
    Walk {
        fid: u32,
        newfid: u32,
        names: Vec<&'a [u8]>,
    },
    Open {
        fid: u32,
        flags: u32,
    },
    Create {
        fid: u32,
        name: &'a [u8],
        flags: u32,
        mode: u32,
    },
    Read {
        fid: u32,
        offset: u64,
        count: u32,
    },
    Write {
        fid: u32,
        offset: u64,
        data: &'a [u8],
    },
    Clunk {
        fid: u32,
    },
    /// Removes a file without giving its name. This server does not know the names of files, so it only ends the fid.
    Remove {
        fid: u32,
    },
    Attributes {
        fid: u32,
    },
    SetAttributes {
        fid: u32,
        change: Change,
    },
    List {
        fid: u32,
        offset: u64,
        count: u32,
    },
    Synchronize {
        fid: u32,
    },
    FileSystem {
        fid: u32,
    },
    ReadLink {
        fid: u32,
    },
    CreateFolder {
        fid: u32,
        name: &'a [u8],
        mode: u32,
    },
    Rename {
        fid: u32,
        name: &'a [u8],
        newfid: u32,
        new_name: &'a [u8],
    },
    Unlink {
        fid: u32,
        name: &'a [u8],
        flags: u32,
    },
    Link {
        folder: u32,
        fid: u32,
        name: &'a [u8],
    },
    Lock {
        fid: u32,
    },
    GetLock {
        fid: u32,
        start: u64,
        length: u64,
        process: u32,
        client: &'a [u8],
    },
    /// Creates a symbolic link, device, FIFO or socket.
    Special,
}

/// The type of an error reply. The type of any other reply is that of its request plus one.
pub const ERROR: u8 = 7;

impl<'a> Request<'a> {
    /// Parses the fields of a message.
    ///
    /// # Errors
    /// EOPNOTSUPP: the type of request is unknown or not supported. EPROTO: the fields are too short or too long.
    /// EINVAL or ENAMETOOLONG: a name is not a valid file name.
    pub fn parse(message: &Message<'a>) -> Result<Self, Errno> {
        let mut fields = message.fields;
        let request = Self::fields(message.kind, &mut fields)?;
        fields.end()?;
        Ok(request)
    }

    fn fields(kind: u8, next: &mut Fields<'a>) -> Result<Self, Errno> {
        Ok(match kind {
            8 => Self::FileSystem { fid: next.u32()? },
            12 => Self::Open { fid: next.u32()?, flags: next.u32()? },
            14 => {
                let (fid, name, flags, mode) = (next.u32()?, next.name()?, next.u32()?, next.u32()?);
                next.u32()?;
                Self::Create { fid, name, flags, mode }
            }
            16 => {
                let _ = (next.u32()?, next.name()?, next.text()?, next.u32()?);
                Self::Special
            }
            18 => {
                let _ = (next.u32()?, next.name()?, next.bytes(16)?);
                Self::Special
            }
            22 => Self::ReadLink { fid: next.u32()? },
            24 => {
                let fid = next.u32()?;
                // The requested fields. The reply has all fields in any case.
                next.u64()?;
                Self::Attributes { fid }
            }
            26 => Self::SetAttributes { fid: next.u32()?, change: Self::change(next)? },
            40 => Self::List { fid: next.u32()?, offset: next.u64()?, count: next.u32()? },
            50 => {
                let fid = next.u32()?;
                // Whether only data is to be written.
                next.u32()?;
                Self::Synchronize { fid }
            }
            52 => {
                let fid = next.u32()?;
                next.bytes(1 + 4 + 8 + 8 + 4)?;
                next.text()?;
                Self::Lock { fid }
            }
            54 => {
                let fid = next.u32()?;
                next.u8()?;
                let (start, length, process) = (next.u64()?, next.u64()?, next.u32()?);
                Self::GetLock { fid, start, length, process, client: next.text()? }
            }
            70 => Self::Link { folder: next.u32()?, fid: next.u32()?, name: next.name()? },
            72 => {
                let (fid, name, mode) = (next.u32()?, next.name()?, next.u32()?);
                next.u32()?;
                Self::CreateFolder { fid, name, mode }
            }
            74 => Self::Rename {
                fid: next.u32()?,
                name: next.name()?,
                newfid: next.u32()?,
                new_name: next.name()?,
            },
            76 => Self::Unlink { fid: next.u32()?, name: next.name()?, flags: next.u32()? },
            100 => Self::Version { msize: next.u32()?, version: next.text()? },
            104 => {
                let (fid, afid) = (next.u32()?, next.u32()?);
                next.text()?;
                let aname = next.text()?;
                next.u32()?;
                Self::Attach { fid, afid, aname }
            }
            108 => {
                next.u16()?;
                Self::Flush
            }
            110 => {
                let (fid, newfid, count) = (next.u32()?, next.u32()?, usize::from(next.u16()?));
                if count > MAX_NAMES {
                    return Err(Errno::INVAL);
                }
                let names = (0..count).map(|_| next.name()).collect::<Result<_, _>>()?;
                Self::Walk { fid, newfid, names }
            }
            116 => Self::Read { fid: next.u32()?, offset: next.u64()?, count: next.u32()? },
            118 => {
                let (fid, offset, count) = (next.u32()?, next.u64()?, next.u32()?);
                Self::Write { fid, offset, data: next.bytes(count as usize)? }
            }
            120 => Self::Clunk { fid: next.u32()? },
            122 => Self::Remove { fid: next.u32()? },
            _ => return Err(Errno::OPNOTSUPP),
        })
    }

    fn change(next: &mut Fields<'a>) -> Result<Change, Errno> {
        Ok(Change {
            valid: next.u32()?,
            mode: next.u32()?,
            user: next.u32()?,
            group: next.u32()?,
            length: next.u64()?,
            accessed: (next.u64()?, next.u64()?),
            modified: (next.u64()?, next.u64()?),
        })
    }
}
