//! An engine's figures, summed up from the pieces of its measurement.
//! Not how they are printed: see `table`.

use crate::Outcome;
use crate::measure::{Phase, Piece, Task};
use serde::Serialize;

/// How an engine did.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub task: Task,
    /// Records a second, written in the order of their keys into a new map.
    pub load_per_s: f64,
    /// Records a second, written in random order into a new map.
    pub insert_per_s: f64,
    /// Lookups a second of keys that are there.
    pub read_per_s: f64,
    /// Records a second, all in order.
    pub scan_per_s: f64,
    /// Operations a second: half lookups, half new values for keys that are there.
    pub mixed_per_s: f64,
    /// Bytes written to the disk for each byte of keys and values that was inserted in random order, until all was synced, closed, opened
    /// again and closed.
    pub written_per_byte: Option<f64>,
    /// The same while half of the operations of the mixture gave keys new values.
    pub mixed_written_per_byte: Option<f64>,
    /// Bytes of the files after the random inserts, for each byte of keys and values.
    pub space_per_byte: f64,
    /// What all phases together took, seconds.
    pub seconds: f64,
    /// Processor time of one random insert, of a lookup and of half a pair of the mixture, microseconds.
    pub insert_processor_us: Option<f64>,
    pub read_processor_us: Option<f64>,
    pub mixed_processor_us: Option<f64>,
}

/// The figures of a task all of whose pieces are there.
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
    let last = of(Phase::Insert).next_back().ok_or("there is no piece of inserting")?;
    Ok(Figures {
        task: task.clone(),
        load_per_s: rate(Phase::Load),
        insert_per_s: rate(Phase::Insert),
        read_per_s: rate(Phase::Read),
        scan_per_s: rate(Phase::Scan),
        // Of an operation of this phase one half is a lookup.
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
