//! The methods that both published trees share: constructors and statistics.

use super::cached_nodes::CachedNodes;
use super::counts::PaperCounts;
use super::fanout::Fanout;
use super::space::Contents;
use super::{CowTree, ZbTree};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::Result;

/// Implements the shared methods for a tree that has a constructor `with` and the fields `space` and `root_level`.
macro_rules! published {
    ($tree:ident) => {
        impl<D: ZonedDevice> $tree<D> {
            /// Creates an empty tree on `device`, whose sequential zones are reset.
            ///
            /// # Errors
            /// [`Error::Unsuitable`](longma_zoned::Error::Unsuitable) without sequential zones or with a fanout below
            /// 4; [`Error::Full`](longma_zoned::Error::Full) if there is no space for an empty tree.
            pub fn new(device: D, fanout: Fanout) -> Result<Self> {
                Self::with(device, fanout, Contents::OnDevice, CachedNodes::Nothing)
            }

            /// Creates an empty tree on a device that is used only for counting and timing, so that the contents of its
            /// blocks do not matter. Nodes selected by `kept` are in the host's memory, and reading them does not read
            /// the device.
            ///
            /// # Errors
            /// Those of `new`.
            pub fn counting(device: D, fanout: Fanout, kept: CachedNodes) -> Result<Self> {
                Self::with(device, fanout, Contents::InMemory(Default::default()), kept)
            }

            /// The statistics so far.
            pub const fn counts(&self) -> &PaperCounts {
                &self.space.counts
            }

            /// Resets the statistics, for example between a load and a workload.
            pub fn reset_counts(&mut self) {
                self.space.counts = PaperCounts::default();
            }

            /// The number of levels, including leaves and root. A ZB+-tree has 4, then 6, and so on.
            pub const fn layers(&self) -> u32 {
                self.root_level + 1
            }

            /// Blocks of sequential zones written since their last reset, and the total.
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
