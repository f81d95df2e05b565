//! The choice of firmware for the modelled NICs, and its configuration.
//!
//! Source: Jiao Zhenqiang et al., "MyVIA: one of design and implementation of VIA based on Myrinet". Values not given
//! there are estimates.

/// The firmware on the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Berkeley VIA: a sequential loop, descriptors in host memory, translations fetched by the NIC.
    Bvia,
    /// MyVIA: physical descriptors in rings on the NIC, state machines that share the engines.
    Myvia,
}

/// The configuration of the firmware.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The firmware.
    pub kind: Kind,
    /// The number of descriptors in a small ring. Estimate: 32 (plausible: 8 to 256), enough for a work queue at a few
    /// dozen bytes each; varied in the experiments.
    pub small_ring: usize,
    /// The number of descriptors left in a small ring at which the NIC requests a refill. Estimate: a quarter of the
    /// ring; varied in the experiments.
    pub low_water: usize,
    /// The maximum size of messages that bypass MyVIA's state machines when the NIC is otherwise idle, bytes. 0
    /// disables the fast path.
    pub fast_path: u32,
    /// The number of entries of BVIA's TLB. Estimate: 1024 (plausible: 64 to 8192), which take 8 KiB of SRAM.
    pub tlb_entries: usize,
    /// A factor for all step costs: 0.5 for hand-written assembly, 2 for a compiler without optimization.
    pub cost_factor: f64,
}

impl Settings {
    /// The default configuration of a firmware.
    pub fn of(kind: Kind) -> Self {
        Self { kind, small_ring: 32, low_water: 8, fast_path: 0, tlb_entries: 1024, cost_factor: 1.0 }
    }

    /// The SRAM taken by rings and tables for `queues` work queues, bytes.
    pub fn table_bytes(&self, queues: u64) -> u64 {
        match self.kind {
            Kind::Bvia => 8 * self.tlb_entries as u64 + 8 * queues,
            Kind::Myvia => {
                queues * (16 + self.small_ring as u64 * u64::from(super::ring::DESCRIPTOR_WORDS + 8) * 4)
            }
        }
    }
}
