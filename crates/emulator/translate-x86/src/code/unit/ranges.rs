//! Ranges of source addresses.

/// Sorts ranges (start address, length) and joins adjacent ones.
pub(super) fn join_ranges(mut pieces: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if pieces.len() < 2 {
        return pieces;
    }
    pieces.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (pc, bytes) in pieces {
        match ranges.last_mut() {
            Some((start, length)) if *start + *length >= pc => {
                *length = (*length).max(pc + bytes - *start);
            }
            _ => ranges.push((pc, bytes)),
        }
    }
    ranges
}
