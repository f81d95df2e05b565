//! Predictors on sequences with known predictability.

use super::*;
use longma_random::SplitMix64;
use longma_topology::parts::IndirectPredictor;

/// The fraction of correct predictions in the second half of `outcomes`, which are pairs of address and direction.
fn accuracy(kind: Predictor, outcomes: impl Iterator<Item = (u64, bool)>) -> f64 {
    let mut direction = Direction::new(kind, None, Some(16384), None).unwrap();
    let right: Vec<bool> = outcomes
        .map(|(address, taken)| {
            direction.resolve(ResolvedBranch { address, target: address - 64, taken }) == taken
        })
        .collect();
    let half = &right[right.len() / 2..];
    half.iter().filter(|right| **right).count() as f64 / half.len() as f64
}

/// A random bit sequence.
fn random_bits() -> impl Iterator<Item = bool> {
    let mut random = SplitMix64::new(1);
    std::iter::repeat_with(move || random.below(2) != 0)
}

const LEARNING: [Predictor; 6] = [
    Predictor::Bimodal,
    Predictor::TwoLevel,
    Predictor::Gshare,
    Predictor::Tournament,
    Predictor::Perceptron,
    Predictor::Tage,
];

#[test]
fn a_branch_that_always_goes_one_way_is_learnt_by_all() {
    for name in LEARNING {
        for taken in [true, false] {
            let share = accuracy(name, (0..2000).map(|_| (0x1000, taken)));
            assert_eq!(share, 1.0, "{name:?}, taken {taken}");
        }
    }
    assert_eq!(
        accuracy(Predictor::Static, (0..100).map(|_| (0x1000, true))),
        1.0,
        "backward branches are predicted taken"
    );
}

#[test]
fn an_alternating_branch_needs_history() {
    for (name, min, max) in [
        (Predictor::Static, 0.5, 0.5),
        (Predictor::Bimodal, 0.0, 0.5),
        (Predictor::TwoLevel, 1.0, 1.0),
        (Predictor::Gshare, 1.0, 1.0),
        (Predictor::Tournament, 1.0, 1.0),
        (Predictor::Perceptron, 1.0, 1.0),
        (Predictor::Tage, 0.999, 1.0),
    ] {
        let share = accuracy(name, (0..4000).map(|i| (0x1000, i % 2 == 0)));
        assert!((min..=max).contains(&share), "{name:?}: {share}");
    }
}

#[test]
fn the_exit_of_a_short_loop_is_seen_by_history_of_its_length() {
    let loop_of = |trips: u32| (0..40_000u32).map(move |i| (0x1000, i % trips != trips - 1));
    for name in [Predictor::Gshare, Predictor::Tournament, Predictor::Tage] {
        let share = accuracy(name, loop_of(7));
        assert!(share > 0.999, "{name:?}: {share}");
    }
    let bimodal = accuracy(Predictor::Bimodal, loop_of(7));
    assert!((bimodal - 6.0 / 7.0).abs() < 0.01, "a counter mispredicts each loop exit: {bimodal}");
    let long = accuracy(Predictor::Tage, loop_of(40));
    assert!(long > 0.99, "40 iterations fit into the histories of TAGE: {long}");
    let gshare = accuracy(Predictor::Gshare, loop_of(40));
    assert!(gshare < 0.98, "40 iterations exceed the 14 branches of gshare: {gshare}");
}

#[test]
fn a_branch_that_repeats_another_needs_global_history() {
    let correlated = || random_bits().take(20_000).flat_map(|bit| [(0x1000, bit), (0x1010, bit)]);
    for name in [Predictor::Gshare, Predictor::Tournament, Predictor::Perceptron, Predictor::Tage] {
        let share = accuracy(name, correlated());
        assert!(share > 0.70, "{name:?} predicts the second of each pair: {share}");
    }
    for name in [Predictor::Bimodal, Predictor::TwoLevel] {
        let share = accuracy(name, correlated());
        assert!(share < 0.55, "{name:?} cannot beat chance: {share}");
    }
}

#[test]
fn no_predictor_learns_random_outcomes() {
    for name in LEARNING {
        let share = accuracy(name, random_bits().take(40_000).map(|bit| (0x1000, bit)));
        assert!((0.45..0.55).contains(&share), "{name:?}: {share}");
    }
}

#[test]
fn a_table_of_zero_or_too_many_entries_is_an_error() {
    assert!(Direction::new(Predictor::Tage, None, Some(0), None).is_err());
    assert!(Direction::new(Predictor::Gshare, None, Some(u32::MAX), None).is_err());
}

#[test]
fn the_smallest_tables_work() {
    for (_, kind) in Predictor::WORDS.iter().filter(|(_, kind)| *kind != Predictor::Plugin) {
        for entries in 1..10 {
            let mut direction = Direction::new(*kind, None, Some(entries), Some(1)).unwrap();
            for (i, taken) in random_bits().take(100).enumerate() {
                direction.resolve(ResolvedBranch { address: 4 * i as u64, target: 0, taken });
            }
        }
    }
}

#[test]
fn returns_are_predicted_as_deep_as_the_stack() {
    let mut stack = ReturnStack::new(4);
    (1..=6).for_each(|address| stack.push(address));
    let right: Vec<bool> = (1..=6).rev().map(|address| stack.pop(address)).collect();
    assert_eq!(right, [true, true, true, true, false, false]);
}

#[test]
fn the_target_buffer_forgets_the_least_recently_used_of_a_set() {
    let mut buffer = TargetBuffer::new(4);
    for branch in 1..=4 {
        assert!(!buffer.resolve(branch * 4, 0x100));
    }
    assert!(buffer.resolve(4, 0x100), "the first branch is still present and becomes the most recent");
    assert!(!buffer.resolve(20, 0x100));
    assert!(!buffer.resolve(8, 0x100), "the second branch was evicted");
    assert!(buffer.resolve(4, 0x100));
    assert!(!buffer.resolve(4, 0x200), "a changed target is mispredicted");
}

fn indirect(kind: IndirectPredictor) -> IndirectTargets {
    IndirectTargets::new(kind, None, None, None).unwrap()
}

#[test]
fn an_alternating_indirect_branch_is_predicted_by_path() {
    for kind in [IndirectPredictor::TargetCache, IndirectPredictor::Ittage] {
        let mut targets = indirect(kind);
        let mut resolve = |i: u64| targets.resolve(0x1000, 0x2000 + 0x40 * (i % 3));
        let right: Vec<bool> = (0..300).map(&mut resolve).collect();
        assert!(right[100..].iter().all(|right| *right), "{kind:?}");
    }
    let mut last = indirect(IndirectPredictor::LastTarget);
    assert!((0..300u64).all(|i| !last.resolve(0x1000, 0x2000 + 0x40 * (i % 3))));
}

/// Mispredictions in 10,000 executions of one call site whose 16 targets repeat with `period` in a random order.
fn mispredictions(targets: &mut IndirectTargets, period: usize, seed: u64) -> usize {
    let mut random = SplitMix64::new(seed);
    let order: Vec<u64> = (0..period).map(|_| 0x2000 + 0x80 * random.below(16)).collect();
    let sequence = order.iter().cycle().take(10_000);
    sequence.filter(|target| !targets.resolve(0x1000, **target)).count()
}

#[test]
fn a_repeating_order_of_targets_is_learnt_if_its_paths_fit_into_the_table() {
    for seed in 1..=8 {
        for (period, max) in [(16, 300), (64, 1250), (256, 3000)] {
            for kind in [IndirectPredictor::TargetCache, IndirectPredictor::Ittage] {
                let wrong = mispredictions(&mut indirect(kind), period, seed);
                assert!(wrong <= max, "{kind:?}, seed {seed}, period {period}: {wrong} of 10,000");
            }
        }
    }
}

#[test]
fn a_larger_table_of_indirect_targets_predicts_longer_orders() {
    for kind in [IndirectPredictor::TargetCache, IndirectPredictor::Ittage] {
        let wrong = |entries| {
            let mut targets = IndirectTargets::new(kind, None, Some(entries), None).unwrap();
            mispredictions(&mut targets, 512, 1)
        };
        let (small, large) = (wrong(256), wrong(8192));
        assert!(small > 2 * large && large < 2000, "{kind:?}: {small}, {large}");
    }
}

#[test]
fn only_ittage_sees_conditional_branches_before_an_indirect_one() {
    for (kind, min, max) in
        [(IndirectPredictor::TargetCache, 0.3, 0.7), (IndirectPredictor::Ittage, 0.0, 0.1)]
    {
        let mut targets = indirect(kind);
        let mut wrong = 0;
        for taken in random_bits().take(10_000) {
            targets.note_conditional(0x800, taken);
            wrong += u32::from(!targets.resolve(0x1000, if taken { 0x2000 } else { 0x3000 }));
        }
        let share = f64::from(wrong) / 10_000.0;
        assert!((min..=max).contains(&share), "{kind:?}: {share}");
    }
}

#[test]
fn the_smallest_and_largest_tables_of_indirect_targets_work() {
    for (_, kind) in IndirectPredictor::WORDS.iter().filter(|(_, kind)| *kind != IndirectPredictor::Plugin) {
        let lengths = kind.history().map_or([None; 2], |lengths| [Some(lengths.min), Some(lengths.max)]);
        for history in lengths {
            for entries in (1..10).chain([513, 1536]) {
                let mut targets = IndirectTargets::new(*kind, None, Some(entries), history).unwrap();
                mispredictions(&mut targets, 100, 1);
            }
        }
        assert!(IndirectTargets::new(*kind, None, Some(0), None).is_err());
        assert!(IndirectTargets::new(*kind, None, Some(u32::MAX), None).is_err());
    }
    assert!(IndirectTargets::new(IndirectPredictor::TargetCache, None, None, Some(0)).is_err());
    assert!(IndirectTargets::new(IndirectPredictor::Ittage, None, None, Some(257)).is_err());
}
