//! Reports keys that have no effect on the machine that they are in.

use crate::parts::{
    Branch, Cache, CacheKind, Coherence, Core, Inclusion, IndirectPredictor, Isa, LoadOrder, MachineFile,
    MemoryOrder, Predictor, WritePolicy,
};
use crate::read::{Problems, SourcePositions};

/// The kind of parts that are modules.
const PLUGIN: &str = "plugin";

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    for core in file.cores.values() {
        if let Some(branch) = &core.branch {
            check_branch(branch, problems);
            check_branch_modules(branch, problems);
        }
        core.memory_order.iter().for_each(|order| check_order(order, problems));
        check_threads(core, problems);
    }
    for (name, cache) in file.caches.iter() {
        check_cache_modules(cache, problems);
        let is_private = file.cores.values().any(|core| core.caches.iter().any(|own| **own == **name));
        if cache.level == 1 {
            check_first_level(cache, problems);
        } else if is_private {
            check_private(cache, problems);
        } else {
            check_shared(file, cache, problems);
        }
    }
}

/// Rejects the value of `key`.
fn refuse(marks: &SourcePositions, key: &str, message: &str, help: &str, problems: &mut Problems) {
    if marks.sound(&[key]) {
        problems.error(marks.key(key), message.into(), "no effect", help.into());
    }
}

fn check_cache_modules(cache: &Cache, problems: &mut Problems) {
    let marks = &cache.marks;
    let keys = ["replacement", "replacement_module"];
    let has_module = cache.replacement_module.is_some();
    check_module(marks, keys, (cache.replacement.word(), has_module), problems);
    if let Some(prefetcher) = &cache.prefetcher {
        let has_module = prefetcher.module.is_some();
        check_module(&prefetcher.marks, ["kind", "module"], (prefetcher.kind.word(), has_module), problems);
    }
}

fn check_branch_modules(branch: &Branch, problems: &mut Problems) {
    let Branch { predictor, predictor_module, indirect, indirect_module, marks, .. } = branch;
    let keys = ["predictor", "predictor_module"];
    check_module(marks, keys, (predictor.word(), predictor_module.is_some()), problems);
    let keys = ["indirect", "indirect_module"];
    check_module(marks, keys, (indirect.word(), indirect_module.is_some()), problems);
}

/// Checks that a part of the kind "plugin" has a module. The first key states the kind, the second the module.
fn check_module(
    marks: &SourcePositions,
    [kind, module]: [&'static str; 2],
    (word, has_module): (&str, bool),
    problems: &mut Problems,
) {
    let is_plugin = word == PLUGIN;
    if is_plugin && !has_module && marks.sound(&[kind, module]) {
        let (message, help) =
            (format!("a plug-in needs its `{module}`"), format!("add `{module} = \"NAME.wasm\"`"));
        problems.error(marks.key(kind), message, "no module", help);
    }
    if marks.sound(&[kind]) {
        unused(marks, module, !is_plugin && has_module, &format!("the {kind} \"{word}\""), problems);
    }
}

/// Models run programs for LoongArch only; on other cores, the number of threads only affects an operating system's
/// view.
fn check_threads(core: &Core, problems: &mut Problems) {
    if core.threads > 1 && core.isa == Isa::LoongArch64 && core.marks.sound(&["isa"]) {
        let message = format!("a modelled core runs one thread, not {}", core.threads);
        let help = "give `threads = 1`; two cores that share caches come closest to two threads";
        refuse(&core.marks, "threads", &message, help, problems);
    }
}

fn check_first_level(cache: &Cache, problems: &mut Problems) {
    let marks = &cache.marks;
    if cache.banks > 1 {
        let message =
            "`banks` has no effect on a first-level cache: the core's memory units access it in parallel";
        refuse(marks, "banks", message, "remove the key", problems);
    }
    if cache.kind == CacheKind::Instruction && cache.write == WritePolicy::Through {
        let message = "`write` has no effect on an instruction cache";
        refuse(marks, "write", message, "remove the key", problems);
    }
    if cache.inclusion != Inclusion::NonInclusive {
        let message = "`inclusion` has no effect on a first-level cache: there is no level above";
        refuse(marks, "inclusion", message, "remove the key", problems);
    }
    check_windows(cache, problems);
}

fn check_private(cache: &Cache, problems: &mut Problems) {
    if cache.banks > 1 && cache.bandwidth.is_none() {
        let message = "`banks` has no effect on a private cache without a `bandwidth`";
        refuse(&cache.marks, "banks", message, "add the `bandwidth` of a bank, or remove the key", problems);
    }
    check_windows(cache, problems);
}

/// Locks and DCA are properties of the cache that devices reach.
fn check_windows(cache: &Cache, problems: &mut Problems) {
    let parts = [
        ("lock", cache.lock.as_ref().map(|lock| &lock.marks)),
        ("dca", cache.dca.as_ref().map(|dca| &dca.marks)),
    ];
    for (key, marks) in parts.into_iter().filter_map(|(key, marks)| Some((key, marks?))) {
        let message = format!("`{key}` has no effect on a private cache");
        problems.error(marks.at(), message, "no effect", "move it to the shared cache".into());
    }
}

fn check_shared(file: &MachineFile, cache: &Cache, problems: &mut Problems) {
    let marks = &cache.marks;
    if cache.write == WritePolicy::Through {
        let message = "`write` has no effect on a shared cache: it writes back";
        refuse(marks, "write", message, "remove the key", problems);
    }
    if cache.inclusion != Inclusion::Inclusive || !marks.sound(&["inclusion"]) {
        return;
    }
    let message = "an inclusive shared cache keeps a directory in its tags, so that no cache snoops";
    let help = "give \"directory\", or another `inclusion` of the shared cache";
    if cache.coherence == Coherence::Snoop {
        refuse(marks, "coherence", message, help, problems);
    }
    // The private caches above the shared cache.
    let above = file.caches.values().filter(|other| other.level < cache.level);
    for other in above.filter(|other| other.coherence == Coherence::Snoop) {
        refuse(&other.marks, "coherence", message, help, problems);
    }
}

/// Warns about `key`, if the file sets it. This is a warning rather than an error, so that a study can change only the
/// policy.
fn unused(marks: &SourcePositions, key: &str, is_set: bool, with: &str, problems: &mut Problems) {
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
    let (Some(history), true) = (branch.indirect_history, marks.sound(&["indirect", "indirect_history"]))
    else {
        return;
    };
    match branch.indirect.history() {
        None if branch.indirect == IndirectPredictor::Plugin => {}
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
