//! The workloads A to F of YCSB and the five of the ZB+-tree paper, as streams of operations on record numbers.
//!
//! Source: YCSB's workload files; the paper's evaluation, in which each workload follows a load of as many records.

use super::{Chooser, Distribution, Rng};
use serde::Serialize;

/// An operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Operation {
    /// Reads a record.
    Read(u64),
    /// Writes a record, which may have been deleted.
    Update(u64),
    /// Inserts a new record.
    Insert(u64),
    /// Deletes a record, which may already be deleted.
    Delete(u64),
    /// Reads consecutive records: the first record and the number of records.
    Scan(u64, u32),
    /// Reads a record and then writes it.
    ReadModifyWrite(u64),
}

/// The mix of operations, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Updates.
    pub update: u32,
    /// Inserts.
    pub insert: u32,
    /// Deletions.
    pub delete: u32,
    /// Scans.
    pub scan: u32,
    /// Reads followed by a write of the same record.
    pub read_modify_write: u32,
}

/// A workload to be run after a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// `A` to `F`, or `W1` to `W5`.
    pub name: &'static str,
    /// The mix of operations.
    pub mix: Mix,
    /// The distribution of records. The paper ran its workloads with several.
    pub distribution: Distribution,
}

/// YCSB's maxscanlength. Scan lengths are uniformly distributed from 1 to this.
const MAX_SCAN: u64 = 100;

const NONE: Mix = Mix { read: 0, update: 0, insert: 0, delete: 0, scan: 0, read_modify_write: 0 };

const fn paper(name: &'static str, insert: u32, delete: u32, read: u32) -> Workload {
    Workload { name, mix: Mix { insert, delete, read, ..NONE }, distribution: Distribution::Zipfian }
}

const fn ycsb(name: &'static str, mix: Mix) -> Workload {
    Workload { name, mix, distribution: Distribution::Zipfian }
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 11] = [
        ycsb("A", Mix { read: 50, update: 50, ..NONE }),
        ycsb("B", Mix { read: 95, update: 5, ..NONE }),
        ycsb("C", Mix { read: 100, ..NONE }),
        Workload { name: "D", mix: Mix { read: 95, insert: 5, ..NONE }, distribution: Distribution::Latest },
        ycsb("E", Mix { scan: 95, insert: 5, ..NONE }),
        ycsb("F", Mix { read: 50, read_modify_write: 50, ..NONE }),
        paper("W1", 40, 30, 30),
        paper("W2", 10, 10, 80),
        paper("W3", 25, 25, 50),
        paper("W4", 50, 50, 0),
        paper("W5", 0, 0, 100),
    ];

    /// Looks up a workload by name, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name.eq_ignore_ascii_case(name))
    }

    /// Returns the workload with another distribution.
    pub const fn with(self, distribution: Distribution) -> Self {
        Self { distribution, ..self }
    }

    /// The first `operations` operations after a load of `records` records, numbered from 0.
    pub fn stream(&self, records: u64, operations: u64, seed: u64) -> Stream {
        let expected = (operations as f64 * f64::from(self.mix.insert) / 100.0 * 2.0) as u64;
        let chooser = Chooser::new(self.distribution, records, expected);
        Stream { mix: self.mix, chooser, rng: Rng::new(seed), next: records, left: operations }
    }
}

/// A deterministic stream of a workload's operations.
#[derive(Clone, Debug)]
pub struct Stream {
    mix: Mix,
    chooser: Chooser,
    rng: Rng,
    /// The number of the next record to insert.
    next: u64,
    left: u64,
}

impl Iterator for Stream {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.left = self.left.checked_sub(1)?;
        let Mix { read, update, insert, delete, scan, .. } = self.mix;
        let kind = self.rng.below(100) as u32;
        let insert_from = read + update;
        if (insert_from..insert_from + insert).contains(&kind) || self.next == 0 {
            self.next += 1;
            return Some(Operation::Insert(self.next - 1));
        }
        let record = self.chooser.choose(self.next - 1, &mut self.rng);
        Some(if kind < read {
            Operation::Read(record)
        } else if kind < insert_from {
            Operation::Update(record)
        } else if kind < insert_from + insert + delete {
            Operation::Delete(record)
        } else if kind < insert_from + insert + delete + scan {
            Operation::Scan(record, self.rng.below(MAX_SCAN) as u32 + 1)
        } else {
            Operation::ReadModifyWrite(record)
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_mixture_and_inserts_records_in_order() {
        for workload in Workload::ALL {
            let Mix { read, update, insert, delete, scan, read_modify_write } = workload.mix;
            assert_eq!(read + update + insert + delete + scan + read_modify_write, 100, "{}", workload.name);
            let (mut counts, mut next) = ([0u32; 6], 5_000);
            for operation in workload.stream(5_000, 20_000, 7) {
                let kind = match operation {
                    Operation::Read(_) => 0,
                    Operation::Update(_) => 1,
                    Operation::Insert(record) => {
                        assert_eq!(record, next);
                        next += 1;
                        2
                    }
                    Operation::Delete(_) => 3,
                    Operation::Scan(_, length) => {
                        assert!((1..=100).contains(&length));
                        4
                    }
                    Operation::ReadModifyWrite(_) => 5,
                };
                counts[kind] += 1;
                let (Operation::Read(record)
                | Operation::Update(record)
                | Operation::Delete(record)
                | Operation::Insert(record)
                | Operation::Scan(record, _)
                | Operation::ReadModifyWrite(record)) = operation;
                assert!(record < next, "{operation:?}");
            }
            for (count, share) in
                counts.into_iter().zip([read, update, insert, delete, scan, read_modify_write])
            {
                assert!(count.abs_diff(share * 200) < 300, "{}: {counts:?}", workload.name);
            }
        }
    }

    #[test]
    fn a_seed_always_gives_the_same_stream() {
        let stream = || Workload::named("a").unwrap().stream(100, 1_000, 5).collect::<Vec<_>>();
        assert_eq!(stream(), stream());
    }
}
