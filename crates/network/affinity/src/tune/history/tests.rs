//! Tests of `history`.

use super::*;

fn decision(at: f64, act: DecisionKind, subject: &str, cpus: Option<(&str, &str)>) -> Decision {
    let (from, to) = cpus.map(|(from, to)| (from.into(), to.into())).unzip();
    Decision { at, act, subject: subject.into(), from, to, why: format!("because of {subject}") }
}

#[test]
fn changes_are_grouped_by_run_and_setting_and_dry_runs_are_left_out() {
    let moved = |at, subject, from, to| decision(at, DecisionKind::Moved, subject, Some((from, to)));
    let mut dry = decision(20.0, DecisionKind::Begun, "longma", None);
    dry.why = "watching eth0, dry run; left alone: flows below 100 Mb/s".into();
    let log = [
        // The beginning of the first run was rotated away.
        moved(1.0, "interrupt 40", "0", "2"),
        decision(2.0, DecisionKind::Ended, "longma", None),
        decision(10.0, DecisionKind::Begun, "longma", None),
        moved(11.0, "interrupt 40", "0", "3"),
        moved(12.0, "iperf3 (7)", "0-7", "1-3"),
        decision(12.5, DecisionKind::LeftAlone, "interrupt 41", None),
        moved(13.0, "interrupt 40", "3", "2"),
        dry,
        decision(21.0, DecisionKind::WouldMove, "interrupt 40", Some(("2", "5"))),
        decision(22.0, DecisionKind::Ended, "longma", None),
    ];
    let runs = runs(&log);
    assert_eq!(runs.len(), 2);
    assert_eq!((runs[0].begun, runs[0].ended, runs[0].changed.len()), (None, Some(2.0), 1));
    assert_eq!((runs[1].begun, runs[1].ended), (Some(10.0), None), "it was killed");
    let subjects: Vec<&str> = runs[1].changed.iter().map(|of| of.subject.as_str()).collect();
    assert_eq!(subjects, ["interrupt 40", "iperf3 (7)"]);
    let steps: Vec<(&str, &str)> =
        runs[1].changed[0].changes.iter().map(|of| (of.from.as_str(), of.to.as_str())).collect();
    assert_eq!(steps, [("0", "3"), ("3", "2")]);
    assert_eq!(super::runs(&[]), []);
}
