//! Which firmware runs on the modelled NICs, and how it is set up.
//! Not the hardware: that is the machine file's.
//! Source: Jiao Zhenqiang et al., "MyVIA: one of design and implementation of VIA based on Myrinet"; what they do not say is an estimate.

/// The firmware on the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Berkeley VIA: a linear loop, descriptors in host memory, translations fetched by the NIC.
    Bvia,
    /// MyVIA: physical descriptors in rings on the NIC, state machines that share the engines.
    Myvia,
}

/// How the firmware is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Which firmware.
    pub kind: Kind,
    /// Descriptors in a small ring. Estimate 32 (8 to 256): a work queue's worth at a few dozen bytes each; swept.
    pub small_ring: usize,
    /// Descriptors left in a small ring at which the NIC asks for more. Estimate: a quarter of the ring; swept.
    pub low_water: usize,
    /// Messages up to so many bytes skip MyVIA's state machines when nothing else is under way; 0: none do.
    pub fast_path: u32,
    /// Entries of BVIA's TLB in SRAM. Estimate 1024 (64 to 8192): 8 KiB of SRAM.
    pub tlb_entries: usize,
    /// All step costs times this: 0.5 for hand-made assembly, 2 for a compiler that does not optimise.
    pub cost_factor: f64,
}

impl Settings {
    /// As the firmware is taken to be set up.
    pub fn of(kind: Kind) -> Self {
        Self { kind, small_ring: 32, low_water: 8, fast_path: 0, tlb_entries: 1024, cost_factor: 1.0 }
    }

    /// Bytes of SRAM that rings and tables take, for `queues` work queues.
    pub fn table_bytes(&self, queues: u64) -> u64 {
        match self.kind {
            Kind::Bvia => 8 * self.tlb_entries as u64 + 8 * queues,
            Kind::Myvia => {
                queues * (16 + self.small_ring as u64 * u64::from(super::ring::DESCRIPTOR_WORDS + 8) * 4)
            }
        }
    }
}
