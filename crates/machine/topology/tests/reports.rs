//! Problems reported for invalid machine files.

use longma_topology::{BUILTIN, Level, check};
use proptest::prelude::*;

/// A built-in machine's text with one change.
fn with(machine: &str, from: &str, to: &str) -> String {
    let text = BUILTIN.iter().find(|b| b.name == machine).unwrap().text;
    assert!(text.contains(from), "{machine} has no `{from}`");
    text.replacen(from, to, 1)
}

/// Makes one change and checks the error reported: substrings of its message, position and help.
fn expect_error(machine: &str, from: &str, to: &str, expected: [&str; 3]) {
    let text = with(machine, from, to);
    let checked = check("test.toml", &text);
    assert!(checked.machine.is_none(), "accepted: {to}");
    let [in_message, at, in_help] = expected;
    let located = checked.report.located();
    let found = located.iter().find(|p| p.level == Level::Error && p.message.contains(in_message));
    let problem = found.unwrap_or_else(|| panic!("{}", checked.report.render(100, false)));
    let line = text.lines().nth(problem.line - 1).unwrap_or("");
    let marked: String = line.chars().skip(problem.column - 1).collect();
    assert!(marked.starts_with(at), "at: {marked}\n{}", problem.message);
    assert!(problem.help.contains(in_help), "{}\nhelp: {}", problem.message, problem.help);
}

/// The message of the first error.
fn first(text: &str) -> String {
    let report = check("test.toml", text).report;
    let error = report.problems().iter().find(|p| p.level == Level::Error);
    error.expect("an error").message.clone()
}

const LA: &str = "loongson-3a5000";

#[test]
fn an_unknown_key_gets_a_suggestion() {
    expect_error(
        LA,
        "rob_entries = 128",
        "rob_entires = 128",
        ["core has no key `rob_entires`", "rob_entires", "did you mean `rob_entries`?"],
    );
    expect_error(
        LA,
        "[[hosts]]",
        "[[hostss]]",
        ["machine file has no key `hostss`", "hostss", "did you mean `hosts`?"],
    );
}

#[test]
fn zero_rates_are_errors_and_pages_without_a_miss_cost_are_warnings() {
    expect_error(
        LA,
        "rate = \"3200 MT/s\"",
        "rate = \"0 MT/s\"",
        ["\"0 MT/s\" is not positive", "\"0 MT/s\"", "give a positive value"],
    );
    let report = check("test.toml", &with(LA, "page_size = \"16 KiB\"", "page_size = \"4 KiB\"")).report;
    let warned = report.problems().iter().find(|p| p.level == Level::Warning).expect("a warning");
    assert!(warned.message.contains("holds pages of 4 KiB, the core's page size"), "{}", warned.message);
    assert!(warned.help.contains("add \"4 KiB\" to its `page_sizes`"), "{}", warned.help);
    expect_error(
        LA,
        "distance = 16",
        "distance = 16\nstreams = 5000",
        ["`streams` is 5000", "5000", "at most 4096"],
    );
}

#[test]
fn an_ethernet_device_must_have_room_for_a_frame() {
    const HOST: &str = "sandybridge-2x6";
    expect_error(
        HOST,
        "mtu = \"9000 B\"",
        "mtu = \"1 B\"",
        ["an MTU of 1 bytes", "\"1 B\"", "at least 68 B"],
    );
    expect_error(
        HOST,
        "rx_fifo = \"512 KiB\"",
        "rx_fifo = \"2 KiB\"",
        ["a frame of 9018 bytes", "\"2 KiB\"", "give a larger size"],
    );
    expect_error(HOST, "queues = 8", "queues = 0", ["`queues` is 0", "0", "at least 1"]);
}

#[test]
fn counts_must_be_positive() {
    let zero_problem =
        |key: &'static str| [format!("`{key}` is 0"), "0".to_string(), "at least 1".to_string()];
    for (machine, key, from) in [
        (LA, "mshrs", "mshrs = 16"),
        (LA, "pages_per_entry", "pages_per_entry = 2"),
        (LA, "int_registers", "int_registers = 128"),
        ("godson3", "read_channels", "read_channels = 3"),
        ("godson3", "write_channels", "write_channels = 1"),
    ] {
        let none = format!("{key} = 0");
        expect_error(machine, from, &none, zero_problem(key).each_ref().map(String::as_str));
    }
}

#[test]
fn pages_are_powers_of_two() {
    let of = |page: &str| format!("page_size = \"{page}\"");
    for (page, bytes) in [("0 B", "0"), ("17 KiB", "17408")] {
        let message = format!("a page of {bytes} bytes is not a power of two");
        expect_error(
            LA,
            &of("16 KiB"),
            &of(page),
            [&message, &format!("\"{page}\""), "the next power of two is"],
        );
    }
}

#[test]
fn counts_beyond_the_registers_of_a_device_are_errors() {
    expect_error("sandybridge-2x6", "queues = 8", "queues = 17", ["`queues` is 17", "17", "at most 16"]);
    expect_error(LA, "windows = 4", "windows = 17", ["`windows` is 17", "17", "at most 16"]);
}

#[test]
fn a_missing_key_is_reported() {
    expect_error(
        LA,
        "clock = \"2.5 GHz\" ",
        "",
        ["core has no `clock`", "[cores.la464]", "add `clock = ...` (frequency)"],
    );
}

#[test]
fn a_part_without_source_is_an_error() {
    expect_error(
        LA,
        "coherence = \"directory\"\nsource = \"manual\"",
        "coherence = \"directory\"",
        ["cache `l3` has no source", "l3", "[sources.KEY]"],
    );
    expect_error(
        LA,
        "source = \"jedec\"",
        "source = \"jedeck\"",
        ["there is no source `jedeck`", "\"jedeck\"", "did you mean `jedec`?"],
    );
}

#[test]
fn an_estimate_needs_a_reasoning() {
    expect_error(
        "piii-myrinet",
        "reasoning = \"Cut-through",
        "place = \"Cut-through",
        ["source `switch` has no reasoning", "switch", "plausible"],
    );
}

#[test]
fn a_wrong_unit_gets_a_correction() {
    expect_error(
        LA,
        "size = \"256 KiB\"",
        "size = \"256KB\"",
        ["is not a size", "\"256KB\"", "write \"256 KiB\""],
    );
    expect_error(
        LA,
        "clock = \"2.5 GHz\"",
        "clock = 2500",
        ["this frequency has no unit", "2500", "\"2.5 GHz\""],
    );
    expect_error(
        LA,
        "latency = \"140 ns\"",
        "latency = \"140 GB/s\"",
        ["not a unit of latency", "\"140 GB/s\"", "cycles"],
    );
}

#[test]
fn an_impossible_cache_size_gets_possible_sizes() {
    expect_error(
        LA,
        "size = \"256 KiB\"",
        "size = \"100 KiB\"",
        ["cache `l2` of 100 KiB", "\"100 KiB\"", "hashed"],
    );
    expect_error(
        LA,
        "size = \"256 KiB\"",
        "size = \"100 kB\"",
        ["no whole number of sets", "\"100 kB\"", "such as 97 KiB"],
    );
}

#[test]
fn a_cache_with_hashed_index_may_have_any_number_of_sets() {
    let text = with(LA, "size = \"16 MiB\"", "size = \"12 MiB\"");
    assert!(first(&text).contains("not a power of two"));
    let hashed = text.replacen("banks = 4\n", "banks = 4\nindex = \"hashed\"\n", 1);
    assert!(check("test.toml", &hashed).machine.is_some());
}

#[test]
fn a_cycle_of_caches_or_buses_is_reported_in_full() {
    expect_error(LA, "next = \"memory\"", "next = \"l2\"", ["", "\"l2\"", ""]);
    let report = check("t", &with(LA, "next = \"memory\"", "next = \"l2\"")).report;
    assert!(
        report.problems().iter().any(|p| p.message == "a cache miss never reaches memory: l2 -> l3 -> l2"),
        "{report}"
    );
    expect_error(
        "godson3-conventional",
        "on = \"chip0.ht0\"",
        "on = \"pci0\"",
        ["a bus is attached to itself: bridge -> pci0 -> bridge", "\"", "`on`"],
    );
}

#[test]
fn distances_must_be_symmetric_unless_the_file_disables_it() {
    let from = "[\"127 ns\", \"75 ns\"]";
    let to = "[\"130 ns\", \"75 ns\"]";
    expect_error(
        "sandybridge-2x6",
        from,
        to,
        ["from NUMA node 1 to 0 is 130 ns, but from 0 to 1 it is 127 ns", "\"130 ns\"", "same value"],
    );
    let text = with("sandybridge-2x6", from, to).replacen(
        "[hosts.distances]",
        "[hosts.distances]\nsymmetric = false",
        1,
    );
    assert!(check("test.toml", &text).machine.is_some());
    expect_error(
        "sandybridge-2x6",
        "[\"127 ns\", \"75 ns\"]]",
        "[\"127 ns\", \"75 ns\"], [\"1 ns\"]]",
        ["3 rows for 2 NUMA nodes", "[\"75 ns\"", "each NUMA node"],
    );
    expect_error("sandybridge-2x6", "[[10, 20]", "[[11, 20]", ["to itself is 11", "11", "10 by definition"]);
}

#[test]
fn references_to_missing_parts_get_suggestions() {
    expect_error(
        LA,
        "core = \"la464\"",
        "core = \"la465\"",
        ["there is no core `la465`", "\"la465\"", "did you mean `la464`?"],
    );
    expect_error(
        "zns-host",
        "on = \"nvme-slot\"",
        "on = \"nvme-slit\"",
        ["does not have", "\"nvme-slit\"", "did you mean `nvme-slot`?"],
    );
    expect_error(
        "piii-myrinet",
        "\"host1.myri0\"",
        "\"host2.myri0\"",
        ["neither a switch nor a HOST.DEVICE", "\"host2.myri0\"", "did you mean"],
    );
}

#[test]
fn a_bandwidth_above_the_peak_is_an_error() {
    expect_error(
        "zns-host",
        "bandwidth = \"3.938 GB/s\"",
        "bandwidth = \"9 GB/s\"",
        ["9 GB/s is more than the peak of 4 GB/s", "\"9 GB/s\"", "width"],
    );
}

#[test]
fn an_unknown_predictor_or_table_is_an_error() {
    expect_error(
        LA,
        "predictor = \"tage\"",
        "predictor = \"psychic\"",
        ["\"psychic\" is not a branch predictor", "\"psychic\"", "gshare"],
    );
    expect_error(
        LA,
        "instruction_timing = \"la464\"",
        "instruction_timing = \"la999\"",
        ["\"la999\" is not a table of instruction timing", "\"la999\"", "la464"],
    );
}

#[test]
fn a_memory_order_predictor_needs_a_table_and_a_source() {
    let loads = "loads = \"ideal\" ";
    expect_error(
        LA,
        loads,
        "loads = \"psychic\"",
        ["\"psychic\" is not a load ordering policy", "\"psychic\"", "store-sets"],
    );
    expect_error(
        LA,
        loads,
        "table_entries = 0\nloads = \"counters\"",
        ["`table_entries` is 0", "0", "at least 1"],
    );
    expect_error(
        LA,
        loads,
        "table_entries = 4000000\nloads = \"counters\"",
        ["`table_entries` is 4000000", "4000000", "at most"],
    );
}

#[test]
fn an_inclusive_cache_is_at_least_as_large_as_those_above() {
    let larger = ["is larger than `l3` of 16 MiB, which must contain its lines", "\"64 MiB\"", "`inclusion`"];
    expect_error(LA, "size = \"256 KiB\"", "size = \"64 MiB\"", larger);
    // The check also applies with a victim cache between the two levels.
    expect_error(LA, "size = \"64 KiB\"", "size = \"64 MiB\"", larger);
}

#[test]
fn a_level_faster_than_the_one_above_is_an_error() {
    expect_error(
        LA,
        "latency = \"40 cycles\"",
        "latency = \"10 cycles\"",
        [
            "cache `l3` has a latency of 10 cycles, but cache `l2` above it has 14 cycles",
            "\"10 cycles\"",
            "included",
        ],
    );
    expect_error(
        LA,
        "latency = \"140 ns\"",
        "latency = \"5 ns\"",
        ["has a latency of 5 ns, but cache `l3` above it has 40 cycles", "\"5 ns\"", "included"],
    );
}

#[test]
fn a_memory_without_a_latency_is_a_warning() {
    let checked = check("test.toml", &with(LA, "latency = \"140 ns\"", ""));
    assert!(checked.machine.is_some());
    let warned =
        |p: &longma_topology::Problem| p.level == Level::Warning && p.message.contains("has no `latency`");
    assert!(checked.report.problems().iter().any(warned), "{}", checked.report.render(100, false));
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_text() {
    let text = with(LA, "rob_entries = 128", "rob_entires = 128");
    let text = text.replacen("ways = 16", "ways = 0", 1).replacen(
        "masters = [\"l3\", \"io\"]",
        "masters = [\"l4\", \"io\"]",
        1,
    );
    let report = check("broken.toml", &text).report;
    assert_eq!(report.errors(), 3, "{}", report.render(100, false));
    insta::assert_snapshot!("everything_wrong", report.render(90, false));
}

#[test]
fn invalid_toml_is_reported_with_its_position() {
    let report = check("t.toml", "format = 1\nname = \"x\ntitle = ]\n").report;
    let located = report.located();
    assert!(located.iter().any(|p| p.line == 2) && located.iter().any(|p| p.line == 3), "{located:?}");
}

#[test]
fn a_hostile_count_is_an_error_before_the_layout_is_built() {
    for (from, to) in
        [("cores = 4", "cores = 4000000000"), ("count = 2\ncapacity", "count = 4294967295\ncapacity")]
    {
        let checked = check("t.toml", &with(LA, from, to));
        assert!(checked.machine.is_none());
        assert!(checked.report.problems().iter().any(|p| p.message.contains("too many parts")), "{to}");
    }
}

#[test]
fn an_empty_file_is_reported_with_the_required_keys() {
    let report = check("empty.toml", "").report;
    for key in ["format", "name", "title"] {
        assert!(
            report.problems().iter().any(|p| p.message == format!("machine file has no `{key}`")),
            "{report:?}"
        );
    }
}

#[test]
fn a_size_too_large_to_model_is_an_error_at_its_position() {
    for (key, value) in [("rob_entries", "128"), ("mshrs", "16"), ("banks", "4"), ("entries", "64")] {
        let to = format!("{key} = 4294967295");
        expect_error(
            LA,
            &format!("{key} = {value}"),
            &to,
            ["too large to be modelled", "4294967295", "give at most"],
        );
    }
}

#[test]
fn too_many_mshrs_are_an_error() {
    let message = ["`mshrs` is 1000000, which is too large to be modelled", "1000000", "give at most 4096"];
    expect_error(LA, "mshrs = 16", "mshrs = 1000000", message);
    let largest = check("t.toml", &with(LA, "mshrs = 16", "mshrs = 4096")).report;
    assert!(
        largest.problems().iter().all(|p| !p.message.contains("mshrs")),
        "{}",
        largest.render(100, false)
    );
}

#[test]
fn the_total_of_a_host_must_fit_the_model() {
    let report = check("t.toml", &with(LA, "size = \"16 MiB\"", "size = \"1024 GiB\"")).report;
    let is_reported = report.problems().iter().any(|p| p.message.contains("lines and entries in total"));
    assert!(is_reported, "{}", report.render(100, false));
}

#[test]
fn too_many_cores_per_cache_are_a_warning() {
    let report = check("t.toml", &with(LA, "cores = 4", "cores = 64")).report;
    let problem = report.problems().iter().find(|p| p.message.contains("64 cores of host"));
    let problem = problem.unwrap_or_else(|| panic!("{}", report.render(100, false)));
    assert_eq!(problem.level, Level::Warning);
    assert!(problem.help.contains("level functional"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_makes_the_checker_panic(text in "\\PC{0,200}") {
        let report = check("t", &text).report;
        prop_assert!(report.located().len() == report.problems().len());
        report.render(80, false);
    }

    #[test]
    fn a_damaged_machine_is_reported_or_accepted_but_never_panics(
        machine in 0..BUILTIN.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]\"=,0-9a-z. \n-]{0,6}", 0usize..12), 1..6),
    ) {
        let mut text: Vec<char> = BUILTIN[machine].text.chars().collect();
        for (at, with, removed) in damage {
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, with.chars());
        }
        let text: String = text.into_iter().collect();
        let checked = check("t", &text);
        prop_assert_eq!(checked.machine.is_some(), checked.report.errors() == 0);
        checked.report.located();
    }
}

#[test]
fn the_history_of_an_indirect_predictor_fits_its_kind() {
    let key = "indirect_history = 4";
    let too_long = ["\"target-cache\" cannot have a history of 17", "17", "from 1 to 16"];
    expect_error(LA, key, "indirect_history = 17", too_long);
    expect_error(
        LA,
        "indirect_entries = 512",
        "indirect_entries = 0",
        ["`indirect_entries` is 0", "0", "at least 1"],
    );
}

#[test]
fn branch_keys_without_effect_are_reported() {
    for (from, to, message) in [
        ("predictor = \"tage\"", "predictor = \"static\"", "`table_entries` has no effect"),
        ("predictor = \"tage\"", "predictor = \"bimodal\"", "`history_bits` has no effect"),
        ("\"target-cache\"", "\"last-target\"", "`indirect_history` has no effect"),
        ("loads = \"ideal\" ", "table_entries = 64\nloads = \"ideal\" ", "`table_entries` has no effect"),
    ] {
        let report = check("test.toml", &with(LA, from, to)).report;
        let found =
            report.problems().iter().any(|p| p.level == Level::Warning && p.message.contains(message));
        assert!(found, "{to}: {}", report.render(100, false));
    }
}

#[test]
fn keys_that_no_model_uses_on_this_machine_are_errors() {
    let in_cache =
        |cache: &str, key: &str| (format!("[caches.{cache}]\n"), format!("[caches.{cache}]\n{key}\n"));
    for ((from, to), message, at) in [
        (in_cache("l1d", "banks = 2"), "no effect on a first-level cache", "2"),
        (in_cache("l1i", "write = \"through\""), "no effect on an instruction cache", "\"through\""),
        (in_cache("l1d", "inclusion = \"inclusive\""), "no effect on a first-level cache", "\"inclusive\""),
        (in_cache("l2", "banks = 2"), "without a `bandwidth`", "2"),
        (in_cache("l3", "write = \"through\""), "no effect on a shared cache", "\"through\""),
        (in_cache("l1d", "coherence = \"snoop\""), "no cache snoops", "\"snoop\""),
        (
            ("coherence = \"directory\"".into(), "coherence = \"snoop\"".into()),
            "no cache snoops",
            "\"snoop\"",
        ),
        (("decode_width = 4".into(), "threads = 2\ndecode_width = 4".into()), "runs one thread", "2"),
    ] {
        expect_error(LA, &from, &to, [message, at, ""]);
    }
    expect_error(
        LA,
        "[caches.l2]\n",
        "[caches.l2]\nlock = { windows = 1, source = \"manual\" }\n",
        ["no effect on a private cache", "", "shared"],
    );
}
