//! Garbage collection of one sequential zone when there is no space left to append. It is not crash-safe and serves
//! only to count zone resets.
//!
//! Source: the paper counts zone resets but does not describe the collection.

use super::{Kinds, ZbTree};
use crate::paper::body::Body;
use crate::paper::counts::NodeKind;
use crate::paper::head::Head;
use longma_zoned::device::{Block, ZoneNumber, ZonedDevice};
use longma_zoned::error::{Error, Result};
use std::sync::Arc;

/// A head with children in the zone being collected, and those children.
struct Found {
    at: Block,
    level: u32,
    head: Arc<Head>,
    bodies: Vec<(usize, Arc<Body>)>,
}

impl<D: ZonedDevice> ZbTree<D> {
    /// Ensures that there is space for the next operation: two nodes for each pair of levels.
    pub(super) fn make_room(&mut self) -> Result<()> {
        let needed = u64::from(self.root_level) + 3;
        while self.space.room() < needed {
            let free = self.space.room();
            let full = || Error::Full { device: self.space.device.name(), needed, free, held: 0 };
            let zone = self.space.zone_with_most_garbage().ok_or_else(full)?;
            self.collect(zone)?;
        }
        Ok(())
    }

    fn collect(&mut self, zone: ZoneNumber) -> Result<()> {
        let mut found = Vec::new();
        self.find_in(zone, self.root, self.root_level, &mut found)?;
        self.space.reset(zone)?;
        for Found { at, level, mut head, bodies } in found {
            for (index, body) in bodies {
                let addr = self.space.append(NodeKind::Collected, Kinds::under(level).warmth, &body)?;
                Arc::make_mut(&mut head).entries[index].1.addr = addr;
            }
            self.space.write(NodeKind::Collected, at, &head)?;
        }
        Ok(())
    }

    fn find_in(&mut self, zone: ZoneNumber, at: Block, level: u32, found: &mut Vec<Found>) -> Result<()> {
        let head = self.read_head(at, level)?;
        let mut bodies = Vec::new();
        for (index, (_, ptr)) in head.entries.iter().enumerate() {
            if self.space.is_in(ptr.addr, zone) {
                bodies.push((index, self.space.read::<Body>(NodeKind::Collected, ptr.addr)?));
            }
            if level > 1 {
                let (body, _) = self.view(level, ptr)?.into_body();
                for &(_, below) in &body.entries {
                    self.find_in(zone, Block(below), level - 2, found)?;
                }
            }
        }
        if !bodies.is_empty() {
            found.push(Found { at, level, head, bodies });
        }
        Ok(())
    }
}
