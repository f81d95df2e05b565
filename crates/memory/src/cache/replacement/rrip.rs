//! Static re-reference interval prediction with two bits: a new line is expected to be used late, a used one soon.
//! Not the dynamic kind that duels two insertion policies.
//! Source: Jaleel, Theobald, Steely and Emer, High performance cache replacement using RRIP, ISCA 2010, section 4.1.

/// Expected in the distant future: the first to go.
pub(super) const DISTANT: u8 = 3;

#[inline]
pub(super) fn touched(ages: &mut [u8], way: usize) {
    ages[way] = 0;
}

#[inline]
pub(super) fn filled(ages: &mut [u8], way: usize) {
    ages[way] = DISTANT - 1;
}

#[inline]
pub(super) fn victim(ages: &mut [u8], allowed: u64) -> usize {
    let oldest = super::ways(allowed).map(|way| ages[way]).max().unwrap_or(DISTANT);
    // All allowed ways age until one is distant.
    super::ways(allowed).for_each(|way| ages[way] += DISTANT - oldest);
    super::ways(allowed).find(|way| ages[*way] == DISTANT).unwrap_or(0)
}
