//! Addresses of endpoints: a name that is unique on the host, in two formats.

use longma_via::Address;
use std::fmt;

/// The longest name, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 32;
/// The length of a binary address: a mark and the name, padded with zeros.
pub(crate) const BINARY_BYTES: usize = MARK.len() + MAX_NAME_BYTES;
/// The longest address as a string, with its final zero byte.
pub(crate) const MAX_STRING_BYTES: usize = PREFIX.len() + MAX_NAME_BYTES + 1;
/// The start of an address as a string.
pub(crate) const PREFIX: &str = "longma://";
/// The start of a binary address; its last byte is the version of the format.
const MARK: [u8; 8] = *b"longma\0\x01";

/// The types of endpoints. Each has a separate namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Exchanges messages with all endpoints in its address vector (`FI_EP_RDM`).
    Unconnected,
    /// Is connected to one peer, or listens for connections (`FI_EP_MSG`).
    Connected,
}

impl Kind {
    /// Precedes the name in the address of `longma-via`, with the version of the protocol.
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Unconnected => b"fi1:",
            Self::Connected => b"fim1:",
        }
    }
}

/// The name of an endpoint: 1 to 32 letters, digits, `.`, `_`, `-` and `:`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    length: u8,
}

/// How the program writes addresses (`addr_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressFormat {
    /// `longma://NAME` with a final zero byte (`FI_ADDR_STR`).
    String,
    /// 40 bytes (`FI_PROV_SPECIFIC`).
    Binary,
}

impl Name {
    /// `None` if the bytes are no name.
    pub(crate) fn new(text: &[u8]) -> Option<Self> {
        let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:".contains(byte);
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !text.iter().all(is_valid) {
            return None;
        }
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self { bytes, length: text.len() as u8 })
    }

    /// A new name. Its length is fixed, because some programs assume that all addresses are equally long.
    pub(crate) fn random() -> Self {
        let random = getrandom::u64().unwrap_or_else(|_| {
            // Names must differ, but need not be secret.
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            time.map_or(0, |time| time.as_nanos() as u64)
        });
        Self::new(format!("{:08x}-{random:016x}", std::process::id()).as_bytes()).expect("a valid name")
    }

    /// The bytes of the name.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    /// The address at which the endpoint listens.
    pub(crate) fn via_address(&self, kind: Kind) -> Address {
        Address::local([kind.prefix(), self.as_bytes()].concat())
    }

    /// The name in an address of `longma-via`.
    pub(crate) fn from_via_address(kind: Kind, address: &Address) -> Option<Self> {
        Self::new(address.discriminator.strip_prefix(kind.prefix())?)
    }

    /// The address in a format.
    pub(crate) fn to_address(self, format: AddressFormat) -> Vec<u8> {
        match format {
            AddressFormat::String => [PREFIX.as_bytes(), self.as_bytes(), &[0]].concat(),
            AddressFormat::Binary => [&MARK[..], &self.bytes].concat(),
        }
    }

    /// The name in an address. Further bytes may follow the name. A string ends at its zero byte or at the end of
    /// `bytes`.
    pub(crate) fn from_address(format: AddressFormat, address: &[u8]) -> Option<Self> {
        match format {
            AddressFormat::String => {
                let text = address.strip_prefix(PREFIX.as_bytes())?;
                Self::new(text.split(|&byte| byte == 0).next()?)
            }
            AddressFormat::Binary => {
                let name = address.get(..BINARY_BYTES)?.strip_prefix(&MARK)?;
                let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
                if name[length..].iter().any(|&byte| byte != 0) {
                    return None;
                }
                Self::new(&name[..length])
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_has_the_name_in_both_formats(text in "[A-Za-z0-9._:-]{1,32}") {
            let name = Name::new(text.as_bytes()).unwrap();
            for format in [AddressFormat::String, AddressFormat::Binary] {
                prop_assert_eq!(Name::from_address(format, &name.to_address(format)), Some(name));
            }
            for kind in [Kind::Unconnected, Kind::Connected] {
                prop_assert_eq!(Name::from_via_address(kind, &name.via_address(kind)), Some(name));
            }
        }

        #[test]
        fn any_bytes_are_an_address_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for format in [AddressFormat::String, AddressFormat::Binary] {
                if let Some(name) = Name::from_address(format, &bytes) {
                    prop_assert!(name.to_address(format).starts_with(&bytes[..8]));
                }
            }
        }
    }

    #[test]
    fn names_of_new_endpoints_have_one_length() {
        assert_eq!(Name::random().as_bytes().len(), Name::random().as_bytes().len());
        assert_ne!(Name::random(), Name::random());
    }
}
