//! Replacement policies as modules: what they observe and choose, hostile ones, and the samples against references.

use longma_plugin::{AccessKind, CacheAccess, CacheShape, PluginError, ReplacementPlugin};
use proptest::prelude::*;

const SHAPE: CacheShape = CacheShape { sets: 4, ways: 8, line_bytes: 64 };
const SRRIP: &[u8] = include_bytes!("../samples/srrip.wasm");
const LRU: &[u8] = include_bytes!("../samples/lru.wasm");

fn plugin(text: &str) -> Result<ReplacementPlugin, PluginError> {
    ReplacementPlugin::new(&wat::parse_str(text).expect("the test's module is valid"), SHAPE)
}

const USED: &str = "(func (export \"used\") (param $set i32) (param $way i32) (param $line i64) (param $instruction i64) (param $kind i32)";
const FILLED: &str = "(func (export \"filled\") (param i32 i32 i64 i64 i32))";
const VICTIM: &str = "(func (export \"victim\") (param $set i32) (param $ways i64) (param $line i64) (param $instruction i64) (param $kind i32) (result i32)";

fn access(set: u32, line: u64) -> CacheAccess {
    CacheAccess { set, line, instruction: 0x1000, kind: AccessKind::Load }
}

#[test]
fn a_module_gets_each_argument_and_keeps_its_state() {
    // The sum of all arguments with different weights selects the way.
    let sum = |weights: [u32; 5]| {
        let [set, second, line, instruction, kind] = weights.map(|weight| format!("(i64.const {weight})"));
        format!(
            "(i64.add (i64.mul (i64.extend_i32_u (local.get $set)) {set}) \
            (i64.add (i64.mul SECOND {second}) (i64.add (i64.mul (local.get $line) {line}) \
            (i64.add (i64.mul (local.get $instruction) {instruction}) (i64.mul (i64.extend_i32_u (local.get $kind)) {kind})))))"
        )
    };
    for (weights, expected) in [
        ([1, 0, 0, 0, 0], 3),
        ([0, 1, 0, 0, 0], 2),
        ([0, 0, 1, 0, 0], 6),
        ([0, 0, 0, 1, 0], 7),
        ([0, 0, 0, 0, 1], 5),
    ] {
        let of_use = sum(weights).replace("SECOND", "(i64.extend_i32_u (local.get $way))");
        let text = format!(
            "(module (global $sum (mut i64) (i64.const 0)) {FILLED} {USED} (global.set $sum {of_use})) \
            {VICTIM} (i32.wrap_i64 (global.get $sum))))"
        );
        let mut plugin = plugin(&text).unwrap();
        plugin.used(2, CacheAccess { set: 3, line: 6, instruction: 7, kind: AccessKind::WriteBack });
        assert_eq!(plugin.victim(0xff, access(0, 0)), expected, "{weights:?}");
        let of_victim = sum(weights).replace("SECOND", "(i64.ctz (local.get $ways))");
        let text = format!("(module {FILLED} {USED}) {VICTIM} (i32.wrap_i64 {of_victim})))");
        let mut plugin = self::plugin(&text).unwrap();
        let access = CacheAccess { set: 3, line: 6, instruction: 7, kind: AccessKind::WriteBack };
        assert_eq!(plugin.victim(0xfc, access), expected, "{weights:?}");
        assert_eq!(plugin.failure(), None);
    }
}

#[test]
fn start_and_removed_are_called_if_they_exist() {
    let text = format!(
        "(module (global $way (mut i32) (i32.const 0)) {FILLED} {USED}) \
        (func (export \"start\") (param i32 i32 i32) \
            (global.set $way (i32.add (local.get 0) (i32.shr_u (local.get 2) (local.get 1))))) \
        (func (export \"removed\") (param i32 i32) (global.set $way (i32.add (local.get 0) (local.get 1)))) \
        {VICTIM} (global.get $way)))"
    );
    let mut plugin = plugin(&text).unwrap();
    assert_eq!(plugin.victim(0xff, access(0, 0)), 4);
    plugin.removed(2, 5);
    assert_eq!(plugin.victim(0xff, access(0, 0)), 7);
}

#[test]
fn a_way_that_must_not_be_evicted_is_a_failure() {
    for (way, allowed) in [(8, 0xff), (-1, 0xff), (0, 0xf0), (64, u64::MAX), (i32::MIN, 1 << 63)] {
        let text = format!("(module {FILLED} {USED}) {VICTIM} (i32.const {way})))");
        let mut plugin = plugin(&text).unwrap();
        assert_eq!(plugin.victim(allowed, access(0, 0)), allowed.trailing_zeros());
        assert_eq!(plugin.failure(), Some(&PluginError::Way { way, allowed }));
        let message = plugin.failure().unwrap().to_string();
        assert!(message.starts_with(&format!("`victim` returned way {way}, ")), "{message}");
        assert!(message.ends_with(&format!("in the mask {allowed:#x}")), "{message}");
        // The first failure is kept.
        plugin.victim(0b10, access(0, 0));
        assert_eq!(plugin.failure().unwrap().to_string(), message);
    }
}

#[test]
fn a_failure_in_any_function_is_kept_and_ends_the_calls() {
    for (body, expected) in [
        ("unreachable", "unreachable"),
        ("(loop $again (br $again))", "more than 10000000 instructions"),
        ("(drop (i64.load (i32.const 0x7fffffff)))", "out of bounds"),
        ("(drop (i32.trunc_f64_s (f64.div (f64.const 0) (f64.const 0))))", "conversion"),
    ] {
        let text = format!("(module (memory 1) {FILLED} {USED} {body}) {VICTIM} (i32.const 5)))");
        let mut plugin = plugin(&text).unwrap();
        assert_eq!(plugin.victim(0xff, access(0, 0)), 5);
        plugin.used(1, access(0, 0));
        let failure = plugin.failure().unwrap_or_else(|| panic!("{body} failed")).to_string();
        assert!(failure.starts_with("`used` failed: ") && failure.contains(expected), "{failure}");
        assert_eq!(plugin.victim(0xf8, access(0, 0)), 3, "a failed policy chooses the first way");
        plugin.filled(1, access(0, 0));
        plugin.removed(0, 1);
        assert_eq!(plugin.failure().map(ToString::to_string), Some(failure));
    }
}

#[test]
fn what_a_module_lacks_is_named() {
    let victim = format!("{VICTIM} (i32.const 0))");
    for (text, expected) in [
        ("(module)".to_string(), "it must export `used(set: i32, way: i32, line: i64, "),
        (format!("(module {USED}))"), "it must export `filled(set: i32, "),
        (format!("(module {USED}) {FILLED})"), "it must export `victim(set: i32, ways: i64, "),
        (
            format!("(module {USED}) {FILLED} (func (export \"victim\")))"),
            "it must export `victim(set: i32, ways: i64, ",
        ),
        (
            format!("(module {USED}) {FILLED} {victim} (func (export \"removed\")))"),
            "it must export `removed(set: i32, way: i32)`, or nothing of this name",
        ),
        (
            format!("(module {USED}) {FILLED} {victim} (global (export \"start\") i32 (i32.const 0)))"),
            "it must export `start(sets: i32, ways: i32, line_bytes: i32)`, or nothing",
        ),
        (
            format!(
                "(module {USED}) {FILLED} {victim} (func (export \"start\") (param i32 i32 i32) unreachable))"
            ),
            "`start` failed: ",
        ),
        (
            format!("(module (import \"longma\" \"prefetch\" (func (param i64))) {USED}) {FILLED} {victim})"),
            "it imports `longma.prefetch`, which does not exist for replacement policies",
        ),
        (format!("(module (memory 2000) {USED}) {FILLED} {victim})"), "`the module's start` failed: "),
        (format!("(module (memory 1) (memory 1) {USED}) {FILLED} {victim})"), "limit of 1 memories"),
    ] {
        let error = plugin(&text).map(drop).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Whatever the host, the result of an invalid operation is the same value.
#[test]
fn not_a_number_is_the_same_on_every_host() {
    let nan = "(f64.div (f64.const 0) (f64.const 0))";
    for (number, way) in
        [(nan.to_string(), 0), (format!("(f64.neg {nan})"), 1), (format!("(f64.add {nan} {nan})"), 0)]
    {
        let sign = format!("(i32.wrap_i64 (i64.shr_u (i64.reinterpret_f64 {number}) (i64.const 63)))");
        let mut plugin = plugin(&format!("(module {FILLED} {USED}) {VICTIM} {sign}))")).unwrap();
        assert_eq!(plugin.victim(0xff, access(0, 0)), way, "{number}");
    }
}

/// What happens to a set: a use of a way, or a miss that may evict the ways of a mask.
#[derive(Clone, Copy, Debug)]
enum Step {
    Use(u32),
    Miss(u64),
}

fn steps() -> impl Strategy<Value = Vec<(u32, Step)>> {
    let all = (1 << SHAPE.ways) - 1;
    let step = prop_oneof![
        2 => (0..SHAPE.ways).prop_map(Step::Use),
        2 => Just(Step::Miss(all)),
        1 => (1..=all).prop_map(Step::Miss),
    ];
    prop::collection::vec((0..SHAPE.sets, step), 0..400)
}

/// Fills all ways, runs the steps, and compares every victim with that of a reference for each set.
fn compare<R>(
    module: &[u8],
    steps: &[(u32, Step)],
    new: impl Fn() -> R,
    used: impl Fn(&mut R, u32),
    miss: impl Fn(&mut R, u64) -> u32,
) -> Result<(), TestCaseError> {
    let mut plugin = ReplacementPlugin::new(module, SHAPE).unwrap();
    for set in 0..SHAPE.sets {
        (0..SHAPE.ways).for_each(|way| plugin.filled(way, access(set, way.into())));
    }
    let mut sets: Vec<R> = (0..SHAPE.sets).map(|_| new()).collect();
    for &(set, step) in steps {
        match step {
            Step::Use(way) => {
                plugin.used(way, access(set, 9));
                used(&mut sets[set as usize], way);
            }
            Step::Miss(allowed) => {
                let way = plugin.victim(allowed, access(set, 7));
                prop_assert_eq!(way, miss(&mut sets[set as usize], allowed));
                plugin.filled(way, access(set, 7));
            }
        }
    }
    prop_assert_eq!(plugin.failure(), None);
    Ok(())
}

proptest! {
    /// SRRIP with hit priority and two bits, step by step as Jaleel et al. list it (ISCA 2010, section 4.1).
    #[test]
    fn srrip_is_as_published(steps in steps()) {
        let new = || vec![2u8; SHAPE.ways as usize];
        compare(SRRIP, &steps, new, |rrpv, way| rrpv[way as usize] = 0, |rrpv, allowed| {
            // (1) search for the first 3, (2) if found go to (5), (3) increment all, (4) go to (1), (5) replace and set to 2.
            let candidates: Vec<u32> = (0..SHAPE.ways).filter(|way| allowed & 1 << way != 0).collect();
            let way = loop {
                match candidates.iter().find(|way| rrpv[**way as usize] == 3) {
                    Some(way) => break *way,
                    None => candidates.iter().for_each(|way| rrpv[*way as usize] += 1),
                }
            };
            rrpv[way as usize] = 2;
            way
        })?;
    }

    #[test]
    fn lru_is_a_recency_list(steps in steps()) {
        let to_end = |list: &mut Vec<u32>, way: u32| {
            list.retain(|other| *other != way);
            list.push(way);
        };
        compare(LRU, &steps, || (0..SHAPE.ways).collect(), to_end, |list, allowed| {
            let way = *list.iter().find(|way| allowed & 1 << **way != 0).unwrap();
            to_end(list, way);
            way
        })?;
    }

    #[test]
    fn damaged_modules_never_panic_and_choose_an_allowed_way(position: usize, value: u8, lru: bool, allowed in 1..=255u64) {
        let mut bytes = (if lru { LRU } else { SRRIP }).to_vec();
        let length = bytes.len();
        bytes[position % length] = value;
        if let Ok(mut plugin) = ReplacementPlugin::new(&bytes, SHAPE) {
            plugin.filled(1, access(0, 1));
            let way = plugin.victim(allowed, access(3, 2));
            prop_assert!(allowed >> way & 1 == 1);
        }
    }
}
