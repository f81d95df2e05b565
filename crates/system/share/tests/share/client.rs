//! A client that sends one request at a time.

use std::path::Path;

use longma_share::{Access, MAX_MESSAGE_BYTES, Share};
use rustix::io::Errno;

pub const NO_FID: u32 = u32::MAX;
/// The fid of the shared folder.
pub const ROOT: u32 = 0;

pub struct Client(pub Share);

/// A string with its length.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Fields of four bytes.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A message with its header.
pub fn message(kind: u8, fields: &[u8]) -> Vec<u8> {
    let bytes = (7 + fields.len()) as u32;
    [&bytes.to_le_bytes()[..], &[kind, 0x34, 0x12], fields].concat()
}

impl Client {
    /// Attaches to the folder.
    pub fn new(folder: &Path, access: Access) -> Self {
        let mut client = Self(Share::open(folder, access).expect("it is a folder"));
        client.call(100, &[words(&[128 << 10]), text("9P2000.L")]).expect("the version is known");
        client
            .call(104, &[words(&[ROOT, NO_FID]), text("root"), text(""), words(&[0])])
            .expect("it attaches");
        client
    }

    /// Sends a request and returns the fields of the reply.
    pub fn call(&mut self, kind: u8, fields: &[Vec<u8>]) -> Result<Vec<u8>, Errno> {
        let reply =
            self.0.serve(&message(kind, &fields.concat()), MAX_MESSAGE_BYTES).expect("there is a reply");
        assert_eq!(u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize, reply.len());
        assert_eq!(reply[5..7], [0x34, 0x12], "the tag");
        let fields = reply[7..].to_vec();
        if reply[4] == 7 {
            let number = i32::from_le_bytes(fields[..].try_into().expect("an error has four bytes"));
            return Err(Errno::from_raw_os_error(number));
        }
        assert_eq!(reply[4], kind + 1);
        Ok(fields)
    }

    /// Walks from the folder, and returns how many names were found.
    pub fn walk(&mut self, fid: u32, names: &[&str]) -> Result<u16, Errno> {
        let count = (names.len() as u16).to_le_bytes().to_vec();
        let names = names.iter().flat_map(|name| text(name)).collect();
        let reply = self.call(110, &[words(&[ROOT, fid]), count, names])?;
        Ok(u16::from_le_bytes([reply[0], reply[1]]))
    }

    pub fn open(&mut self, fid: u32, flags: u32) -> Result<Vec<u8>, Errno> {
        self.call(12, &[words(&[fid, flags])])
    }

    pub fn create(&mut self, fid: u32, name: &str, flags: u32, mode: u32) -> Result<Vec<u8>, Errno> {
        self.call(14, &[words(&[fid]), text(name), words(&[flags, mode, 0])])
    }

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let reply = self.call(116, &[words(&[fid]), offset.to_le_bytes().to_vec(), words(&[count])])?;
        assert_eq!(u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize, reply.len() - 4);
        Ok(reply[4..].to_vec())
    }

    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let fields =
            [words(&[fid]), offset.to_le_bytes().to_vec(), words(&[data.len() as u32]), data.to_vec()];
        let reply = self.call(118, &fields)?;
        Ok(u32::from_le_bytes(reply[..].try_into().unwrap()))
    }

    pub fn clunk(&mut self, fid: u32) -> Result<Vec<u8>, Errno> {
        self.call(120, &[words(&[fid])])
    }

    /// Sets attributes of a file: `valid` selects them, `values` are the mode, user and group.
    pub fn set(&mut self, fid: u32, valid: u32, values: [u32; 3], length: u64) -> Result<Vec<u8>, Errno> {
        let fields = [words(&[fid, valid]), words(&values), length.to_le_bytes().to_vec()];
        let times = [5u64, 6, 7, 8].iter().flat_map(|time| time.to_le_bytes()).collect();
        self.call(26, &[fields.concat(), times])
    }

    /// The names in an open folder, each with the type of file, in replies of up to `count` bytes.
    pub fn list(&mut self, fid: u32, count: u32) -> Result<Vec<(String, u8)>, Errno> {
        let (mut names, mut offset) = (Vec::new(), 0u64);
        loop {
            let reply = self.call(40, &[words(&[fid]), offset.to_le_bytes().to_vec(), words(&[count])])?;
            let mut rest = &reply[4..];
            if rest.is_empty() {
                return Ok(names);
            }
            while !rest.is_empty() {
                offset = u64::from_le_bytes(rest[13..21].try_into().unwrap());
                let end = 24 + usize::from(u16::from_le_bytes([rest[22], rest[23]]));
                names.push((String::from_utf8(rest[24..end].to_vec()).unwrap(), rest[21]));
                rest = &rest[end..];
            }
        }
    }
}
