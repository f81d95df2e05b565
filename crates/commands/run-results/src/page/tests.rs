//! The page of a run with invented figures.

use longma_runner::{
    SourceLine,
    simulation::{AnnotatedFunction, AnnotatedInstruction, Cost, FunctionTime, RunResult, Summary},
    symbols::CodeLocation,
    timing::{BranchCounts, Cause},
};
use longma_sim::{Duration, Manifest, ManifestMachine, ManifestProgram, Region, Statistics};

use super::*;

fn manifest(machine: &Machine, path: &str) -> Manifest {
    Manifest {
        format: Manifest::FORMAT,
        longma: "0.1.0".into(),
        machine: Some(ManifestMachine::new(&machine.name, &machine.to_toml())),
        program: ManifestProgram::read(path, &b"program"[..], &["6".into(), "a b".into()]).unwrap(),
        level: "timing".into(),
        core_model: Some("out-of-order".into()),
        seed: 1,
        translation: None,
        region: Region::Whole,
        sampling: None,
    }
}

/// A result of `functions` functions with the name `name`.
fn result(machine: &Machine, path: &str, name: &str, functions: usize) -> RunResult {
    let mut statistics = Statistics::default();
    let counts = [
        ("run.instructions", 4_000_000),
        ("core0.instructions", 4_000_000),
        ("core0.cycles", 2_000_000),
        ("core0.idle_cycles", 500_000),
        ("core0.l1d.loads", 1000),
        ("core0.l1d.load_misses", 250),
        ("l3.loads", 100),
        ("l3.load_misses", 60),
    ];
    for (name, count) in counts {
        statistics.count(name, count, "things", "").unwrap();
    }
    statistics.rate("core0.cpi.base", 1_000_000.0, 4_000_000.0, "cycles/instruction", "").unwrap();
    let mut stack = [0.0; Cause::ALL.len()];
    (stack[Cause::Base as usize], stack[Cause::LocalMemory as usize]) = (1_000_000.0, 500_000.0);
    let summary = Summary {
        instructions: 4_000_000,
        busy_cycles: 1_500_000.0,
        time: Duration::from_ps(800_000_000),
        cores: 1,
        stack: Some(stack),
        branches: Some(BranchCounts {
            conditional: 1000,
            conditional_mispredicted: 10,
            ..BranchCounts::default()
        }),
    };
    let part = |share: f64| Summary {
        instructions: (4_000_000.0 * share) as u64,
        stack: Some(stack.map(|cycles| cycles * share)),
        ..summary.clone()
    };
    let function = FunctionTime {
        function: name.into(),
        object: name.into(),
        start: 0x1000,
        instructions: 100,
        cycles: 1000.0,
        misses: [1, 2, 3, 4, 5],
        fetch_misses: 6,
        mispredicts: 7,
    };
    RunResult {
        manifest: manifest(machine, path),
        ending: Ending::Exit(0),
        source: Some(("x86-64", 3_000_000)),
        intervals: (1..8).map(|n| part(f64::from(n) / 8.0)).collect(),
        summary,
        traffic: Vec::new(),
        statistics,
        functions: vec![function; functions],
        programs: vec![name.into(); functions.min(50)],
        sampling: None,
        stopped: None,
    }
}

/// An annotation of `functions` functions with `instructions` instructions each. All names and texts are `text`.
fn annotation(text: &str, functions: usize, instructions: u64) -> Annotation {
    let cost = Cost { runs: 3, cycles: 12.0, ..Cost::default() };
    let line = SourceLine { file: text.into(), line: 42 };
    let instruction = |number| AnnotatedInstruction {
        address: 0x1000 + 4 * number,
        text: text.into(),
        cost: cost.clone(),
        line: Some(line.clone()),
    };
    let place = CodeLocation { function: text.into(), object: text.into(), start: 0x1000 };
    let instructions: Vec<_> = (0..instructions).map(instruction).collect();
    let function = AnnotatedFunction { place, cost: cost.clone(), instructions };
    let lines = vec![(line.clone(), cost.clone()); functions];
    Annotation { functions: vec![function; functions], lines, total: cost }
}

fn machine() -> Machine {
    Machine::open("loongson-3a5000").unwrap()
}

fn shown(
    machine: &Machine,
    result: &RunResult,
    annotation: &Annotation,
    against: Option<&Figures>,
) -> String {
    page(&RunPage {
        result,
        machine,
        command: "longma run --report page.html program",
        annotation: Some(annotation),
        against: against.map(|figures| ("before.json", figures)),
    })
}

#[test]
fn the_page_has_the_figures_of_the_run_and_loads_nothing() {
    let machine = machine();
    let page =
        shown(&machine, &result(&machine, "/bin/sort", "qsort", 2), &annotation("ld.d $a0", 1, 3), None);
    let figures = [
        "<dt>CPI</dt><dd>0.375",
        "75 % busy",
        "75.0 % hit",
        "40.0 % hit",
        "style=\"flex:66.67\"",
        "<code>qsort</code>",
        "1004: ld.d $a0",
        ":42",
        "SHA-256",
        "1.00 % ",
        "The stack over time",
    ];
    for figure in figures {
        assert!(page.contains(figure.trim()), "{figure}: {page}");
    }
    assert_eq!(page.matches("<g><title>").count(), 8, "a column for each interval");
    for outside in ["src=", "http://", "https://", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("What changed"), "there is no other run");
}

#[test]
fn a_page_against_another_run_names_the_key_that_differs_and_the_cause() {
    let machine = machine();
    let text = "extends = \"loongson-3a5000\"\nname = \"other\"\n[caches.l2]\nsize = \"128 KiB\"\n";
    let other = Machine::parse("other.toml", text).unwrap();
    let mut before = result(&other, "/bin/sort", "qsort", 1).to_json();
    before["statistics"]["core0"]["cpi"]["base"]["value"] = 0.5.into();
    let before = Figures::of(&before, Some(other)).unwrap();
    let now = result(&machine, "/bin/sort", "qsort", 1);
    let page = shown(&machine, &now, &annotation("nop", 1, 1), Some(&before));
    for part in ["What changed", "caches.l2.size", "128 KiB", "0.5000", "0.2500", "-0.2500"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_long_name_is_abbreviated_and_its_title_has_the_whole() {
    let machine = machine();
    let name = format!("std::Map<{}>::insert(int)", ["std::pair<int, long>"; 9].join(", "));
    let page = shown(&machine, &result(&machine, "/bin/sort", &name, 1), &annotation(&name, 1, 1), None);
    let [title, short] = [&name, "std::Map<…>::insert(…)"].map(longma_lab::report::escape);
    let shown = format!("<code title=\"{title}\">{short}</code>");
    // The text is in the table, above the assembly, and in the list of executed programs.
    assert_eq!(page.matches(&shown).count(), 3, "{page}");
}

#[test]
fn names_of_the_program_are_escaped_and_the_page_is_bounded() {
    let machine = machine();
    let name = "<script>alert(1)</script>\u{202e}\"'&";
    let (long, many) = (name.repeat(50_000), name.repeat(5));
    for (name, functions, instructions) in [(long, 1, 2), (many, 3000, 10), (name.repeat(5), 6, 3000)] {
        let result = result(&machine, &name, &name, functions);
        let page = shown(&machine, &result, &annotation(&name, functions.min(500), instructions), None);
        assert!(!page.contains("<script>alert"));
        assert!(!page.contains('\u{202e}'));
        assert!(page.len() < 3_000_000, "{} bytes", page.len());
    }
}
