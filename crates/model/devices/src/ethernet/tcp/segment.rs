//! Encodes and decodes a TCP segment in an Ethernet frame with an IPv4 header, including checksums.
//!
//! Source: RFC 791, RFC 9293 section 3.1, RFC 7323 section 2.2; the formats are implemented by etherparse.

use super::super::Frame;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpOptionElement, TransportSlice};
use serde::{Deserialize, Serialize};

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Ethernet address.
    pub station: [u8; 6],
    /// IPv4 address.
    pub address: [u8; 4],
    /// TCP port.
    pub port: u16,
}

/// A TCP segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of its first byte, or of its SYN or FIN.
    pub sequence: u32,
    /// The acknowledgement number, if ACK is set.
    pub acknowledgement: Option<u32>,
    /// SYN: opens the connection.
    pub syn: bool,
    /// FIN: ends the sender's stream.
    pub fin: bool,
    /// RST: aborts the connection.
    pub reset: bool,
    /// PSH: the receiver should deliver the data.
    pub push: bool,
    /// The receive window in the header, unscaled.
    pub window: u16,
    /// Maximum segment size, in a SYN.
    pub mss: Option<u16>,
    /// Window scale, in a SYN.
    pub scale: Option<u8>,
    /// Payload.
    pub data: Vec<u8>,
}

/// A frame that is not a segment of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The frame is damaged or too short.
    #[error("the frame is damaged")]
    Frame,
    /// The headers are malformed.
    #[error("the IPv4 or TCP header is malformed")]
    Malformed,
    /// A checksum is wrong.
    #[error("a checksum is wrong")]
    Checksum,
    /// It belongs to another connection.
    #[error("not a segment of this connection")]
    Elsewhere,
}

/// Time to live of sent packets.
const HOPS: u8 = 64;

impl Segment {
    /// The frame that carries the segment from `from` to `to`; `None` if it exceeds an IPv4 packet.
    pub fn frame(&self, from: &Endpoint, to: &Endpoint) -> Option<Frame> {
        let mut header = TcpHeader::new(from.port, to.port, self.sequence, self.window);
        (header.syn, header.fin, header.rst, header.psh) = (self.syn, self.fin, self.reset, self.push);
        header.ack = self.acknowledgement.is_some();
        header.acknowledgment_number = self.acknowledgement.unwrap_or(0);
        let mss = self.mss.map(TcpOptionElement::MaximumSegmentSize);
        let scale = self.scale.map(TcpOptionElement::WindowScale);
        let options: Vec<_> = mss.into_iter().chain(scale).collect();
        header.set_options(&options).ok()?;
        let builder = PacketBuilder::ethernet2(from.station, to.station)
            .ipv4(from.address, to.address, HOPS)
            .tcp_header(header);
        let mut bytes = Vec::with_capacity(builder.size(self.data.len()));
        builder.write(&mut bytes, &self.data).ok()?;
        Some(Frame::new(&bytes))
    }

    /// Decodes the segment in `frame`, sent from `from` to `to`.
    ///
    /// # Errors
    /// The segment is damaged, malformed, or belongs to another connection.
    pub fn read(frame: &Frame, from: &Endpoint, to: &Endpoint) -> Result<Self, SegmentError> {
        let payload = frame.payload().map_err(|_| SegmentError::Frame)?;
        let packet = SlicedPacket::from_ethernet(payload).map_err(|_| SegmentError::Malformed)?;
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (&packet.net, &packet.transport)
        else {
            return Err(SegmentError::Malformed);
        };
        let header = ip.header();
        let ends = (header.source(), tcp.source_port(), header.destination(), tcp.destination_port());
        if frame.destination() != to.station || ends != (from.address, from.port, to.address, to.port) {
            return Err(SegmentError::Elsewhere);
        }
        let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
        let good = header.header_checksum() == header.to_header().calc_header_checksum()
            && sum.is_ok_and(|sum| sum == tcp.checksum());
        if !good {
            return Err(SegmentError::Checksum);
        }
        let (mut mss, mut scale) = (None, None);
        for option in tcp.options_iterator() {
            match option {
                Ok(TcpOptionElement::MaximumSegmentSize(size)) => mss = Some(size),
                Ok(TcpOptionElement::WindowScale(shift)) => scale = Some(shift),
                _ => {}
            }
        }
        Ok(Self {
            sequence: tcp.sequence_number(),
            acknowledgement: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            reset: tcp.rst(),
            push: tcp.psh(),
            window: tcp.window_size(),
            mss,
            scale,
            data: tcp.payload().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENDS: [Endpoint; 2] = [
        Endpoint { station: [2; 6], address: [10, 0, 0, 1], port: 5001 },
        Endpoint { station: [4; 6], address: [10, 0, 0, 2], port: 12865 },
    ];

    proptest! {
        #[test]
        fn written_data_is_read_back(
            sequence in any::<u32>(), acknowledgement in any::<Option<u32>>(), flags in any::<[bool; 4]>(), window in any::<u16>(),
            options in any::<(Option<u16>, Option<u8>)>(), data in proptest::collection::vec(any::<u8>(), 0..1500),
        ) {
            let [syn, fin, reset, push] = flags;
            let (mss, scale) = options;
            let segment = Segment { sequence, acknowledgement, syn, fin, reset, push, window, mss, scale, data };
            let frame = segment.frame(&ENDS[0], &ENDS[1]).unwrap();
            prop_assert_eq!(Segment::read(&frame, &ENDS[0], &ENDS[1]), Ok(segment));
            prop_assert_eq!(Segment::read(&frame, &ENDS[1], &ENDS[0]), Err(SegmentError::Elsewhere));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..80, flip in any::<(usize, u8)>()) {
            let _ = Segment::read(&Frame::new(&bytes), &ENDS[0], &ENDS[1]);
            let good = Segment { data: vec![1; 40], ..Segment::default() }.frame(&ENDS[0], &ENDS[1]).unwrap();
            let mut bytes = good.payload().unwrap()[..good.len() - 4 - cut].to_vec();
            let at = flip.0 % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= flip.1;
            }
            let _ = Segment::read(&Frame::new(&bytes), &ENDS[0], &ENDS[1]);
        }
    }

    #[test]
    fn the_tcp_checksum_detects_damage_missed_by_the_frame_check() {
        let good = Segment { data: vec![1; 40], ..Segment::default() }.frame(&ENDS[0], &ENDS[1]).unwrap();
        for at in [22, 40, 60] {
            let mut bytes = good.payload().unwrap().to_vec();
            bytes[at] ^= 1;
            let error = Segment::read(&Frame::new(&bytes), &ENDS[0], &ENDS[1]).unwrap_err();
            assert_eq!(error, SegmentError::Checksum, "byte {at}");
        }
    }
}
