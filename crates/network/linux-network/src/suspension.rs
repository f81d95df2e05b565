//! The time for which interrupts stay suspended while an application polls, of an interface's NAPI instances.
//!
//! Source: Linux Documentation/netlink/specs/netdev.yaml (napi-get, napi-set; Linux 6.13), networking/napi.rst (IRQ
//! suspension), include/uapi/linux/genetlink.h.

use crate::links;
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, Nla, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use std::collections::BTreeSet;
use std::io;

/// The generic netlink controller, which looks up families by name, with its command and attributes: GENL_ID_CTRL,
/// CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The family of network devices.
const NETDEV: &[u8] = b"netdev\0";
/// NETDEV_CMD_NAPI_GET, NETDEV_CMD_NAPI_SET.
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
/// NETDEV_A_NAPI_IFINDEX, NETDEV_A_NAPI_ID, NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT.
const NAPI_INTERFACE: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_SUSPEND: u16 = 7;

/// Bytes of the generic header: command, version, two reserved.
const HEAD: usize = 4;

/// A NAPI instance with its timeout in nanoseconds.
type Instance = (u32, u64);

/// Reads the timeout of `interface` in nanoseconds, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `NotFound` if it does not report the timeout or there is no NAPI instance; `Unsupported` if their
/// timeouts differ, because one number could not restore them.
pub fn get(interface: &str) -> io::Result<u64> {
    let instances = Netdev::open()?.instances(interface)?;
    let timeouts: BTreeSet<u64> = instances.iter().map(|(_, timeout)| *timeout).collect();
    let error = |kind, why: &str| Err(io::Error::new(kind, why));
    match timeouts.len() {
        0 => error(
            io::ErrorKind::NotFound,
            "it has no NAPI instance, or the kernel does not report its timeout (Linux 6.13)",
        ),
        1 => Ok(timeouts.into_iter().next().unwrap_or_default()),
        _ => error(io::ErrorKind::Unsupported, "its NAPI instances have different timeouts"),
    }
}

/// Sets the timeout of all NAPI instances of `interface`.
///
/// # Errors
/// The kernel's error.
pub fn set(interface: &str, timeout: u64) -> io::Result<()> {
    let netdev = Netdev::open()?;
    for (id, _) in netdev.instances(interface)? {
        let attributes = [number(NAPI_ID, id), DefaultNla::new(NAPI_SUSPEND, timeout.to_ne_bytes().into())];
        netdev.ask(NAPI_SET, NLM_F_ACK, &attributes)?;
    }
    Ok(())
}

/// A connection to the family of network devices.
struct Netdev {
    netlink: Socket,
    family: u16,
}

impl Netdev {
    fn open() -> io::Result<Self> {
        let mut netlink = Socket::new(NETLINK_GENERIC)?;
        netlink.bind_auto()?;
        netlink.connect(&SocketAddr::new(0, 0))?;
        let control = Self { netlink, family: CONTROL };
        let found = control.ask(GET_FAMILY, 0, &[DefaultNla::new(FAMILY_NAME, NETDEV.into())])?;
        let id = found.first().and_then(|family| value(family, FAMILY_ID));
        let family = id.and_then(|id| u16::try_from(id).ok()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { family, ..control })
    }

    fn instances(&self, interface: &str) -> io::Result<Vec<Instance>> {
        let index = links::index_of(interface)?;
        let found = self.ask(NAPI_GET, NLM_F_DUMP, &[number(NAPI_INTERFACE, index)])?;
        Ok(found.iter().filter_map(|one| instance(one, index)).collect())
    }

    /// Sends a command and collects the attributes of each answer.
    fn ask(&self, command: u8, flags: u16, attributes: &[DefaultNla]) -> io::Result<Vec<Vec<DefaultNla>>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let generic = Generic { family: self.family, command, attributes: attributes.into() };
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(generic));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.netlink.send(&bytes, 0)?;
        let (mut answers, awaits_end) = (Vec::new(), flags & (NLM_F_DUMP | NLM_F_ACK) != 0);
        while !collect(&self.netlink.recv_from_full()?.0, &mut answers)? && awaits_end {}
        Ok(answers)
    }
}

/// Adds the answers in one datagram. Returns whether it is the last one.
fn collect(datagram: &[u8], answers: &mut Vec<Vec<DefaultNla>>) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<Generic>::deserialize(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(generic) => answers.push(generic.attributes),
            _ => {}
        }
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        rest = rest.get(length..).unwrap_or_default();
    }
    // Stop on an empty datagram, to avoid an endless loop.
    Ok(datagram.is_empty())
}

/// An instance of the interface with this index.
fn instance(attributes: &[DefaultNla], index: u32) -> Option<Instance> {
    let id = u32::try_from(value(attributes, NAPI_ID)?).ok()?;
    (value(attributes, NAPI_INTERFACE)? == u64::from(index)).then_some((id, value(attributes, NAPI_SUSPEND)?))
}

fn number(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().into())
}

/// A number of two, four or eight bytes. The kernel sends small numbers in four bytes.
fn value(attributes: &[DefaultNla], kind: u16) -> Option<u64> {
    let attribute = attributes.iter().find(|attribute| attribute.kind() == kind)?;
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    match bytes[..] {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
    }
}

/// A message of generic netlink.
struct Generic {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl From<Generic> for NetlinkPayload<Generic> {
    fn from(message: Generic) -> Self {
        Self::InnerMessage(message)
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEAD + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // Both families have version 1.
        buffer[..HEAD].copy_from_slice(&[self.command, 1, 0, 0]);
        self.attributes.as_slice().emit(&mut buffer[HEAD..]);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let short = || DecodeError::from("a message without a header");
        let (head, rest) = payload.split_at_checked(HEAD).ok_or_else(short)?;
        let attributes = NlasIterator::new(rest)
            .map(|attribute| attribute.map(|one| DefaultNla::new(one.kind(), one.value().into())))
            .collect::<Result<_, _>>()?;
        Ok(Self { family: header.message_type, command: head[0], attributes })
    }
}

#[cfg(test)]
mod tests;
