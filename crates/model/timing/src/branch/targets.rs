//! Branch targets: the target buffer and the return-address stack.
//!
//! Source: Lee and Smith (IEEE Computer, 1984); Kaeli and Emma (ISCA 1991).

/// Ways of the target buffer: four, as in most published designs.
pub(super) const WAYS: usize = 4;

/// The target buffer. An entry holds a branch's address and its last target, in units of four bytes.
#[derive(Debug)]
pub(crate) struct TargetBuffer {
    sets: Box<[[(u32, u32); WAYS]]>,
}

/// An instruction's address in units of four bytes.
pub(super) fn word(address: u64) -> u32 {
    (address >> 2) as u32
}

impl TargetBuffer {
    /// Creates a buffer for at most `entries` branches.
    pub fn new(entries: u32) -> Self {
        let sets = 1usize << (entries as usize / WAYS).max(1).ilog2();
        Self { sets: vec![[(0, 0); WAYS]; sets].into() }
    }

    /// Returns whether `branch` with `target` is the most recent entry of its set. In that case
    /// [`resolve`](Self::resolve) would return true and change nothing.
    #[inline]
    pub fn knows(&self, branch: u64, target: u64) -> bool {
        let (branch, target) = (word(branch), word(target));
        self.sets[branch as usize & (self.sets.len() - 1)][0] == (branch, target)
    }

    /// Predicts the target of `branch`, then trains with the actual `target`. Returns whether the prediction was right.
    #[inline]
    pub fn resolve(&mut self, branch: u64, target: u64) -> bool {
        let (branch, target) = (word(branch), word(target));
        let index = branch as usize & (self.sets.len() - 1);
        let set = &mut self.sets[index];
        if set[0] == (branch, target) {
            return true;
        }
        let way = set.iter().position(|entry| entry.0 == branch);
        let was_predicted = way.is_some_and(|way| set[way].1 == target);
        // Entries are ordered by recency, most recent first.
        set[..=way.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = (branch, target);
        was_predicted
    }
}

/// The return-address stack. A push to a full stack overwrites the oldest address.
#[derive(Debug)]
pub(crate) struct ReturnStack {
    addresses: Box<[u64]>,
    top: usize,
}

impl ReturnStack {
    /// Creates a stack of `entries` return addresses.
    pub fn new(entries: u32) -> Self {
        Self { addresses: vec![0; entries.max(1) as usize].into(), top: 0 }
    }

    /// Pushes the return address of a call.
    pub fn push(&mut self, address: u64) {
        self.top = if self.top + 1 == self.addresses.len() { 0 } else { self.top + 1 };
        self.addresses[self.top] = address;
    }

    /// Pops the predicted return address and returns whether it was `address`.
    pub fn pop(&mut self, address: u64) -> bool {
        let predicted = std::mem::replace(&mut self.addresses[self.top], 0);
        self.top = self.top.checked_sub(1).unwrap_or(self.addresses.len() - 1);
        predicted == address
    }
}
