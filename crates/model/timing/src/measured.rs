//! Timing of single instructions, from tables beside this file: as measured, or as makers describe it.
//! Not the classes of a machine file: a table refines those where it has an instruction.
//! Source: each table's head.

use longma_loongarch::Op;
use longma_topology::parts::InstructionTiming;
use rustc_hash::FxHashMap;

/// The table that a machine file names: what was measured, and what makers say of instructions that were not.
const fn texts(table: InstructionTiming) -> [&'static str; 2] {
    match table {
        InstructionTiming::La464 => [include_str!("measured-la464.tsv"), include_str!("described-la464.tsv")],
    }
}

/// What was measured of one instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// From issue to a dependent instruction's issue, cycles; the middle where it depends on the operands.
    pub latency_cycles: Option<f64>,
    /// Between independent instructions of the kind over all units, cycles.
    pub interval_cycles: f64,
}

/// A table, indexed by instruction.
pub(crate) fn table(table: InstructionTiming) -> Vec<Option<Measurement>> {
    let lines = texts(table).into_iter().flat_map(str::lines);
    let by_name: FxHashMap<&str, Measurement> = lines.filter_map(line).collect();
    let found = |op: Op| {
        let mnemonic = op.mnemonic();
        // Scalar floating point shares the vector units: where only the vector form was measured, its timing stands in.
        let vector = || by_name.get(format!("v{mnemonic}").as_str()).filter(|_| mnemonic.starts_with('f'));
        by_name.get(mnemonic).or_else(vector).copied()
    };
    Op::all().map(found).collect()
}

fn line(text: &str) -> Option<(&str, Measurement)> {
    let mut columns = text.split('\t');
    let (mnemonic, latency, interval) = (columns.next()?, columns.next()?, columns.next()?);
    let (least, most) = latency.split_once('-').unwrap_or((latency, latency));
    let latency_cycles = match (least.parse::<f64>(), most.parse::<f64>()) {
        (Ok(least), Ok(most)) => Some((least + most) / 2.0),
        _ => None,
    };
    Some((mnemonic, Measurement { latency_cycles, interval_cycles: interval.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_table_is_an_instruction_with_a_rate() {
        for (name, table) in InstructionTiming::WORDS {
            let lines = texts(*table).into_iter().flat_map(str::lines);
            let mut seen = std::collections::BTreeSet::new();
            for row in lines.filter(|line| !line.starts_with('#')) {
                let (mnemonic, measured) = line(row).unwrap_or_else(|| panic!("{name}: {row}"));
                assert!(Op::all().any(|op| op.mnemonic() == mnemonic), "{name}: {mnemonic}");
                assert!(measured.interval_cycles > 0.0, "{name}: {row}");
                assert!(seen.insert(mnemonic), "{name}: {mnemonic} twice");
            }
        }
    }

    #[test]
    fn a_scalar_instruction_takes_the_vector_forms_measurement() {
        let table = table(InstructionTiming::La464);
        assert_eq!(table[Op::FaddD as usize], table[Op::VfaddD as usize]);
        assert_eq!(table[Op::FaddD as usize].unwrap().latency_cycles, Some(5.0));
        assert_eq!(table[Op::VdivD as usize].unwrap().latency_cycles, Some(13.25));
        assert_eq!(table[Op::AddD as usize], None);
        // Described, not measured.
        assert_eq!(table[Op::DivW as usize].unwrap().latency_cycles, Some(12.0));
        assert_eq!(table[Op::DivD as usize].unwrap().latency_cycles, Some(14.5));
    }
}
