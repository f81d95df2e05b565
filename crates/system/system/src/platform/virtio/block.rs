//! The requests of a virtual disk. Source: Virtual I/O Device Version 1.2, section 5.2 (block device).

use std::io::{Read, Write};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};

use super::disk::{Disk, SECTOR};

/// The features that the device offers.
pub const FEATURES: u64 = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_SEG_MAX;
/// The maximum number of segments of a request, without its header and status.
const SEGMENTS: u32 = 126;
/// Bytes to copy at a time.
const CHUNK: usize = 1 << 16;
/// Bytes of a request header: type, reserved word and sector.
const HEADER: usize = 16;

/// The device configuration: capacity in sectors, maximum segment size (not offered as a feature), and maximum number
/// of segments.
pub fn configuration(disk: &Disk) -> Vec<u8> {
    [&disk.sectors().to_le_bytes()[..], &0u32.to_le_bytes(), &SEGMENTS.to_le_bytes()].concat()
}

/// Serves a request and returns its status. `input` is the driver's data; `output` is the device's, without the status
/// byte.
pub fn serve(disk: &mut Disk, input: &mut impl Read, bytes: Lengths, output: &mut impl Write) -> u8 {
    let mut header = [0; HEADER];
    if bytes.input < HEADER as u64 || input.read_exact(&mut header).is_err() {
        return VIRTIO_BLK_S_IOERR as u8;
    }
    let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let sector = header[8..].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let Some(start) = sector.checked_mul(SECTOR) else { return VIRTIO_BLK_S_IOERR as u8 };
    let done = match kind {
        VIRTIO_BLK_T_IN if disk.contains(start, bytes.output) => read(disk, start, bytes.output, output),
        VIRTIO_BLK_T_OUT if disk.contains(start, bytes.input - HEADER as u64) => {
            write(disk, start, bytes.input - HEADER as u64, input)
        }
        VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => return VIRTIO_BLK_S_IOERR as u8,
        VIRTIO_BLK_T_FLUSH => disk.flush(),
        VIRTIO_BLK_T_GET_ID => {
            let mut name = b"longma".to_vec();
            name.resize(VIRTIO_BLK_ID_BYTES as usize, 0);
            name.truncate(bytes.output.min(name.len() as u64) as usize);
            output.write_all(&name)
        }
        _ => return VIRTIO_BLK_S_UNSUPP as u8,
    };
    done.map_or(VIRTIO_BLK_S_IOERR as u8, |()| VIRTIO_BLK_S_OK as u8)
}

/// The lengths of a request's parts in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// The driver's data.
    pub input: u64,
    /// The device's data, without the status byte.
    pub output: u64,
}

fn read(disk: &Disk, start: u64, bytes: u64, output: &mut impl Write) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let length = chunk.len().min((bytes - done) as usize);
        disk.read(start + done, &mut chunk[..length])?;
        output.write_all(&chunk[..length])?;
        done += length as u64;
    }
    Ok(())
}

fn write(disk: &mut Disk, start: u64, bytes: u64, input: &mut impl Read) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let length = chunk.len().min((bytes - done) as usize);
        input.read_exact(&mut chunk[..length])?;
        disk.write(start + done, &chunk[..length])?;
        done += length as u64;
    }
    Ok(())
}
