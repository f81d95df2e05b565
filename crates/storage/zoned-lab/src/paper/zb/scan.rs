//! Scans in both directions.
//!
//! Source: leaves are not linked in the paper's tree, so a scan descends from the head for each leaf.

use super::ZbTree;
use crate::paper::body::Body;
use longma_zoned::device::{Block, ZonedDevice};
use longma_zoned::error::Result;
use longma_zoned::map::Direction;
use std::ops::ControlFlow;

/// The callback for each key and value.
type Visit<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

impl<D: ZonedDevice> ZbTree<D> {
    pub(in crate::paper) fn scan_between(
        &mut self,
        range: (u64, u64),
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let _ = self.scan_under(self.root, self.root_level, range, direction, visit)?;
        Ok(())
    }

    fn scan_under(
        &mut self,
        at: Block,
        level: u32,
        range: (u64, u64),
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let head = self.read_head(at, level)?;
        for index in ordered(head.child(range.0), head.child(range.1), direction) {
            let (body, _) = self.view(level, &head.entries[index].1)?.into_body();
            let flow = if level == 1 {
                visit_leaf(&body, range, direction, visit)
            } else {
                self.scan_heads(&body, level, range, direction, visit)?
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn scan_heads(
        &mut self,
        body: &Body,
        level: u32,
        range: (u64, u64),
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        if body.entries.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        for child in ordered(body.child(range.0), body.child(range.1), direction) {
            let below = Block(body.entries[child].1);
            let flow = self.scan_under(below, level - 2, range, direction, visit)?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The indices `first..=last` in the given direction.
pub(in crate::paper) fn ordered(
    first: usize,
    last: usize,
    direction: Direction,
) -> impl Iterator<Item = usize> {
    (first..=last).map(move |index| match direction {
        Direction::Ascending => index,
        Direction::Descending => last - (index - first),
    })
}

/// Visits the entries of a leaf that are in a range.
pub(in crate::paper) fn visit_leaf(
    body: &Body,
    range: (u64, u64),
    direction: Direction,
    visit: &mut Visit<'_>,
) -> ControlFlow<()> {
    let first = body.entries.partition_point(|entry| entry.0 < range.0);
    let end = body.entries.partition_point(|entry| entry.0 <= range.1);
    if first < end {
        for index in ordered(first, end - 1, direction) {
            visit(body.entries[index].0, body.entries[index].1)?;
        }
    }
    ControlFlow::Continue(())
}
