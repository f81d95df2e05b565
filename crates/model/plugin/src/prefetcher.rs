//! A prefetcher as a WebAssembly module.

use crate::sandbox::{Kind, PluginError, Sandbox, State};
use wasmi::{Caller, TypedFunc};

/// Maximum number of lines that a module may request in one call; further requests are ignored.
pub const MAX_LINES: usize = 16;

const KIND: Kind = Kind { name: "prefetchers", import: Some("prefetch") };

/// Why a prefetcher observes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Event {
    /// The line is not in the cache.
    Miss = 0,
    /// The first use of a line that was prefetched.
    FirstUse = 1,
    /// Another use of a line in the cache. First-level caches do not report these.
    Hit = 2,
}

/// The properties of a cache and the keys of its prefetcher in the machine file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a line in bytes.
    pub line_bytes: u32,
    /// Lines of a page, or of the whole address space if the prefetcher crosses pages.
    pub page_lines: u64,
    /// The key `degree`.
    pub degree: u32,
    /// The key `distance`.
    pub distance: u32,
    /// The key `streams`.
    pub streams: u32,
}

/// Lines requested during a call.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    lines: [u64; MAX_LINES],
    count: usize,
}

/// An instance of a module, for one cache.
#[derive(Debug)]
pub struct PrefetcherPlugin {
    sandbox: Sandbox<Requests>,
    observe: TypedFunc<(i64, i64, i32), ()>,
    truncated: Option<TypedFunc<i64, ()>>,
}

impl PrefetcherPlugin {
    /// Creates an instance of the module `bytes` and calls its `start`, if it has one.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, lacks `observe`, imports anything but the functions of this
    /// interface, or its start fails.
    pub fn new(bytes: &[u8], geometry: Geometry) -> Result<Self, PluginError> {
        let request = |mut caller: Caller<'_, State<Requests>>, line: i64| {
            let requests = &mut caller.data_mut().data;
            if let Some(slot) = requests.lines.get_mut(requests.count) {
                *slot = line as u64;
                requests.count += 1;
            }
        };
        let mut sandbox = Sandbox::new(bytes, &KIND, Requests::default(), request)?;
        let observe = sandbox.required("observe", "`observe(line: i64, instruction: i64, event: i32)`")?;
        let truncated = sandbox.optional("truncated", "`truncated(line: i64)`")?;
        let Geometry { line_bytes, page_lines, degree, distance, streams } = geometry;
        sandbox.start(
            "`start(line_bytes: i32, page_lines: i64, degree: i32, distance: i32, streams: i32)`",
            (line_bytes as i32, page_lines as i64, degree as i32, distance as i32, streams as i32),
        )?;
        Ok(Self { sandbox, observe, truncated })
    }

    /// Reports an access to `line` by the instruction at `instruction`. Returns the lines that the module requests, at
    /// most [`MAX_LINES`] and in this order; none after a failure.
    pub fn observe(&mut self, line: u64, instruction: u64, event: Event) -> &[u64] {
        self.sandbox.data_mut().count = 0;
        let arguments = (line as i64, instruction as i64, event as i32);
        if self.sandbox.call("observe", self.observe, arguments).is_none() {
            self.sandbox.data_mut().count = 0;
        }
        let Requests { lines, count } = self.sandbox.data();
        &lines[..*count]
    }

    /// Reports that only the lines before `from` of the last prediction were fetched.
    pub fn truncated(&mut self, from: u64) {
        let Some(truncated) = self.truncated else { return };
        self.sandbox.call("truncated", truncated, from as i64);
        self.sandbox.data_mut().count = 0;
    }

    /// The first failure of the module. After it, the module predicts nothing.
    pub fn failure(&self) -> Option<&PluginError> {
        self.sandbox.failure()
    }
}
