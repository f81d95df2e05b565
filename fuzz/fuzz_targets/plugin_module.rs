//! A plug-in of any bytes runs within its limits, or is refused with a message. Equal modules behave equally.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_plugin::{
    AccessKind, CacheAccess, CacheShape, DirectionPlugin, Event, Geometry, MAX_LINES, PluginError,
    PredictorSizes, PrefetcherPlugin, ReplacementPlugin, TargetPlugin,
};

const GEOMETRY: Geometry = Geometry { line_bytes: 64, page_lines: 256, degree: 2, distance: 4, streams: 16 };
const SHAPE: CacheShape = CacheShape { sets: 16, ways: 8, line_bytes: 64 };
const SIZES: PredictorSizes = PredictorSizes { entries: 64, history: 6 };
/// Calls of each function; few, because a call may take all its instructions.
const CALLS: u64 = 2;

fn prefetch(bytes: &[u8]) -> Result<Vec<u64>, PluginError> {
    let mut plugin = PrefetcherPlugin::new(bytes, GEOMETRY)?;
    let mut requested = Vec::new();
    for n in 0..CALLS {
        let lines = plugin.observe(3 * n, 0x1000, Event::Miss);
        assert!(lines.len() <= MAX_LINES);
        requested.extend_from_slice(lines);
        plugin.truncated(3 * n + 1);
    }
    plugin.failure().map_or(Ok(requested), |error| Err(error.clone()))
}

fn replace(bytes: &[u8]) -> Result<Vec<u64>, PluginError> {
    let mut plugin = ReplacementPlugin::new(bytes, SHAPE)?;
    let mut ways = Vec::new();
    for (n, allowed) in (0..CALLS).zip([0xff, 0x3c]) {
        let access = CacheAccess { set: 15, line: 16 * n + 15, instruction: 0x1000, kind: AccessKind::Store };
        let way = plugin.victim(allowed, access);
        assert!(allowed >> way & 1 == 1, "way {way} of {allowed:#x}");
        plugin.filled(way, access);
        plugin.used(way, access);
        plugin.removed(15, way);
        ways.push(way.into());
    }
    plugin.failure().map_or(Ok(ways), |error| Err(error.clone()))
}

fn predict(bytes: &[u8]) -> Result<Vec<u64>, PluginError> {
    let mut plugin = DirectionPlugin::new(bytes, SIZES)?;
    let taken = (0..CALLS).map(|n| plugin.resolve(0x1000, 0x2000, n == 0).into()).collect();
    plugin.failure().map_or(Ok(taken), |error| Err(error.clone()))
}

fn target(bytes: &[u8]) -> Result<Vec<u64>, PluginError> {
    let mut plugin = TargetPlugin::new(bytes, SIZES)?;
    plugin.note_conditional(0x1000, true);
    let right = (0..CALLS).map(|n| plugin.resolve(0x1000, 0x2000 * n).into()).collect();
    plugin.failure().map_or(Ok(right), |error| Err(error.clone()))
}

fuzz_target!(|bytes: &[u8]| {
    for run in [prefetch, replace, predict, target] {
        assert_eq!(run(bytes), run(bytes));
    }
});
