//! Runtime settings.

/// When a change becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the call that made it returns: each batch ends with a flush of the device.
    EachBatch,
    /// At the next [`Store::sync`] or flush. Until then, a batch is in the device's write cache or in the page cache of a file. It survives a killed
    /// process. A power cut may lose the newest batches, but leaves no gap, and the map opens without an error. A damaged batch is always an error
    /// ([`crate::Error::LogDamaged`]), even if a power cut could have lost it.
    Relaxed,
}

/// Runtime settings of a map. None of them is stored on the device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for blocks, indexes and filters that were read, bytes.
    pub cache_bytes: u64,
    /// Memory for changes that are not in a table yet, bytes. One half is filled while the other half is written. Each
    /// older snapshot may keep another half.
    pub write_buffer_bytes: u64,
    /// When a change becomes durable.
    pub durability: Durability,
}

impl Options {
    /// Settings with `cache_bytes` of cache, a write buffer of half of that within 1 to 128 MiB, and durability with
    /// each batch.
    pub fn with_cache(cache_bytes: u64) -> Self {
        let write_buffer_bytes = (cache_bytes / 2).clamp(1 << 20, 128 << 20);
        Self { cache_bytes, write_buffer_bytes, durability: Durability::EachBatch }
    }
}

impl Default for Options {
    /// 256 MiB of cache, 128 MiB of write buffer, durability with each batch.
    fn default() -> Self {
        Self::with_cache(256 << 20)
    }
}
