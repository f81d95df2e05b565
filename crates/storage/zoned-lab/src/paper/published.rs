//! What both published trees are asked for alike: how they are made, and what they counted and take.
//! Not their operations: see `zb` and `cow`; as ordered maps: see `map`.

use super::counts::PaperCounts;
use super::fanout::Fanout;
use super::kept::Kept;
use super::space::Contents;
use super::{CowTree, ZbTree};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::Result;

/// Gives a tree its public beginnings and figures, over its own `with` and its fields `space` and `root_level`.
macro_rules! published {
    ($tree:ident) => {
        impl<D: ZonedDevice> $tree<D> {
            /// An empty tree on `device`, whose sequential zones are reset.
            ///
            /// # Errors
            /// [`Error::Unsuitable`](longma_zoned::Error::Unsuitable) without sequential zones or with a fanout below 4;
            /// [`Error::Full`](longma_zoned::Error::Full) without room for an empty tree.
            pub fn new(device: D, fanout: Fanout) -> Result<Self> {
                Self::with(device, fanout, Contents::OnDevice, Kept::Nothing)
            }

            /// The same for a device that is only counted and timed: what its blocks hold is not used. The host keeps some nodes in
            /// memory, so that reading them is no read of the device.
            ///
            /// # Errors
            /// As for `new`.
            pub fn counting(device: D, fanout: Fanout, kept: Kept) -> Result<Self> {
                Self::with(device, fanout, Contents::Beside(Default::default()), kept)
            }

            /// What it did so far.
            pub const fn counts(&self) -> &PaperCounts {
                &self.space.counts
            }

            /// Forgets what it did so far: for measuring a workload after a load.
            pub fn reset_counts(&mut self) {
                self.space.counts = PaperCounts::default();
            }

            /// How many layers of nodes there are, leaves and root included; a ZB+-tree has 4, then 6, and so on.
            pub const fn layers(&self) -> u32 {
                self.root_level + 1
            }

            /// Blocks of sequential zones written since their reset, and all there are.
            pub fn sequential_used(&self) -> (u64, u64) {
                self.space.sequential_used()
            }

            /// The device.
            pub const fn device(&self) -> &D {
                &self.space.device
            }
        }
    };
}

published!(ZbTree);
published!(CowTree);
