//! Any line, by a seeded generator: the same choices on every run.
//! Not a model of a particular chip's generator, which no maker publishes.
//! Source: Marsaglia, Xorshift RNGs, Journal of Statistical Software 8(14), 2003.

#[inline]
pub(super) fn victim(allowed: u64, random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let nth = ((*random >> 32) * u64::from(allowed.count_ones())) >> 32;
    super::ways(allowed).nth(nth as usize).unwrap_or(0)
}
