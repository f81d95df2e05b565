//! Time in which the program does not run: idle time, kernel time, and time outside the measured region.

use longma_loongarch::Op;
use longma_sim::Cycle;
use longma_timing::{
    Cause,
    ModelKind::{self, Counting, InOrder, OutOfOrder},
    TimingModel,
};

use crate::program::*;

const TIMED: [ModelKind; 2] = [InOrder, OutOfOrder];

/// A core that has executed 400 additions.
fn after_some_work(kind: ModelKind) -> (Program, TimingModel) {
    let program = Program::straight(&repeat(&[op(Op::AddiD, 4, 4, 0)], 400), apart);
    let mut model = model(kind, &[]);
    program.cycles(&mut model, &mut FixedData::new(4));
    (program, model)
}

fn stack_cycles(model: &TimingModel) -> f64 {
    Cause::ALL.iter().map(|cause| model.stack().unwrap().cycles(*cause)).sum()
}

#[test]
fn skipped_time_passes_and_is_not_counted() {
    for kind in TIMED {
        let (_, mut model) = after_some_work(kind);
        let (before, counted) = (model.now(), stack_cycles(&model));
        model.pass_to(Cycle(before.0 + 5000));
        assert_eq!(model.now(), Cycle(before.0 + 5000));
        // At most the rest of the current cycle is charged to its instructions.
        assert!(stack_cycles(&model) - counted < 1.0, "{kind:?}: {} more", stack_cycles(&model) - counted);
        assert_eq!(model.stack().unwrap().slots(Cause::Idle), 0, "{kind:?}");
        assert_eq!(model.instructions(), 400);
    }
    let (_, mut counting) = after_some_work(Counting);
    counting.pass_to(Cycle(9000));
    assert_eq!((counting.now(), counting.instructions()), (Cycle(9000), 400));
}

#[test]
fn time_does_not_go_back() {
    for kind in [Counting, InOrder, OutOfOrder] {
        let (_, mut model) = after_some_work(kind);
        let (before, stack) = (model.now(), model.stack());
        model.pass_to(Cycle(before.0 / 2));
        model.pass_to(before);
        assert_eq!((model.now(), model.stack()), (before, stack), "{kind:?}");
    }
}

#[test]
fn work_after_skipped_time_takes_as_long_as_after_waiting() {
    for kind in TIMED {
        let (program, mut passed) = after_some_work(kind);
        let (_, mut waited) = after_some_work(kind);
        let later = Cycle(passed.now().0 + 1234);
        passed.pass_to(later);
        waited.advance_to(later);
        let mut port = FixedData::new(4);
        assert_eq!(
            program.cycles(&mut passed, &mut port),
            program.cycles(&mut waited, &mut port),
            "{kind:?}"
        );
        // The idle time includes the rest of the cycle in which the wait began.
        let idle = waited.stack().unwrap().cycles(Cause::Idle);
        assert!((1234.0..1235.0).contains(&idle), "{kind:?}: {idle}");
    }
}

#[test]
fn kernel_time_is_a_separate_cause() {
    for kind in TIMED {
        let (_, mut model) = after_some_work(kind);
        model.system_until(Cycle(model.now().0 + 300));
        let stack = model.stack().unwrap();
        let system = stack.cycles(Cause::System);
        assert!((300.0..301.0).contains(&system), "{kind:?}: {system}");
        assert_eq!(stack.slots(Cause::Idle), 0, "{kind:?}");
        assert_eq!(stack.total_slots() % stack.width(), 0);
    }
    let (_, mut counting) = after_some_work(Counting);
    counting.system_until(Cycle(9000));
    assert_eq!(counting.now(), Cycle(400), "the counting model does not count kernel time");
}
