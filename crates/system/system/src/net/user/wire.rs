//! The Ethernet between the guest and the interface of smoltcp, and frames that are created without smoltcp.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet, Ipv4Repr,
    UdpPacket, UdpRepr,
};

use super::GATEWAY_MAC;
use crate::net::{MAX_FRAME_BYTES, MAX_WAITING};

/// Bytes of the headers of a datagram: Ethernet, IPv4 and UDP.
const HEADERS: [usize; 3] = [14, 20, 8];

/// Frames between the guest and the interface.
#[derive(Debug, Default)]
pub struct Wire {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

impl Wire {
    /// Adds a frame of the guest, unless too many wait.
    pub fn receive(&mut self, frame: Vec<u8>) {
        if self.received.len() < MAX_WAITING {
            self.received.push_back(frame);
        }
    }

    /// Takes a frame of the interface.
    pub fn take_sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }
}

/// A received frame.
pub struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

/// The buffer of a frame to send.
pub struct FrameBuffer<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for FrameBuffer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, act: F) -> R {
        let mut frame = vec![0; bytes];
        let result = act(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = FrameBuffer<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, FrameBuffer<'_>)> {
        if self.sent.len() >= MAX_WAITING {
            return None;
        }
        let frame = self.received.pop_front()?;
        Some((Received(frame), FrameBuffer(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<FrameBuffer<'_>> {
        (self.sent.len() < MAX_WAITING).then_some(FrameBuffer(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MAX_FRAME_BYTES;
        capabilities
    }
}

/// The frame of a UDP datagram to the guest; `None` if it is too long.
pub fn datagram(
    guest: EthernetAddress,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let [ethernet_bytes, ip_bytes, udp_bytes] = HEADERS;
    let bytes = HEADERS.iter().sum::<usize>() + payload.len();
    if bytes > MAX_FRAME_BYTES {
        return None;
    }
    let mut frame = vec![0; bytes];
    let (head, packet) = frame.split_at_mut(ethernet_bytes);
    let (ip, datagram) = packet.split_at_mut(ip_bytes);
    let ethernet = EthernetRepr { src_addr: GATEWAY_MAC, dst_addr: guest, ethertype: EthernetProtocol::Ipv4 };
    ethernet.emit(&mut EthernetFrame::new_unchecked(head));
    let ip_repr = Ipv4Repr {
        src_addr: *from.ip(),
        dst_addr: *to.ip(),
        next_header: IpProtocol::Udp,
        payload_len: udp_bytes + payload.len(),
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    ip_repr.emit(&mut Ipv4Packet::new_unchecked(ip), &checksums);
    let udp = UdpRepr { src_port: from.port(), dst_port: to.port() };
    udp.emit(
        &mut UdpPacket::new_unchecked(datagram),
        &(*from.ip()).into(),
        &(*to.ip()).into(),
        payload.len(),
        |place| place.copy_from_slice(payload),
        &checksums,
    );
    Some(frame)
}
