//! Offline check and repair of a map whose log may be damaged.

use crate::error::{LostBatches, Result};
use crate::open::Access;
use crate::options::Options;
use crate::store::{CheckReport, Store};
use longma_zoned_device::{Block, ZonedDevice};
use serde::Serialize;

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Batches of the log that were read and are in tables now.
    pub batches: u64,
    /// Batches of the log that were lost.
    pub lost_batches: Vec<LostBatches>,
    /// Damaged blocks of tables. They are left unchanged: reading one of their records is an error, and all other
    /// records can be read.
    pub damaged: Vec<(Block, String)>,
}

impl<D: ZonedDevice> Store<D> {
    /// Checks the map on a device, and its log, without writing to it. The map must not be open.
    ///
    /// # Errors
    /// Those of [`Store::open`], but not [`crate::Error::LogDamaged`]: damage is in the report.
    pub fn check_device(device: D, options: Options) -> Result<CheckReport> {
        let (store, log) = Self::recover(device, options, Access::Check)?;
        let mut report = store.check()?;
        report.problems.extend(log.lost.iter().map(|lost| {
            let block = Block(lost.block);
            (block, format!("{block} of the log is damaged, which loses {lost}: {}", lost.what))
        }));
        Ok(report)
    }

    /// Repairs the map on a device: the intact batches of the log become part of the map, the others are lost and reported. The
    /// map must not be open.
    ///
    /// # Errors
    /// Those of [`Store::open`], but not [`crate::Error::LogDamaged`].
    pub fn repair(device: D, options: Options) -> Result<RepairReport> {
        let (store, log) = Self::recover(device, options, Access::Repair)?;
        let damaged = store.check()?.problems;
        store.close()?;
        Ok(RepairReport { batches: log.batches, lost_batches: log.lost, damaged })
    }
}
