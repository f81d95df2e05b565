//! A NIC with one queue of received and one of sent frames, without offloads. Source: Virtual I/O Device Version 1.2,
//! section 5.1 (network device).

use std::io::{Read, Write};
use std::time::Duration;

use virtio_bindings::virtio_net::{VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP};

use crate::net::{Frames, MAX_FRAME_BYTES, Network};

/// The number of queues.
pub const QUEUES: usize = 2;
/// The number of the queue of received frames.
pub const RECEIVE: usize = 0;
/// The features that the device offers.
pub const FEATURES: u64 = 1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_STATUS;
/// The NIC's address, that of the first NIC of QEMU's machines.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// Bytes of the header before each frame. All fields are 0 except the number of buffers of a received frame.
const HEADER: usize = 12;

/// The device configuration: address and status.
pub fn configuration() -> Vec<u8> {
    [&MAC[..], &(VIRTIO_NET_S_LINK_UP as u16).to_le_bytes()].concat()
}

/// The part of a NIC behind its queues.
#[derive(Debug)]
pub struct Nic {
    network: Network,
    frames: Frames,
}

impl Nic {
    /// Connects a NIC to a network.
    pub fn new(network: Network) -> Self {
        Self { network, frames: Frames::default() }
    }

    /// Exchanges frames with the network; see [`Network::exchange`].
    pub fn exchange(&mut self, now_ns: u64, wait: Duration) {
        self.network.exchange(&mut self.frames, now_ns, wait);
    }

    /// Whether a frame for the guest waits.
    pub fn has_received(&self) -> bool {
        self.frames.next_bytes().is_some()
    }

    /// Sends the frame in `input`, which has `bytes` bytes. A frame that is too long, or shorter than a header, is lost.
    pub fn send(&mut self, bytes: usize, input: &mut impl Read) {
        let mut header = [0; HEADER];
        let length = bytes.checked_sub(HEADER).filter(|length| *length <= MAX_FRAME_BYTES);
        let Some(length) = length.filter(|_| input.read_exact(&mut header).is_ok()) else { return };
        let mut frame = vec![0; length];
        if input.read_exact(&mut frame).is_ok() {
            self.frames.send(frame);
        }
    }

    /// Writes the next frame to `output`, a buffer of `space` bytes. Returns how many bytes were written. A longer
    /// frame is lost.
    pub fn receive(&mut self, space: usize, output: &mut impl Write) -> u32 {
        let Some(frame) = self.frames.take() else { return 0 };
        let mut header = [0; HEADER];
        header[HEADER - 2] = 1;
        let bytes = HEADER + frame.len();
        let is_written =
            space >= bytes && output.write_all(&header).is_ok() && output.write_all(&frame).is_ok();
        if is_written { bytes as u32 } else { 0 }
    }
}
