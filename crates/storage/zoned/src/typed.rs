//! Keys and values of Rust types over a map of bytes.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::map::KeyRange;
use crate::store::{Iter, Snapshot, Store, Transaction, TransactionRows};
use std::borrow::Cow;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// A type that can be stored as a value.
///
/// Implement the trait for your own types with any serialization format:
///
/// ```
/// # use std::borrow::Cow;
/// struct Point { x: u32, y: u32 }
///
/// impl longma_zoned::Value for Point {
///     fn encode(&self) -> Cow<'_, [u8]> {
///         Cow::Owned([self.x.to_le_bytes(), self.y.to_le_bytes()].concat())
///     }
///
///     fn decode(bytes: &[u8]) -> Option<Self> {
///         let (x, y) = bytes.split_first_chunk()?;
///         Some(Self { x: u32::from_le_bytes(*x), y: u32::from_le_bytes(y.try_into().ok()?) })
///     }
/// }
/// ```
pub trait Value: Sized {
    /// The encoding of the value.
    fn encode(&self) -> Cow<'_, [u8]>;

    /// The value that the bytes encode, or `None` if they encode none.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A type that can be a key: the bytes of keys compare like the keys.
pub trait Key: Value + Ord {}

/// A type of key whose encodings all have the same length, so that another key can follow it in a pair.
pub trait FixedKey: Key {
    /// The length of every encoding, bytes.
    const BYTES: usize;
}

macro_rules! integers {
    ($($signed:ty, $unsigned:ty;)*) => {$(
        impl Value for $unsigned {
            fn encode(&self) -> Cow<'_, [u8]> {
                Cow::Owned(self.to_be_bytes().to_vec())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_be_bytes(bytes.try_into().ok()?))
            }
        }

        // The sign bit is flipped, so that negative numbers sort first.
        impl Value for $signed {
            fn encode(&self) -> Cow<'_, [u8]> {
                Cow::Owned((self ^ Self::MIN).to_be_bytes().to_vec())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_be_bytes(bytes.try_into().ok()?) ^ Self::MIN)
            }
        }

        impl Key for $unsigned {}
        impl Key for $signed {}

        impl FixedKey for $unsigned {
            const BYTES: usize = size_of::<Self>();
        }

        impl FixedKey for $signed {
            const BYTES: usize = size_of::<Self>();
        }
    )*};
}

integers!(i8, u8; i16, u16; i32, u32; i64, u64; i128, u128;);

impl Value for () {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

impl Value for bool {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(if *self { &[1] } else { &[0] })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Value for String {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::from_utf8(bytes.to_vec()).ok()
    }
}

impl Value for Vec<u8> {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl<const N: usize> Value for [u8; N] {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

impl<A: FixedKey, B: Value> Value for (A, B) {
    fn encode(&self) -> Cow<'_, [u8]> {
        Cow::Owned([self.0.encode(), self.1.encode()].concat())
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (first, second) = bytes.split_at_checked(A::BYTES)?;
        Some((A::decode(first)?, B::decode(second)?))
    }
}

impl Key for () {}
impl Key for bool {}
impl Key for String {}
impl Key for Vec<u8> {}
impl<const N: usize> Key for [u8; N] {}
impl<A: FixedKey, B: Key> Key for (A, B) {}

impl FixedKey for bool {
    const BYTES: usize = 1;
}

impl<const N: usize> FixedKey for [u8; N] {
    const BYTES: usize = N;
}

impl<A: FixedKey, B: FixedKey> FixedKey for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;
}

/// The sources that [`Typed`] reads: `&Store`, `&Snapshot` or `&mut Transaction`.
pub trait View {
    /// An iterator over keys and values.
    type Rows<'v>: DoubleEndedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>
    where
        Self: 'v;

    /// The value of a key.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Whether there is a key.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    fn contains(&self, key: &[u8]) -> Result<bool>;

    /// The keys in a range and their values.
    fn rows(&self, range: KeyRange<'_>) -> Self::Rows<'_>;
}

/// The targets that [`Typed`] changes: `&Store` or `&mut Transaction`.
pub trait Change: View {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// Those of [`Store::put`].
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key.
    ///
    /// # Errors
    /// Those of [`Store::delete`].
    fn remove(&mut self, key: &[u8]) -> Result<()>;
}

/// The records of an [`Iter`] as pairs.
pub struct Pairs<D>(Iter<D>);

impl<D: ZonedDevice> Iterator for Pairs<D> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|row| row.map(|row| row.to_pair()))
    }
}

impl<D: ZonedDevice> DoubleEndedIterator for Pairs<D> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|row| row.map(|row| row.to_pair()))
    }
}

macro_rules! byte_view {
    ($inner:ident) => {
        impl<D: ZonedDevice> View for &$inner<D> {
            type Rows<'v>
                = Pairs<D>
            where
                Self: 'v;

            fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
                $inner::get(self, key)
            }

            fn contains(&self, key: &[u8]) -> Result<bool> {
                $inner::contains_key(self, key)
            }

            fn rows(&self, range: KeyRange<'_>) -> Pairs<D> {
                Pairs($inner::range(self, range))
            }
        }
    };
}

byte_view!(Store);
byte_view!(Snapshot);

impl<D: ZonedDevice> View for &mut Transaction<D> {
    type Rows<'v>
        = TransactionRows<'v, D>
    where
        Self: 'v;

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Transaction::get(self, key)
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        Transaction::contains_key(self, key)
    }

    fn rows(&self, range: KeyRange<'_>) -> TransactionRows<'_, D> {
        Transaction::range(self, range)
    }
}

impl<D: ZonedDevice> Change for &Store<D> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value).map(drop)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.delete(key).map(drop)
    }
}

impl<D: ZonedDevice> Change for &mut Transaction<D> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.delete(key);
        Ok(())
    }
}

/// A map, a snapshot or a transaction with keys of type `K` and values of type `V`.
///
/// ```
/// # use longma_zoned::device::{Geometry, MemoryDevice};
/// # use longma_zoned::{Options, Store, Typed};
/// # let device = MemoryDevice::new(Geometry::with_capacity(16 << 20))?;
/// let store = Store::open_or_create(device, Options::default())?;
/// let mut ages = Typed::<_, String, u32>::new(&store);
/// ages.put(&"Ada".into(), &36)?;
/// assert_eq!(ages.get(&"Ada".into())?, Some(36));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Typed<S, K, V> {
    view: S,
    types: PhantomData<fn(K) -> V>,
}

impl<S: View, K: Key, V: Value> Typed<S, K, V> {
    /// The keys and values of `view`: `&Store`, `&Snapshot` or `&mut Transaction`. All its records must have these types.
    pub const fn new(view: S) -> Self {
        Self { view, types: PhantomData }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// Those of [`Store::get`]; [`Error::Encoding`] if the value is not a `V`.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        self.view.value(&key.encode())?.map(|bytes| decoded("value", &bytes)).transpose()
    }

    /// Whether `key` is present.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        self.view.contains(&key.encode())
    }

    /// Iterates over all keys and values in key order, from either end.
    pub fn iter(&self) -> TypedRows<S::Rows<'_>, K, V> {
        self.range(..)
    }

    /// Iterates over the keys in `range` and their values in key order, from either end. A record of another type yields
    /// [`Error::Encoding`].
    pub fn range(&self, range: impl RangeBounds<K>) -> TypedRows<S::Rows<'_>, K, V> {
        let (start, end) = (range.start_bound().map(K::encode), range.end_bound().map(K::encode));
        let range =
            KeyRange { start: start.as_ref().map(|key| &key[..]), end: end.as_ref().map(|key| &key[..]) };
        TypedRows { rows: self.view.rows(range), types: PhantomData }
    }
}

impl<S: Change, K: Key, V: Value> Typed<S, K, V> {
    /// Inserts `key` or replaces its value.
    ///
    /// # Errors
    /// Those of [`Store::put`]; none in a transaction.
    pub fn put(&mut self, key: &K, value: &V) -> Result<()> {
        self.view.set(&key.encode(), &value.encode())
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// Those of [`Store::delete`]; none in a transaction.
    pub fn delete(&mut self, key: &K) -> Result<()> {
        self.view.remove(&key.encode())
    }
}

fn decoded<T: Value>(part: &'static str, bytes: &[u8]) -> Result<T> {
    T::decode(bytes).ok_or_else(|| Error::Encoding {
        part,
        bytes: bytes.escape_ascii().to_string(),
        kind: std::any::type_name::<T>(),
    })
}

/// A double-ended iterator over keys and values of a type.
pub struct TypedRows<I, K, V> {
    rows: I,
    types: PhantomData<fn() -> (K, V)>,
}

impl<I, K: Key, V: Value> TypedRows<I, K, V> {
    fn pair(row: Result<(Vec<u8>, Vec<u8>)>) -> Result<(K, V)> {
        let (key, value) = row?;
        Ok((decoded("key", &key)?, decoded("value", &value)?))
    }
}

impl<I: Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>, K: Key, V: Value> Iterator for TypedRows<I, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next().map(Self::pair)
    }
}

impl<I: DoubleEndedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>, K: Key, V: Value> DoubleEndedIterator
    for TypedRows<I, K, V>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.next_back().map(Self::pair)
    }
}

impl<I: FusedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>, K: Key, V: Value> FusedIterator
    for TypedRows<I, K, V>
{
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keeps_order<K: Key + Clone + std::fmt::Debug>(first: &K, second: &K) {
        assert_eq!(first.cmp(second), first.encode().cmp(&second.encode()), "{first:?} and {second:?}");
        assert_eq!(K::decode(&first.encode()).as_ref(), Some(first));
    }

    proptest! {
        #[test]
        fn encodings_compare_like_the_keys(
            numbers: [i64; 2], small: [i8; 2], large: [u128; 2], flags: [bool; 2], text in ["[ab]{0,3}", "[ab]{0,3}"],
        ) {
            keeps_order(&numbers[0], &numbers[1]);
            keeps_order(&small[0], &small[1]);
            keeps_order(&large[0], &large[1]);
            keeps_order(&flags[0], &flags[1]);
            keeps_order(&text[0], &text[1]);
            keeps_order(&text[0].clone().into_bytes(), &text[1].clone().into_bytes());
            let pair = |index: usize| ((small[index], flags[index]), text[index].clone());
            keeps_order(&pair(0), &pair(1));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let same = |encoded: Option<Vec<u8>>| encoded.is_none_or(|encoded| encoded == bytes);
            prop_assert!(same(<(u16, String)>::decode(&bytes).map(|pair| pair.encode().into_owned())));
            prop_assert!(same(bool::decode(&bytes).map(|flag| flag.encode().into_owned())));
            prop_assert!(same(i32::decode(&bytes).map(|number| number.encode().into_owned())));
            prop_assert!(same(<[u8; 3]>::decode(&bytes).map(|array| array.encode().into_owned())));
        }
    }
}
