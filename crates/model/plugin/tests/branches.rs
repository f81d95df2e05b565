//! Branch predictors as modules: what they observe, hostile ones, and the samples against references.

use std::collections::{HashMap, VecDeque};

use longma_plugin::{DirectionPlugin, PluginError, PredictorSizes, TargetPlugin};
use proptest::prelude::*;

const SIZES: PredictorSizes = PredictorSizes { entries: 64, history: 5 };
const GSHARE: &[u8] = include_bytes!("../samples/gshare.wasm");
const LAST_TARGET: &[u8] = include_bytes!("../samples/last_target.wasm");

fn direction(text: &str) -> Result<DirectionPlugin, PluginError> {
    DirectionPlugin::new(&wat::parse_str(text).expect("the test's module is valid"), SIZES)
}

fn targets(text: &str) -> Result<TargetPlugin, PluginError> {
    TargetPlugin::new(&wat::parse_str(text).expect("the test's module is valid"), SIZES)
}

#[test]
fn a_direction_is_predicted_before_the_module_learns_it() {
    // Predicts the outcome of the last branch whose address and target are the same.
    let text = "(module (global $key (mut i64) (i64.const 0)) (global $taken (mut i32) (i32.const 0)) \
        (func $key (param i64 i64) (result i64) (i64.add (local.get 0) (i64.mul (local.get 1) (i64.const 3)))) \
        (func (export \"predict\") (param i64 i64) (result i32) \
            (i32.mul (global.get $taken) (i64.eq (global.get $key) (call $key (local.get 0) (local.get 1))))) \
        (func (export \"train\") (param i64 i64 i32) \
            (global.set $key (call $key (local.get 0) (local.get 1))) (global.set $taken (local.get 2))))";
    let mut plugin = direction(text).unwrap();
    let outcomes = [(1, 5, true), (1, 5, true), (1, 6, true), (1, 6, false), (1, 6, true), (2, 6, true)];
    let predicted = outcomes.map(|(address, target, taken)| plugin.resolve(address, target, taken));
    assert_eq!(predicted, [false, true, false, true, false, false]);
    assert_eq!(plugin.failure(), None);
}

#[test]
fn a_target_is_predicted_before_the_module_learns_it() {
    let text = "(module (global $target (mut i64) (i64.const 0)) \
        (func (export \"start\") (param i32 i32) \
            (global.set $target (i64.extend_i32_u (i32.add (local.get 0) (local.get 1))))) \
        (func (export \"predict\") (param i64) (result i64) (i64.add (global.get $target) (local.get 0))) \
        (func (export \"train\") (param i64 i64) (global.set $target (local.get 1))) \
        (func (export \"conditional\") (param i64 i32) (global.set $target (i64.add (local.get 0) (i64.extend_i32_u (local.get 1))))))";
    let mut plugin = targets(text).unwrap();
    assert!(plugin.resolve(0, 69), "start gets the sizes");
    assert!(plugin.resolve(4, 73) && !plugin.resolve(0, 74));
    plugin.note_conditional(0x100, true);
    assert!(plugin.resolve(1, 0x102));
    assert_eq!(plugin.failure(), None);
}

#[test]
fn a_failure_is_kept_and_ends_the_calls() {
    for (body, expected) in [
        ("unreachable", "unreachable"),
        ("(loop $again (br $again))", "more than 10000000 instructions"),
        (
            "(drop (memory.grow (i32.const -1))) (i32.store (i32.const 0x7fffffff) (i32.const 0))",
            "out of bounds",
        ),
    ] {
        let text = format!(
            "(module (memory 1) (func (export \"predict\") (param i64 i64) (result i32) (i32.const 1)) \
            (func (export \"train\") (param i64 i64 i32) {body}))"
        );
        let mut plugin = direction(&text).unwrap();
        assert!(plugin.resolve(0, 0, true));
        let failure = plugin.failure().unwrap_or_else(|| panic!("{body} failed")).to_string();
        assert!(failure.starts_with("`train` failed: ") && failure.contains(expected), "{failure}");
        assert!(!plugin.resolve(0, 0, true), "a failed predictor is no longer called");
        let text = format!(
            "(module (memory 1) (func (export \"predict\") (param i64) (result i64) (i64.const 8)) \
            (func (export \"train\") (param i64 i64) {body}))"
        );
        let mut plugin = targets(&text).unwrap();
        assert!(plugin.resolve(0, 8));
        assert!(plugin.failure().unwrap().to_string().contains(expected));
        assert!(!plugin.resolve(0, 8) && !plugin.resolve(0, 0));
        plugin.note_conditional(0, true);
    }
}

#[test]
fn what_a_module_lacks_is_named() {
    let predict = "(func (export \"predict\") (param i64 i64) (result i32) (i32.const 0))";
    let train = "(func (export \"train\") (param i64 i64 i32))";
    for (text, expected) in [
        ("(module)".to_string(), "it must export `predict(address: i64, target: i64) -> i32`"),
        (format!("(module {predict})"), "it must export `train(address: i64, target: i64, taken: i32)`"),
        (
            format!("(module {predict} {train} (func (export \"start\") (param i32)))"),
            "it must export `start(table_entries: i32, history_bits: i32)`, or nothing of this name",
        ),
        (
            format!("(module (import \"env\" \"memset\" (func)) {predict} {train})"),
            "it imports `env.memset`, which does not exist for branch predictors",
        ),
    ] {
        let error = direction(&text).map(drop).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let predict = "(func (export \"predict\") (param i64) (result i64) (i64.const 0))";
    let train = "(func (export \"train\") (param i64 i64))";
    for (text, expected) in [
        ("(module)".to_string(), "it must export `predict(address: i64) -> i64`"),
        (format!("(module {predict})"), "it must export `train(address: i64, target: i64)`"),
        (
            format!("(module {predict} {train} (func (export \"conditional\")))"),
            "it must export `conditional(address: i64, taken: i32)`, or nothing of this name",
        ),
    ] {
        let error = targets(&text).map(drop).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(matches!(DirectionPlugin::new(b"\x7fELF", SIZES), Err(PluginError::Invalid(_))));
}

proptest! {
    /// Against counters in a map, by the bits of the address and the outcomes that select them (McFarling, 1993).
    #[test]
    fn gshare_is_as_published(
        (bits, length) in (1usize..12).prop_flat_map(|bits| (Just(bits), 1..=bits)),
        branches in prop::collection::vec((0u64..64, any::<bool>()), 0..500),
    ) {
        let sizes = PredictorSizes { entries: 1 << bits, history: length as u32 };
        let mut plugin = DirectionPlugin::new(GSHARE, sizes).unwrap();
        let mut counters: HashMap<Vec<bool>, i32> = HashMap::new();
        // The newest outcome is the first.
        let mut history: VecDeque<bool> = vec![false; length].into();
        for (number, taken) in branches {
            let address = 4 * number;
            // The newest outcome changes the lowest of the index bits that the history reaches.
            let index = (0..bits).map(|bit| {
                let outcome = bit.checked_sub(bits - length).is_some_and(|age| history[age]);
                (number >> bit & 1 == 1) != outcome
            });
            let counter = counters.entry(index.collect()).or_insert(1);
            prop_assert_eq!(plugin.resolve(address, 0, taken), *counter >= 2);
            *counter = (*counter + if taken { 1 } else { -1 }).clamp(0, 3);
            history.push_front(taken);
            history.pop_back();
        }
        prop_assert_eq!(plugin.failure(), None);
    }

    /// Against a list of branches for each set, the least recently used first.
    #[test]
    fn last_target_forgets_the_least_recently_used_branch_of_a_set(
        sets in 0u32..4, branches in prop::collection::vec((1u64..40, 1u64..4), 0..500),
    ) {
        let sizes = PredictorSizes { entries: 4 << sets, history: 0 };
        let mut plugin = TargetPlugin::new(LAST_TARGET, sizes).unwrap();
        let mut lists: Vec<Vec<(u64, u64)>> = vec![Vec::new(); 1 << sets];
        for (branch, target) in branches {
            let (branch, target) = (4 * branch, 0x1000 * target);
            let list = &mut lists[(branch / 4) as usize % (1 << sets)];
            let known = list.iter().position(|entry| entry.0 == branch).map(|at| list.remove(at));
            prop_assert_eq!(plugin.resolve(branch, target), known == Some((branch, target)));
            list.push((branch, target));
            if list.len() > 4 {
                list.remove(0);
            }
        }
        prop_assert_eq!(plugin.failure(), None);
    }

    #[test]
    fn damaged_modules_never_panic(position: usize, value: u8) {
        let damaged = |module: &[u8]| {
            let mut bytes = module.to_vec();
            bytes[position % module.len()] = value;
            bytes
        };
        if let Ok(mut plugin) = DirectionPlugin::new(&damaged(GSHARE), SIZES) {
            plugin.resolve(8, 4, true);
        }
        if let Ok(mut plugin) = TargetPlugin::new(&damaged(LAST_TARGET), SIZES) {
            plugin.resolve(8, 4);
            plugin.note_conditional(8, true);
        }
    }
}
