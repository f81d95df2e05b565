//! Records of individual instructions: the pipeline stages of the first instructions of a run, for the Konata viewer,
//! and counts of all instructions.
//!
//! Source: the Kanata log format, version 4 (shioyadan/Konata, docs/kanata-log-format.md).

use std::fmt::Write;

use longma_loongarch::Instruction;

use crate::instruction_counts::InstructionLog;

/// The cycle in which an instruction entered each stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub address: u64,
    pub instruction: Instruction,
    pub fetch: u64,
    pub dispatch: u64,
    pub issue: u64,
    pub complete: u64,
    pub retire: u64,
}

/// The log of a run.
#[derive(Debug, Default)]
pub(crate) struct PipelineLog {
    limit: usize,
    rows: Vec<Stages>,
    /// The counts of single instructions, if they are requested.
    pub counts: Option<InstructionLog>,
}

impl PipelineLog {
    /// Discards the log and records the next `limit` instructions.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.rows.clear();
    }

    /// Returns whether individual instructions are recorded.
    #[inline]
    pub fn observes(&self) -> bool {
        self.is_open() | self.counts.is_some()
    }

    /// Returns whether the stages of the next instruction are recorded.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.rows.len() < self.limit
    }

    /// Records an instruction.
    #[cold]
    pub fn push(&mut self, stages: Stages) {
        self.rows.push(stages);
    }

    /// Formats the log for Konata; `None` if it is empty.
    pub fn to_kanata(&self) -> Option<String> {
        let first = self.rows.iter().map(|row| row.fetch).min()?;
        // Commands must be sorted by cycle, and in program order within a cycle.
        let mut events: Vec<(u64, usize, String)> = Vec::new();
        for (id, row) in self.rows.iter().enumerate() {
            let start = format!("I\t{id}\t{id}\t0\nL\t{id}\t0\t{:x}: {}", row.address, row.instruction);
            events.push((row.fetch, id, start));
            let stages = [(row.fetch, "F"), (row.dispatch, "Ds"), (row.issue, "X"), (row.complete, "Cm")];
            for (cycle, stage) in stages {
                events.push((cycle, id, format!("S\t{id}\t0\t{stage}")));
            }
            events.push((row.retire, id, format!("R\t{id}\t{id}\t0")));
        }
        events.sort_by_key(|event| (event.0, event.1));
        let mut text = format!("Kanata\t0004\nC=\t{first}\n");
        let mut now = first;
        for (cycle, _, command) in events {
            if cycle > now {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "C\t{}", cycle - now);
                now = cycle;
            }
            let _ = writeln!(text, "{command}");
        }
        Some(text)
    }
}
