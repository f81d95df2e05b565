//! Prefetchers as modules: what they observe and request, their limits, and hostile ones.

use longma_plugin::{Event, Geometry, MAX_LINES, PluginError, PrefetcherPlugin};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { line_bytes: 64, page_lines: 256, degree: 2, distance: 4, streams: 16 };

fn plugin(text: &str) -> Result<PrefetcherPlugin, PluginError> {
    PrefetcherPlugin::new(&wat::parse_str(text).expect("the test's module is valid"), GEOMETRY)
}

/// A module with the import, one page of memory and these functions.
fn module(functions: &str) -> String {
    format!(
        "(module (import \"longma\" \"prefetch\" (func $prefetch (param i64))) \
        (memory 1) (global $degree (mut i64) (i64.const 1)) {functions})"
    )
}

const OBSERVE: &str =
    "(func (export \"observe\") (param $line i64) (param $instruction i64) (param $event i32)";

#[test]
fn a_module_requests_lines_with_what_start_gave_it() {
    let text = module(&format!(
        "(func (export \"start\") (param i32 i64 i32 i32 i32) (global.set $degree (i64.extend_i32_u (local.get 2)))) \
        {OBSERVE} (call $prefetch (i64.add (local.get $line) (global.get $degree))) (call $prefetch (local.get $instruction)) \
        (call $prefetch (i64.extend_i32_u (local.get $event))))"
    ));
    let mut plugin = plugin(&text).unwrap();
    assert_eq!(plugin.observe(10, 0x8000_0000_0000_1000, Event::Hit), [12, 0x8000_0000_0000_1000, 2]);
    // Requests do not accumulate.
    assert_eq!(plugin.observe(u64::MAX, 5, Event::Miss), [1, 5, 0]);
}

#[test]
fn state_is_kept_between_calls_and_truncation_is_reported() {
    let text = module(&format!(
        "(func (export \"truncated\") (param i64) (i64.store (i32.const 8) (local.get 0)) (call $prefetch (i64.const 9))) \
        {OBSERVE} (call $prefetch (i64.load (i32.const 0))) (call $prefetch (i64.load (i32.const 8))) \
        (i64.store (i32.const 0) (local.get $line)))"
    ));
    let mut plugin = plugin(&text).unwrap();
    assert_eq!(plugin.observe(10, 0, Event::Miss), [0, 0]);
    plugin.truncated(77);
    assert_eq!(plugin.observe(11, 0, Event::Miss), [10, 77]);
}

#[test]
fn requests_beyond_the_limit_are_ignored() {
    let text = module(&format!(
        "{OBSERVE} (local $n i64) (loop $next (call $prefetch (local.get $n)) \
        (local.set $n (i64.add (local.get $n) (i64.const 1))) (br_if $next (i64.lt_u (local.get $n) (i64.const 1000)))))"
    ));
    let mut plugin = plugin(&text).unwrap();
    let expected: Vec<u64> = (0..MAX_LINES as u64).collect();
    assert_eq!(plugin.observe(1, 0, Event::Miss), expected);
    assert_eq!(plugin.failure(), None);
}

#[test]
fn a_failure_ends_predictions_and_is_kept() {
    for (body, expected) in [
        ("unreachable", "unreachable"),
        ("(loop $again (br $again))", "more than 10000000 instructions"),
        ("(drop (i64.load (i32.const 0x7fffffff)))", "out of bounds"),
        ("(drop (i64.div_u (local.get 0) (i64.const 0)))", "zero"),
    ] {
        let text = module(&format!("{OBSERVE} (call $prefetch (i64.const 1)) {body})"));
        let mut plugin = plugin(&text).unwrap();
        assert!(plugin.observe(1, 0, Event::Miss).is_empty(), "{body}");
        let failure = plugin.failure().unwrap_or_else(|| panic!("{body} failed")).to_string();
        assert!(failure.starts_with("`observe` failed: ") && failure.contains(expected), "{failure}");
        assert!(plugin.observe(2, 0, Event::Miss).is_empty());
        plugin.truncated(1);
        assert_eq!(plugin.failure().map(ToString::to_string), Some(failure));
    }
}

#[test]
fn endless_recursion_is_a_failure() {
    let text = module(&format!("(func $down (call $down) (call $down)) {OBSERVE} (call $down))"));
    let mut plugin = plugin(&text).unwrap();
    plugin.observe(1, 0, Event::Miss);
    assert!(matches!(plugin.failure(), Some(PluginError::Failed { function: "observe", .. })));
}

#[test]
fn what_a_module_lacks_is_named() {
    for (text, expected) in [
        ("(module)".to_string(), "it must export `observe(line: i64, instruction: i64, event: i32)`"),
        (module("(func (export \"observe\") (param i32))"), "it must export `observe(line: i64"),
        (
            module(&format!("{OBSERVE}) (func (export \"start\") (param i32))")),
            "it must export `start(line_bytes",
        ),
        (
            module(&format!("{OBSERVE}) (func (export \"truncated\"))")),
            "it must export `truncated(line: i64)`, or nothing of this name",
        ),
        (
            format!("(module (import \"env\" \"malloc\" (func (param i32) (result i32))) {OBSERVE}))"),
            "it imports `env.malloc`, which does not exist",
        ),
        (
            format!("(module (import \"longma\" \"prefetch\" (func (param i32))) {OBSERVE}))"),
            "the module's start",
        ),
        (
            format!("(module (import \"longma\" \"prefetch\" (memory 1)) {OBSERVE}))"),
            "it imports `longma.prefetch`",
        ),
        (format!("(module (memory 2000) {OBSERVE}))"), "the module's start"),
        (module(&format!("(func $f unreachable) (start $f) {OBSERVE})")), "the module's start"),
    ] {
        let error = plugin(&text).map(drop).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = PrefetcherPlugin::new(b"\x7fELF", GEOMETRY).map(drop).unwrap_err();
    assert!(matches!(error, PluginError::Invalid(_)), "{error}");
}

#[test]
fn memory_cannot_grow_beyond_the_limit() {
    let text = module(&format!(
        "{OBSERVE} (call $prefetch (i64.extend_i32_s (memory.grow (i32.const 1022)))) \
        (call $prefetch (i64.extend_i32_s (memory.grow (i32.const 1)))) (call $prefetch (i64.extend_i32_s (memory.grow (i32.const 1)))))"
    ));
    let mut plugin = plugin(&text).unwrap();
    assert_eq!(plugin.observe(1, 0, Event::Miss), [1, 1023, u64::MAX]);
}

proptest! {
    #[test]
    fn damaged_modules_never_panic(position in 0usize..200, value: u8, calls in 1usize..4) {
        let text = module(&format!(
            "(func $helper (param i64) (result i64) (i64.mul (local.get 0) (i64.const 3))) \
            {OBSERVE} (call $prefetch (call $helper (local.get $line))))"
        ));
        let mut bytes = wat::parse_str(&text).expect("the test's module is valid");
        let length = bytes.len();
        bytes[position % length] = value;
        if let Ok(mut plugin) = PrefetcherPlugin::new(&bytes, GEOMETRY) {
            for line in 0..calls as u64 {
                prop_assert!(plugin.observe(line, 0, Event::Miss).len() <= MAX_LINES);
            }
        }
    }
}
