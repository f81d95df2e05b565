//! Computes an engine's figures from the pieces of its measurement.

use crate::Outcome;
use crate::measure::{Phase, Piece, Task};
use serde::Serialize;

/// An engine's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub task: Task,
    /// Records per second, written in key order into a new map.
    pub load_per_s: f64,
    /// Records per second, written in random order into a new map.
    pub insert_per_s: f64,
    /// Lookups of existing keys per second.
    pub read_per_s: f64,
    /// Records per second when scanning in order.
    pub scan_per_s: f64,
    /// Operations per second: half lookups, half updates of existing keys.
    pub mixed_per_s: f64,
    /// Bytes written to the disk per byte of keys and values inserted in random order, including syncing, closing,
    /// reopening and closing.
    pub written_per_byte: Option<f64>,
    /// The same for the updates of the mixed phase.
    pub mixed_written_per_byte: Option<f64>,
    /// Size of the files after the random inserts, per byte of keys and values.
    pub space_per_byte: f64,
    /// Total time of all phases in seconds.
    pub seconds: f64,
    /// Processor time in microseconds of one random insert, one lookup, and one mixed operation.
    pub insert_processor_us: Option<f64>,
    pub read_processor_us: Option<f64>,
    pub mixed_processor_us: Option<f64>,
}

/// The figures of a task whose pieces are complete.
pub fn figures(task: &Task, pieces: &[Piece]) -> Outcome<Figures> {
    let of = |phase: Phase| pieces.iter().filter(move |piece| piece.task == *task && piece.phase == phase);
    let rate = |phase: Phase| {
        let operations: u64 = of(phase).map(|piece| piece.to - piece.from).sum();
        operations as f64 / of(phase).map(|piece| piece.seconds).sum::<f64>()
    };
    let written = |phase: Phase| {
        let payload: u64 = of(phase).map(|piece| piece.payload_bytes).sum();
        let bytes: Option<u64> = of(phase).map(|piece| piece.disk_bytes).sum();
        bytes.map(|bytes| bytes as f64 / payload as f64)
    };
    let processor_us = |phase: Phase, operations_each: u64| {
        let operations: u64 = of(phase).map(|piece| (piece.to - piece.from) * operations_each).sum();
        let seconds: Option<f64> = of(phase).map(|piece| piece.processor_seconds).sum();
        seconds.map(|seconds| seconds * 1e6 / operations as f64)
    };
    let last = of(Phase::Insert).next_back().ok_or("the insert phase has no piece")?;
    Ok(Figures {
        task: task.clone(),
        load_per_s: rate(Phase::Load),
        insert_per_s: rate(Phase::Insert),
        read_per_s: rate(Phase::Read),
        scan_per_s: rate(Phase::Scan),
        // Half of the operations of this phase are lookups.
        mixed_per_s: 2.0 * rate(Phase::Mixed),
        written_per_byte: written(Phase::Insert),
        mixed_written_per_byte: written(Phase::Mixed),
        space_per_byte: last.space_bytes as f64 / (task.records * task.shape.record_bytes()) as f64,
        seconds: pieces.iter().filter(|piece| piece.task == *task).map(|piece| piece.seconds).sum(),
        insert_processor_us: processor_us(Phase::Insert, 1),
        read_processor_us: processor_us(Phase::Read, 1),
        mixed_processor_us: processor_us(Phase::Mixed, 2),
    })
}
