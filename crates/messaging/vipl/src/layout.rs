//! The C layout of the structures and constants of `include/vipl.h`.
//!
//! Source: VIA, descriptor format; VIPL data structures.

use longma_via::{Address, Error, Operation, ProtectionTag, Reliability, Status, ViAttributes};
use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::time::{Duration, Instant};

pub(crate) type Handle = *mut c_void;

/// The return code of a call, `VIP_RETURN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) enum Return {
    Success,
    NotDone,
    InvalidParameter,
    ErrorResource,
    Timeout,
    Reject,
    InvalidReliabilityLevel,
    InvalidMtu,
    InvalidQos,
    InvalidPtag,
    InvalidRdmaRead,
    DescriptorError,
    InvalidState,
    ErrorNameService,
    NoMatch,
    NotReachable,
    NotSupported,
}

impl From<&Error> for Return {
    fn from(error: &Error) -> Return {
        match error {
            Error::InvalidParameter(_) | Error::AddressInUse(_) => Return::InvalidParameter,
            Error::Timeout => Return::Timeout,
            Error::Rejected | Error::Refused(_) => Return::Reject,
            Error::InvalidReliability(_) => Return::InvalidReliabilityLevel,
            Error::InvalidTransferSize(_) => Return::InvalidMtu,
            Error::InvalidQualityOfService => Return::InvalidQos,
            Error::InvalidProtectionTag(_) => Return::InvalidPtag,
            Error::InvalidRdmaRead(_) => Return::InvalidRdmaRead,
            Error::InvalidState(_) | Error::ConnectionEnded(_) => Return::InvalidState,
            Error::NameService(_) => Return::ErrorNameService,
            Error::NoMatch(_) => Return::NoMatch,
            Error::NotReachable(_) => Return::NotReachable,
            Error::NotSupported(_) => Return::NotSupported,
            _ => Return::ErrorResource,
        }
    }
}

/// Converts the result of a call without a value.
pub(crate) fn outcome(result: Result<(), Error>) -> Return {
    result.map_or_else(|error| Return::from(&error), |()| Return::Success)
}

/// The deadline of a timeout that starts now. `None` means no deadline.
pub(crate) fn deadline(milliseconds: c_ulong) -> Option<Instant> {
    timeout(milliseconds).and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Converts a timeout in milliseconds. All ones means no timeout.
pub(crate) fn timeout(milliseconds: c_ulong) -> Option<Duration> {
    (milliseconds != c_ulong::MAX).then(|| Duration::from_millis(milliseconds))
}

#[repr(C)]
pub(crate) struct NetAddress {
    pub(crate) host_length: u16,
    pub(crate) discriminator_length: u16,
    pub(crate) bytes: [u8; 1],
}

impl NetAddress {
    fn first_byte(address: *const NetAddress) -> *const u8 {
        address.cast::<u8>().wrapping_add(std::mem::offset_of!(NetAddress, bytes))
    }

    /// # Safety
    /// `address` must be null or point to an address with as many bytes as its lengths specify.
    pub(crate) unsafe fn read(address: *const NetAddress) -> Option<Address> {
        if address.is_null() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (host, discriminator) =
                ((*address).host_length as usize, (*address).discriminator_length as usize);
            let bytes = std::slice::from_raw_parts(NetAddress::first_byte(address), host + discriminator);
            // Ignore zero padding at the end of the host.
            let filled = bytes[..host].iter().rev().take_while(|byte| **byte == 0).count();
            Some(Address::new(&bytes[..host - filled], &bytes[host..]))
        }
    }

    /// Writes an address with the host `host`, as returned by `NicObject::host_bytes`.
    ///
    /// # Safety
    /// `to` must be null or have space for the NIC's longest address, which the address must not exceed.
    pub(crate) unsafe fn write(to: *mut NetAddress, host: &[u8], discriminator: &[u8]) {
        if to.is_null() {
            return;
        }
        let first = NetAddress::first_byte(to).cast_mut();
        // SAFETY: guaranteed by the caller.
        unsafe {
            (*to).host_length = host.len() as u16;
            (*to).discriminator_length = discriminator.len() as u16;
            first.copy_from_nonoverlapping(host.as_ptr(), host.len());
            first.add(host.len()).copy_from_nonoverlapping(discriminator.as_ptr(), discriminator.len());
        }
    }
}

#[repr(C)]
pub(crate) struct NicAttributes {
    pub(crate) name: [c_char; 64],
    pub(crate) hardware_version: c_ulong,
    pub(crate) provider_version: c_ulong,
    pub(crate) nic_address_length: u16,
    pub(crate) local_nic_address: *const u8,
    pub(crate) thread_safe: c_int,
    pub(crate) max_discriminator_length: u16,
    pub(crate) max_register_bytes: c_ulong,
    pub(crate) max_register_regions: c_ulong,
    pub(crate) max_register_block_bytes: c_ulong,
    pub(crate) max_vi: c_ulong,
    pub(crate) max_descriptors_per_queue: c_ulong,
    pub(crate) max_segments_per_descriptor: c_ulong,
    pub(crate) max_cq: c_ulong,
    pub(crate) max_cq_entries: c_ulong,
    pub(crate) max_transfer_size: c_ulong,
    pub(crate) native_mtu: c_ulong,
    pub(crate) max_ptags: c_ulong,
    pub(crate) reliability_level_support: u16,
    pub(crate) rdma_read_support: u16,
}

#[repr(C)]
pub(crate) struct CViAttributes {
    pub(crate) reliability: u16,
    pub(crate) max_transfer_size: c_ulong,
    pub(crate) qos: *mut c_void,
    pub(crate) ptag: Handle,
    pub(crate) rdma_write: c_int,
    pub(crate) rdma_read: c_int,
}

impl CViAttributes {
    /// # Safety
    /// `attributes` must be null or valid.
    pub(crate) unsafe fn read(attributes: *const CViAttributes) -> Result<ViAttributes, Return> {
        // SAFETY: guaranteed by the caller.
        let Some(from) = (unsafe { attributes.as_ref() }) else { return Err(Return::InvalidParameter) };
        if !from.qos.is_null() {
            return Err(Return::InvalidQos);
        }
        let reliability = Reliability::from_bits(from.reliability).ok_or(Return::InvalidReliabilityLevel)?;
        let largest =
            if from.max_transfer_size == 0 { c_ulong::from(u32::MAX) } else { from.max_transfer_size };
        Ok(ViAttributes {
            reliability,
            max_transfer_bytes: u32::try_from(largest).map_err(|_| Return::InvalidMtu)?,
            tag: tag_of(from.ptag),
            rdma_write: from.rdma_write != 0,
            rdma_read: from.rdma_read != 0,
        })
    }

    /// # Safety
    /// `to` must be null or valid.
    pub(crate) unsafe fn write(to: *mut CViAttributes, attributes: &ViAttributes) {
        let value = CViAttributes {
            reliability: attributes.reliability as u16,
            max_transfer_size: c_ulong::from(attributes.max_transfer_bytes),
            qos: std::ptr::null_mut(),
            ptag: handle_of(attributes.tag),
            rdma_write: c_int::from(attributes.rdma_write),
            rdma_read: c_int::from(attributes.rdma_read),
        };
        if !to.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { to.write(value) };
        }
    }
}

/// Converts the number of a protection tag to a handle.
pub(crate) fn handle_of(tag: ProtectionTag) -> Handle {
    std::ptr::without_provenance_mut(tag.number() as usize)
}

pub(crate) fn tag_of(handle: Handle) -> ProtectionTag {
    ProtectionTag::from_number(u32::try_from(handle.addr()).unwrap_or(0))
}

#[repr(C)]
pub(crate) struct CMemoryAttributes {
    pub(crate) ptag: Handle,
    pub(crate) rdma_write: c_int,
    pub(crate) rdma_read: c_int,
}

/// The control segment of a descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ControlSegment {
    pub(crate) next: u64,
    pub(crate) next_handle: u32,
    pub(crate) segment_count: u16,
    pub(crate) control: u16,
    pub(crate) reserved: u32,
    pub(crate) immediate: u32,
    pub(crate) length: u32,
    pub(crate) status: u32,
}

/// A data segment, or an address segment, whose last word is reserved.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DataSegment {
    pub(crate) address: u64,
    pub(crate) handle: u32,
    pub(crate) length: u32,
}

/// The fixed part of a descriptor. More segments may follow.
#[repr(C)]
pub(crate) struct CDescriptor {
    pub(crate) control: ControlSegment,
    pub(crate) segments: [DataSegment; 2],
}

const _: () = assert!(size_of::<ControlSegment>() == 32 && size_of::<CDescriptor>() == 64);

pub(crate) const CONTROL_OPERATION: u16 = 0x3;
pub(crate) const CONTROL_IMMEDIATE: u16 = 0x4;
pub(crate) const CONTROL_FENCE: u16 = 0x8;
pub(crate) const CONTROL_RESERVED: u16 = 0xfff0;

/// The status word stored in a descriptor.
pub(crate) fn status_word(operation: Operation, status: Status) -> u32 {
    let operation = match operation {
        Operation::Send => 0,
        Operation::Receive => 0x1_0000,
        Operation::RdmaWrite => 0x2_0000,
        Operation::RemoteRdmaWrite => 0x3_0000,
        Operation::RdmaRead => 0x4_0000,
    };
    operation | status.0
}

#[repr(C)]
pub(crate) struct ErrorDescriptor {
    pub(crate) nic: Handle,
    pub(crate) vi: Handle,
    pub(crate) cq: Handle,
    pub(crate) descriptor: *mut CDescriptor,
    pub(crate) operation: c_ulong,
    pub(crate) resource: c_int,
    pub(crate) code: c_int,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_refused_by_a_limit_is_a_rejection() {
        assert_eq!(
            Return::from(&Error::Refused("16 processes of this uid".into())) as u32,
            Return::Reject as u32
        );
    }
}
