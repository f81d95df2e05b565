//! Timing of individual instructions, from tables of measurements or vendor documentation in the same directory. An
//! entry of a table overrides the timing of the instruction's class in the machine file. The head of each table states
//! its source.

use longma_loongarch::Op;
use longma_topology::parts::InstructionTiming;
use rustc_hash::FxHashMap;

/// The texts of a table that a machine file can name: measurements, and vendors' descriptions of instructions that were
/// not measured.
const fn texts(table: InstructionTiming) -> [&'static str; 2] {
    match table {
        InstructionTiming::La464 => [include_str!("measured-la464.tsv"), include_str!("described-la464.tsv")],
    }
}

/// Measured timing of one instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// Cycles from issue to the issue of a dependent instruction; the midpoint if it depends on the operands.
    pub latency_cycles: Option<f64>,
    /// Cycles between independent instructions of this kind, over all units.
    pub interval_cycles: f64,
}

/// Reads a table, indexed by instruction.
pub(crate) fn table(table: InstructionTiming) -> Vec<Option<Measurement>> {
    let lines = texts(table).into_iter().flat_map(str::lines);
    let by_name: FxHashMap<&str, Measurement> = lines.filter_map(line).collect();
    let timing_of = |op: Op| {
        let mnemonic = op.mnemonic();
        // Scalar floating-point instructions use the vector units: if only the vector form was measured, its timing
        // applies.
        let vector = || by_name.get(format!("v{mnemonic}").as_str()).filter(|_| mnemonic.starts_with('f'));
        // Private variants of an instruction are as fast as the instruction itself.
        let plain = || by_name.get(mnemonic.strip_suffix(".aligned").or(mnemonic.strip_suffix(".exact"))?);
        by_name.get(mnemonic).or_else(vector).or_else(plain).copied()
    };
    Op::all().map(timing_of).collect()
}

fn line(text: &str) -> Option<(&str, Measurement)> {
    let mut columns = text.split('\t');
    let (mnemonic, latency, interval) = (columns.next()?, columns.next()?, columns.next()?);
    let (min, max) = latency.split_once('-').unwrap_or((latency, latency));
    let latency_cycles = match (min.parse::<f64>(), max.parse::<f64>()) {
        (Ok(min), Ok(max)) => Some((min + max) / 2.0),
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
            let mut ops_seen = std::collections::BTreeSet::new();
            for row in lines.filter(|line| !line.starts_with('#')) {
                let (mnemonic, measured) = line(row).unwrap_or_else(|| panic!("{name}: {row}"));
                assert!(Op::all().any(|op| op.mnemonic() == mnemonic), "{name}: {mnemonic}");
                assert!(measured.interval_cycles > 0.0, "{name}: {row}");
                assert!(ops_seen.insert(mnemonic), "{name}: {mnemonic} twice");
            }
        }
    }

    #[test]
    fn a_private_variant_uses_the_measurement_of_the_instruction() {
        let table = table(InstructionTiming::La464);
        assert_eq!(table[Op::VfrintDExact as usize], table[Op::VfrintD as usize]);
        assert_eq!(table[Op::XvldAligned as usize], table[Op::Xvld as usize]);
        assert!(table[Op::VfrintDExact as usize].is_some() && table[Op::XvldAligned as usize].is_some());
    }

    #[test]
    fn a_scalar_instruction_uses_the_measurement_of_its_vector_form() {
        let table = table(InstructionTiming::La464);
        assert_eq!(table[Op::FaddD as usize], table[Op::VfaddD as usize]);
        assert_eq!(table[Op::FaddD as usize].unwrap().latency_cycles, Some(5.0));
        assert_eq!(table[Op::VdivD as usize].unwrap().latency_cycles, Some(13.25));
        assert_eq!(table[Op::AddD as usize], None);
        // This latency is from the vendor's description.
        assert_eq!(table[Op::DivW as usize].unwrap().latency_cycles, Some(12.0));
        assert_eq!(table[Op::DivD as usize].unwrap().latency_cycles, Some(14.5));
    }
}
