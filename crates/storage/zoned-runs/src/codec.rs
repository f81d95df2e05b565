//! Integers and byte strings in the formats of this crate: little-endian integers, LEB128 variable-length integers, and
//! byte strings after their length. Decoding never reads beyond the input and never panics.

/// A cursor over bytes from a device, which may be damaged.
#[derive(Clone, Copy)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// A variable-length integer of at most ten bytes.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A variable-length integer that is a length or a count.
    pub fn length(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// A byte string after its length.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }
}

/// Appends a variable-length integer.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number of bytes of a variable-length integer.
pub const fn varint_bytes(value: u64) -> usize {
    match 64 - value.leading_zeros() {
        0 => 1,
        bits => (bits as usize).div_ceil(7),
    }
}

/// Appends a byte string after its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The length of the longest common prefix.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_their_stated_length_and_are_read_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX / 2, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value), "{value}");
            assert_eq!(Input(&out).varint(), Some(value));
            assert_eq!(Input(&out[..out.len() - 1]).varint(), None, "{value} cut short");
        }
        assert_eq!(Input(&[0xff; 11]).varint(), None, "an integer of eleven bytes");
    }
}
