//! The settings of an interface's NAPI instances, and the threads that poll them.
//!
//! Source: Linux Documentation/netlink/specs/netdev.yaml (napi-get, Linux 6.8; values and napi-set, 6.13; threaded, 6.17),
//! networking/napi.rst, include/uapi/linux/genetlink.h.

use crate::links;
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, Nla, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use serde::{Deserialize, Serialize};
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
/// NETDEV_A_NAPI_IFINDEX, NETDEV_A_NAPI_ID, NETDEV_A_NAPI_PID, NETDEV_A_NAPI_DEFER_HARD_IRQS,
/// NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT, NETDEV_A_NAPI_THREADED.
const NAPI_INTERFACE: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_PID: u16 = 4;
const NAPI_DEFER: u16 = 5;
const NAPI_FLUSH: u16 = 6;
const NAPI_SUSPEND: u16 = 7;
const NAPI_THREADED: u16 = 8;

/// Bytes of the generic header: command, version, two reserved.
const HEAD: usize = 4;

/// A NAPI instance of an interface: usually one for each queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NapiInstance {
    /// Number of the instance. It changes if the driver creates the instance again.
    pub id: u32,
    /// ID, in the initial PID namespace, of the thread that polls the instance; `None` if there is no thread.
    pub thread: Option<u32>,
    /// Its settings.
    pub values: NapiValues,
}

/// Settings of a NAPI instance; `None` for those that the kernel does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiValues {
    /// Number of polls without packets before interrupts are enabled again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds after which the instance is polled while interrupts are deferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gro_flush_timeout: Option<u64>,
    /// Maximum nanoseconds for which interrupts stay suspended while an application polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irq_suspend_timeout: Option<u64>,
    /// Whether a thread polls the instance: 0 or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threaded: Option<u32>,
}

/// Reads the NAPI instances of `interface`, sorted by number, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `NotFound` for an unknown name, and if the kernel does not list instances (before Linux 6.8).
pub fn get(interface: &str) -> io::Result<Vec<NapiInstance>> {
    let index = links::index_of(interface)?;
    let netdev = Netdev::open()?;
    let found = netdev.query(NAPI_GET, NLM_F_DUMP, &[number(NAPI_INTERFACE, index)])?;
    let mut instances: Vec<NapiInstance> =
        found.iter().filter_map(|attributes| instance(attributes, index)).collect();
    instances.sort_by_key(|instance| instance.id);
    Ok(instances)
}

/// Changes the given settings of an instance.
///
/// # Errors
/// The kernel's error.
pub fn set(id: u32, values: &NapiValues) -> io::Result<()> {
    let long = |kind, value: u64| DefaultNla::new(kind, value.to_ne_bytes().into());
    let all = [
        Some(number(NAPI_ID, id)),
        values.defer_hard_irqs.map(|polls| number(NAPI_DEFER, polls)),
        values.gro_flush_timeout.map(|timeout| long(NAPI_FLUSH, timeout)),
        values.irq_suspend_timeout.map(|timeout| long(NAPI_SUSPEND, timeout)),
        values.threaded.map(|is_on| number(NAPI_THREADED, is_on)),
    ];
    let attributes: Vec<DefaultNla> = all.into_iter().flatten().collect();
    Netdev::open()?.query(NAPI_SET, NLM_F_ACK, &attributes).map(drop)
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
        let found = control.query(GET_FAMILY, 0, &[DefaultNla::new(FAMILY_NAME, NETDEV.into())])?;
        let id = found.first().and_then(|family| value(family, FAMILY_ID));
        let family = id.and_then(|id| u16::try_from(id).ok()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { family, ..control })
    }

    /// Sends a command and collects the attributes of each answer.
    fn query(&self, command: u8, flags: u16, attributes: &[DefaultNla]) -> io::Result<Vec<Vec<DefaultNla>>> {
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
fn instance(attributes: &[DefaultNla], index: u32) -> Option<NapiInstance> {
    let short = |kind| value(attributes, kind).and_then(|value| u32::try_from(value).ok());
    (short(NAPI_INTERFACE)? == index).then_some(NapiInstance {
        id: short(NAPI_ID)?,
        thread: short(NAPI_PID),
        values: NapiValues {
            defer_hard_irqs: short(NAPI_DEFER),
            gro_flush_timeout: value(attributes, NAPI_FLUSH),
            irq_suspend_timeout: value(attributes, NAPI_SUSPEND),
            threaded: short(NAPI_THREADED),
        },
    })
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
