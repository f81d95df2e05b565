//! Generates records: keys in pseudorandom order, and differing values. Unlike YCSB, every record is written exactly
//! once.
//! A step of SplitMix64 is a bijection of 64-bit numbers, so that all keys differ.

use clap::ValueEnum;
use longma_random::SplitMix64;
use serde::{Deserialize, Serialize};

/// Lengths of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Shape {
    /// Keys and values of 8 bytes.
    #[value(name = "8-8")]
    Small,
    /// Keys of 16 bytes and values of 100.
    #[value(name = "16-100")]
    Medium,
}

impl Shape {
    pub const ALL: [Self; 2] = [Self::Small, Self::Medium];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "8-8",
            Self::Medium => "16-100",
        }
    }

    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Small => 8,
            Self::Medium => 16,
        }
    }

    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Small => 8,
            Self::Medium => 100,
        }
    }

    /// Length of a key and its value in bytes.
    pub const fn record_bytes(self) -> u64 {
        (self.key_bytes() + self.value_bytes()) as u64
    }

    /// The key with the index `place` in ascending order.
    pub fn ascending_key(self, place: u64) -> Vec<u8> {
        let mut key = place.to_be_bytes().to_vec();
        key.resize(self.key_bytes(), 0);
        key
    }

    /// The key of record `number` in pseudorandom order.
    pub fn random_key(self, number: u64) -> Vec<u8> {
        self.ascending_key(mixed(number))
    }

    /// The value of record `number` after `version` updates.
    pub fn value(self, number: u64, version: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes() + 8);
        let mut word = number ^ version << 48;
        while value.len() < self.value_bytes() {
            word = mixed(word);
            value.extend(word.to_le_bytes());
        }
        value.truncate(self.value_bytes());
        value
    }
}

/// A pseudorandom bijection.
pub const fn mixed(number: u64) -> u64 {
    SplitMix64::new(number).next_u64()
}
