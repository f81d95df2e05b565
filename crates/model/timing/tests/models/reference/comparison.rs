//! Compares the timing models with the reference, instruction by instruction.

use longma_timing::{FetchOptions, ModelKind, TimingModel};
use proptest::prelude::*;

use super::{
    OPERATIONS, PIPELINED, Sizes, Stages, in_order,
    memory::{Memory, Translated},
    out_of_order,
    random::{Shape, shapes, sizes},
};

/// Number of random programs per test; `LONGMA_CORE_CASES=100000` runs more.
pub fn cases(few: u32) -> ProptestConfig {
    let asked = std::env::var("LONGMA_CORE_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(few);
    // A test may reject up to half of its programs, for example those without the kind of load that it needs.
    ProptestConfig { cases, max_global_rejects: 1024 + cases, ..ProptestConfig::default() }
}

/// Dispatch, issue, completion and retirement of each instruction according to the pipeline log.
fn modelled(kind: ModelKind, sizes: Sizes, shape: &Shape) -> Vec<[u64; 4]> {
    let (executed, program) = shape.run();
    let fetch = FetchOptions { hit_cycles: 4, line_bytes: 64 };
    let mut model = TimingModel::new(&sizes.core(), Some(kind), fetch).unwrap();
    model.log_pipeline(executed.len());
    program.cycles(&mut model, &mut Memory(Translated::new(shape.refill_cycles)));
    stages_of(&model.pipeline_log().unwrap(), executed.len())
}

/// Parses a log in Konata's format for `instructions` instructions.
pub fn stages_of(log: &str, instructions: usize) -> Vec<[u64; 4]> {
    let (mut now, mut stages) = (0, vec![[u64::MAX; 4]; instructions]);
    for line in log.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let stage = match words[..] {
            ["C=" | "C", cycles] => {
                now += cycles.parse::<u64>().unwrap();
                continue;
            }
            ["S", _, _, "Ds"] => 0,
            ["S", _, _, "X"] => 1,
            ["S", _, _, "Cm"] => 2,
            ["R", ..] => 3,
            _ => continue,
        };
        stages[words[1].parse::<usize>().unwrap()][stage] = now;
    }
    stages
}

fn stage_times(stages: &[Stages]) -> Vec<[u64; 4]> {
    let all = |stages: &Stages| {
        [stages.dispatched, stages.issued, stages.done, stages.retired].map(|when| when.unwrap())
    };
    stages.iter().map(all).collect()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_in_order_model_matches_the_reference(shape in shapes(OPERATIONS.len()), sizes in sizes()) {
        let expected = stage_times(&in_order::run(sizes, &shape.run().0));
        prop_assert_eq!(modelled(ModelKind::InOrder, sizes, &shape), expected);
    }

    #[test]
    fn the_out_of_order_model_matches_the_reference(shape in shapes(PIPELINED), sizes in sizes()) {
        let expected = stage_times(&out_of_order::run(sizes, &shape.run().0));
        prop_assert_eq!(modelled(ModelKind::OutOfOrder, sizes, &shape), expected);
    }
}
