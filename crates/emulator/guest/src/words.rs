//! Reads and writes little-endian integers in byte buffers.

/// The `N` bytes that start at offset `at`.
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

/// Reads the integer at offset `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

/// Reads the integer at offset `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

/// Reads the integer at offset `at`.
pub fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(number(bytes, at))
}

/// Reads the integer at offset `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

/// Writes `value` at offset `at`.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes `value` at offset `at`.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Decodes `N` consecutive 64-bit words.
pub fn words_of<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|word| u64_at(bytes, 8 * word))
}

/// Encodes `N / 8` 64-bit words as bytes.
pub fn bytes_of<const N: usize>(words: &[u64]) -> [u8; N] {
    std::array::from_fn(|byte| words[byte / 8].to_le_bytes()[byte % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_through_bytes() {
        let words = [1, u64::MAX - 1, 0x0102_0304_0506_0708];
        let mut bytes: [u8; 24] = bytes_of(&words);
        assert_eq!(words_of(&bytes), words);
        assert_eq!((bytes[8], bytes[16]), (0xfe, 8));
        assert_eq!(
            (u64_at(&bytes, 16), u32_at(&bytes, 20), u16_at(&bytes, 22)),
            (words[2], 0x0102_0304, 0x0102)
        );
        assert_eq!(i32_at(&bytes, 8), -2);
        put_u64(&mut bytes, 8, 5);
        put_u32(&mut bytes, 20, 7);
        assert_eq!(words_of(&bytes), [1, 5, 0x7_0506_0708]);
    }
}
