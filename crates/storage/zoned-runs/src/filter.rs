//! Bloom filters, which show that a table does not contain a key.
//!
//! Source: Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", CACM 1970; Putze, Sanders, Singler,
//! "Cache-, Hash-, and Space-Efficient Bloom Filters", 2007 (one cache line for all bits of a key).

/// Bits of filter for each key. With blocks of 512 bits about 0.8 % of absent keys pass.
const BITS_PER_KEY: usize = 12;
const LINE_BYTES: usize = 64;
/// Bits that a key sets: seven numbers of nine bits.
const PROBES: u32 = 7;

/// The hash of a key (XXH3).
pub fn hash(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

/// The size of a filter for `keys` keys, bytes.
pub const fn bytes_for(keys: usize) -> usize {
    (keys * BITS_PER_KEY).div_ceil(8 * LINE_BYTES) * LINE_BYTES
}

/// Builds the filter of keys with these hashes.
pub fn build(hashes: &[u64]) -> Vec<u8> {
    let mut filter = vec![0; bytes_for(hashes.len())];
    let lines = filter.len() / LINE_BYTES;
    for &hash in hashes {
        let line = line_of(hash, lines);
        for bit in bits(hash) {
            filter[line * LINE_BYTES + bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}

/// Whether a key with this hash may be in the filter's set. An empty filter has no keys.
pub fn may_contain(filter: &[u8], hash: u64) -> bool {
    let lines = filter.len() / LINE_BYTES;
    if lines == 0 {
        return false;
    }
    let line = &filter[line_of(hash, lines) * LINE_BYTES..][..LINE_BYTES];
    bits(hash).all(|bit| line[bit / 8] & (1 << (bit % 8)) != 0)
}

/// The cache line of a hash: its upper half, scaled.
const fn line_of(hash: u64, lines: usize) -> usize {
    (((hash >> 32) * lines as u64) >> 32) as usize
}

/// The bits of a hash within its cache line. The multiplication makes them independent of the choice of the line.
fn bits(hash: u64) -> impl Iterator<Item = usize> {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (hash >> 29);
    (0..PROBES).map(move |probe| (mixed >> (9 * probe)) as usize & 511)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_passes_and_few_others_do() {
        let hashes: Vec<u64> = (0..20_000u64).map(|key| hash(&key.to_be_bytes())).collect();
        let filter = build(&hashes);
        assert!(hashes.iter().all(|&hash| may_contain(&filter, hash)));
        let others = (20_000..120_000u64).filter(|key| may_contain(&filter, hash(&key.to_be_bytes())));
        let passed = others.count();
        assert!(passed < 1_500, "{passed} of 100,000 absent keys passed");
        assert!(!may_contain(&[], 1));
    }
}
