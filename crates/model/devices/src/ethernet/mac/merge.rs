//! Large receive offload (LRO): merges consecutive segments of a connection into one large frame.
//!
//! Source: receive side coalescing in Intel's 82599 data sheet, 7.11: the first segment's headers, a descriptor for the
//! data of each segment, and the conditions that end a frame. Unlike the 82599, which tracks 32 connections, a queue
//! merges one connection at a time and closes it when a segment of another one arrives.

use super::registers as r;
use super::state::{Descriptor, DmaState, MacSpec, MacState, Received, length};
use crate::{Bus, BusFault};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// Maximum number of descriptors of a large frame (RSCCTL.MAXDESC).
const MAX_DESCRIPTORS: usize = 16;
/// Lengths of the Ethernet, IPv4 and TCP headers without options.
const ETHERNET: usize = 14;
const IP: usize = 20;
const HEADERS: usize = ETHERNET + IP + 20;
/// Maximum length of an IPv4 packet.
const MAX_PACKET: u64 = 65535;
const ACK: u8 = 16;
const PSH: u8 = 8;

/// A mergeable segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MergeableSegment {
    header: Vec<u8>,
    data: u64,
    sums: u64,
    /// Whether it continues the queue's large frame, so that its headers are dropped.
    continues_frame: bool,
}

/// The large frame that a queue is building.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Merge {
    /// Headers of the first segment.
    header: Vec<u8>,
    /// Filled descriptors that have not been returned, and the bytes in each.
    held: Vec<(Descriptor, u64)>,
    sums: u64,
    next_sequence: u32,
    /// Total length, including headers.
    bytes: u64,
    /// When the last of the data is visible.
    visible: Time,
    /// Whether no segment may follow.
    ended: bool,
}

/// Parses a mergeable segment: valid IPv4 and TCP without options or fragments, and no flags except ACK and PSH.
fn parse_mergeable(received: &Received) -> Option<MergeableSegment> {
    let bytes = received.frame.payload().ok()?;
    let header = bytes.get(..HEADERS)?;
    let (ip, tcp) = (&header[ETHERNET..], &header[ETHERNET + IP..]);
    let is_valid = received.sums == r::IP_SUMMED.mask() | r::TCP_SUMMED.mask();
    let has_all_bytes = u64::from(u16::from_be_bytes([ip[2], ip[3]])) == (bytes.len() - ETHERNET) as u64;
    let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let is_plain = header[12..14] == [8, 0] && ip[0] == 0x45 && !is_fragment && ip[9] == 6;
    let only_data = tcp[12] == 0x50 && tcp[13] & !PSH == ACK && bytes.len() > HEADERS;
    let data = (bytes.len() - HEADERS) as u64;
    (is_valid && has_all_bytes && is_plain && only_data).then(|| MergeableSegment {
        header: header.to_vec(),
        data,
        sums: received.sums,
        continues_frame: false,
    })
}

fn sequence(header: &[u8]) -> u32 {
    let at = ETHERNET + IP + 4;
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

impl Merge {
    fn begin(segment: MergeableSegment) -> Self {
        Self {
            next_sequence: sequence(&segment.header),
            header: segment.header,
            held: Vec::new(),
            sums: segment.sums,
            bytes: HEADERS as u64,
            visible: Time::ZERO,
            ended: false,
        }
    }

    /// Number of descriptors held.
    pub fn kept(&self) -> u32 {
        self.held.len() as u32
    }

    /// Returns whether a segment continues the frame: same Ethernet addresses, IP addresses and ports, and the next
    /// sequence number.
    fn is_continued_by(&self, segment: &MergeableSegment) -> bool {
        let same = |from: usize, to: usize| self.header[from..to] == segment.header[from..to];
        let connection = same(0, ETHERNET) && same(ETHERNET + 12, ETHERNET + IP + 4);
        let max_payload =
            self.held.len() < MAX_DESCRIPTORS && self.bytes + segment.data <= MAX_PACKET + ETHERNET as u64;
        !self.ended && connection && max_payload && sequence(&segment.header) == self.next_sequence
    }

    /// Adds a segment whose data has been written to a descriptor's buffer, and updates the headers.
    fn add(&mut self, segment: &MergeableSegment, descriptor: Descriptor, at: Time) {
        let in_buffer = segment.data + if self.held.is_empty() { HEADERS as u64 } else { 0 };
        self.held.push((descriptor, in_buffer));
        self.next_sequence = self.next_sequence.wrapping_add(segment.data as u32);
        self.bytes += segment.data;
        self.visible = self.visible.max(at);
        let tcp = ETHERNET + IP;
        let pushes = segment.header[tcp + 13] & PSH;
        // Acknowledgement number and window of the latest segment.
        self.header[tcp + 8..tcp + 12].copy_from_slice(&segment.header[tcp + 8..tcp + 12]);
        self.header[tcp + 14..tcp + 16].copy_from_slice(&segment.header[tcp + 14..tcp + 16]);
        self.header[tcp + 13] |= pushes;
        self.ended |= pushes != 0 || self.held.len() == MAX_DESCRIPTORS;
    }

    /// The headers of the merged packet. The TCP checksum remains that of the first segment. The status word states
    /// that the MAC has verified it.
    fn headers(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        let packet = (self.bytes - ETHERNET as u64).min(MAX_PACKET) as u16;
        header[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&packet.to_be_bytes());
        header[ETHERNET + 10..ETHERNET + 12].fill(0);
        let (words, _) = header[ETHERNET..ETHERNET + IP].as_chunks::<2>();
        let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let sum = !((folded & 0xffff) + (folded >> 16)) as u16;
        header[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        header
    }
}

impl MacState {
    /// Decides whether the FIFO's first frame, about to be stored in `descriptor`, starts a large frame or continues
    /// the current one. Otherwise closes the current one.
    pub(super) fn classify_first_frame(&mut self, descriptor: &Descriptor, bus: &mut dyn Bus) {
        self.rx_merging = None;
        let wanted = r::LRO.is_set(self.settings.control);
        let segment = self.fifo.front().filter(|_| wanted).and_then(parse_mergeable);
        let current = self.queues[self.rx_queue].merge.as_ref();
        let continues_frame = current.is_some_and(|merge| {
            segment
                .as_ref()
                .is_some_and(|segment| merge.is_continued_by(segment) && descriptor.size() >= segment.data)
        });
        if !continues_frame {
            self.close(self.rx_queue, bus);
        }
        let Some(segment) = segment else { return };
        if continues_frame {
            // Skip the segment's headers: the large frame has those of its first segment.
            self.rx_offset = HEADERS as u64;
            self.rx_merging = Some(MergeableSegment { continues_frame, ..segment });
        } else if descriptor.size() >= segment.data + HEADERS as u64 {
            self.rx_merging = Some(segment);
        }
    }

    /// Holds the descriptor of a merged segment until the large frame ends.
    pub(super) fn retain_descriptor(
        &mut self,
        segment: MergeableSegment,
        descriptor: Descriptor,
        spec: &MacSpec,
        bus: &mut dyn Bus,
    ) {
        let now = self.now;
        let queue = &mut self.queues[self.rx_queue];
        if !segment.continues_frame {
            queue.merge = Some(Merge::begin(segment.clone()));
        }
        // Software may have replaced the ring in the meantime.
        let Some(merge) = &mut queue.merge else { return };
        merge.add(&segment, descriptor, now);
        self.counters.rx_merged += u64::from(segment.continues_frame);
        if self.queues[self.rx_queue].merge.as_ref().is_some_and(|merge| merge.ended) {
            if let Some(at) = self.close(self.rx_queue, bus) {
                self.rx_step = DmaState::Reporting { at, causes: r::INT_RX.mask() };
            }
        } else {
            self.received(spec, bus);
        }
    }

    /// The earliest time at which a queue's large frame can be closed, while a segment is being written to it.
    pub(super) fn busy_merging(&self, queue: usize) -> Option<Time> {
        let is_merging =
            queue == self.rx_queue && self.rx_merging.as_ref().is_some_and(|one| one.continues_frame);
        self.rx_step.end().filter(|_| is_merging)
    }

    /// Passes a queue's large frame to software. Returns the time at which software sees it; `None` if there is none or
    /// its ring is not accessible.
    pub(super) fn close(&mut self, queue: usize, bus: &mut dyn Bus) -> Option<Time> {
        let merge = self.queues[queue].merge.take()?;
        match self.write_merged(&merge, bus) {
            Ok(at) => Some(at),
            Err(_) => {
                self.disable_direction(r::RX_ENABLE, queue, bus);
                None
            }
        }
    }

    /// Writes the headers and then the descriptors, the first one last: software that sees the first descriptor
    /// returned also sees the others.
    fn write_merged(&self, merge: &Merge, bus: &mut dyn Bus) -> Result<Time, BusFault> {
        let mut visible_at = merge.visible.max(self.now);
        let count = merge.held.len();
        if count > 1
            && let Some((first, _)) = merge.held.first()
        {
            let placement = self.data_placement(true);
            visible_at = visible_at.max(bus.write(first.buffer, &merge.headers(), placement, self.now)?);
        }
        for (number, (descriptor, bytes)) in merge.held.iter().enumerate().rev() {
            let is_last = number + 1 == count;
            let total_bytes = if is_last { merge.bytes } else { *bytes };
            let ends = if is_last { r::LAST.mask() | merge.sums } else { 0 };
            let status = r::FIRST.with(u64::from(number == 0)) | ends | length(total_bytes);
            visible_at = visible_at.max(self.write_status(*descriptor, status, bus)?);
        }
        Ok(visible_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::tcp::{Endpoint, Segment};

    fn received(segment: Segment) -> Received {
        let end = |port| Endpoint { station: [2; 6], address: [10, 0, 0, 1], port };
        let frame = segment.frame(&end(1), &end(2)).unwrap();
        let sums = super::super::steering::checksum_status(&frame);
        Received { frame, queue: 0, sums }
    }

    fn data(sequence: u32) -> Segment {
        Segment { sequence, acknowledgement: Some(9), data: vec![7; 100], ..Segment::default() }
    }

    #[test]
    fn only_valid_plain_data_segments_are_merged() {
        assert!(parse_mergeable(&received(data(5))).is_some());
        assert!(parse_mergeable(&received(Segment { push: true, ..data(5) })).is_some());
        for odd in [
            Segment { fin: true, ..data(5) },
            Segment { syn: true, ..data(5) },
            Segment { acknowledgement: None, ..data(5) },
            Segment { mss: Some(1460), ..data(5) },
            Segment { data: Vec::new(), ..data(5) },
        ] {
            assert!(parse_mergeable(&received(odd.clone())).is_none(), "{odd:?}");
        }
        let damaged = Received { sums: r::IP_SUMMED.mask() | r::SUM_WRONG.mask(), ..received(data(5)) };
        assert!(parse_mergeable(&damaged).is_none());
    }

    #[test]
    fn a_segment_continues_a_frame_by_sequence_number_and_connection() {
        let segment = |sequence| parse_mergeable(&received(data(sequence))).unwrap();
        let descriptor = Descriptor { address: 0, buffer: 0, control: 2048, status: 0 };
        let mut merge = Merge::begin(segment(u32::MAX - 49));
        merge.add(&segment(u32::MAX - 49), descriptor, Time::ZERO);
        assert!(merge.is_continued_by(&segment(50)), "sequence numbers wrap around");
        assert!(!merge.is_continued_by(&segment(51)));
        let mut other = segment(50);
        other.header[ETHERNET + IP + 1] ^= 1;
        assert!(!merge.is_continued_by(&other), "another port");
    }
}
