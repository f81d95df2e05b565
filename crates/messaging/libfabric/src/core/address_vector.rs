//! Address vectors: numbers for the names of peers.

use super::address::Name;
use longma_locks::IgnorePoison;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Contents {
    /// The names, with the number of insertions.
    names: Vec<Option<(Name, u32)>>,
    numbers: HashMap<Name, u64>,
    free: Vec<usize>,
}

/// An address vector. A name that is inserted twice keeps its number until it is removed twice.
#[derive(Default)]
pub(crate) struct AddressVector {
    contents: Mutex<Contents>,
    /// Increased by each change, so that endpoints can keep copies.
    generation: AtomicU64,
}

impl AddressVector {
    /// The number of changes so far.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Inserts a name, and returns its number.
    pub(crate) fn insert(&self, name: Name) -> u64 {
        let mut contents = self.contents.lock().ignore_poison();
        if let Some(&number) = contents.numbers.get(&name) {
            if let Some((_, count)) = &mut contents.names[number as usize] {
                *count += 1;
            }
            return number;
        }
        let number = match contents.free.pop() {
            Some(number) => number,
            None => {
                contents.names.push(None);
                contents.names.len() - 1
            }
        };
        contents.names[number] = Some((name, 1));
        contents.numbers.insert(name, number as u64);
        self.generation.fetch_add(1, Ordering::Release);
        number as u64
    }

    /// Removes a number. False if it is unknown.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let mut contents = self.contents.lock().ignore_poison();
        let Some(entry) = usize::try_from(number).ok().and_then(|number| contents.names.get_mut(number))
        else {
            return false;
        };
        let Some((name, count)) = entry else { return false };
        *count -= 1;
        if *count == 0 {
            let name = *name;
            *entry = None;
            contents.numbers.remove(&name);
            contents.free.push(number as usize);
            self.generation.fetch_add(1, Ordering::Release);
        }
        true
    }

    /// The name with a number.
    pub(crate) fn name(&self, number: u64) -> Option<Name> {
        let contents = self.contents.lock().ignore_poison();
        contents.names.get(usize::try_from(number).ok()?)?.map(|(name, _)| name)
    }

    /// The number of a name.
    pub(crate) fn number(&self, name: &Name) -> Option<u64> {
        self.contents.lock().ignore_poison().numbers.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_until_it_is_removed_as_often_as_inserted() {
        let vector = AddressVector::default();
        let [a, b] = ["a", "b"].map(|text| Name::new(text.as_bytes()).unwrap());
        let number = vector.insert(a);
        assert_eq!((vector.insert(a), vector.insert(b)), (number, number + 1));
        assert!(vector.remove(number));
        assert_eq!(vector.name(number), Some(a));
        assert!(
            vector.remove(number) && !vector.remove(number) && !vector.remove(77) && !vector.remove(u64::MAX)
        );
        assert_eq!((vector.name(number), vector.number(&a)), (None, None));
        assert_eq!(vector.insert(Name::new(b"c").unwrap()), number);
    }
}
