//! Reports keys that have no effect on the machine that they are in.

use crate::parts::{Branch, LoadOrder, MachineFile, MemoryOrder, Predictor};
use crate::read::{Marks, Problems};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    for core in file.cores.values() {
        core.branch.iter().for_each(|branch| check_branch(branch, problems));
        core.memory_order.iter().for_each(|order| check_order(order, problems));
    }
}

/// Warns about `key`, if the file sets it. A warning rather than an error, so that a study can change the policy alone.
fn unused(marks: &Marks, key: &str, is_set: bool, with: &str, problems: &mut Problems) {
    if is_set && marks.sound(&[key]) {
        let message = format!("`{key}` has no effect with {with}");
        problems.warn(marks.key(key), message, "no effect", "remove the key".into());
    }
}

fn check_branch(branch: &Branch, problems: &mut Problems) {
    let marks = &branch.marks;
    if marks.sound(&["predictor"]) {
        let with = format!("the predictor \"{}\"", branch.predictor.word());
        let is_static = branch.predictor == Predictor::Static;
        unused(marks, "table_entries", is_static && branch.table_entries.is_some(), &with, problems);
        let ignores = is_static || branch.predictor == Predictor::Bimodal;
        unused(marks, "history_bits", ignores && branch.history_bits.is_some(), &with, problems);
    }
    let (Some(history), true) = (branch.indirect_history, marks.sound(&["indirect", "indirect_history"])) else {
        return;
    };
    match branch.indirect.history() {
        None => {
            let with = format!("the predictor \"{}\"", branch.indirect.word());
            unused(marks, "indirect_history", true, &with, problems);
        }
        Some(lengths) if (lengths.min..=lengths.max).contains(&history) => {}
        Some(lengths) => {
            let message =
                format!("the predictor \"{}\" cannot have a history of {history}", branch.indirect.word());
            let help = format!("give a number from {} to {}", lengths.min, lengths.max);
            problems.error(marks.key("indirect_history"), message, "here", help);
        }
    }
}

fn check_order(order: &MemoryOrder, problems: &mut Problems) {
    let marks = &order.marks;
    let has_table = matches!(order.loads, LoadOrder::Counters | LoadOrder::StoreSets);
    if marks.sound(&["loads"]) {
        let with = format!("the policy \"{}\"", order.loads.word());
        unused(marks, "table_entries", !has_table && order.table_entries.is_some(), &with, problems);
    }
}
