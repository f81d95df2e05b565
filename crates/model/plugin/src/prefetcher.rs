//! A prefetcher as a WebAssembly module.

use crate::sandbox::{self, PluginError, State};
use wasmi::{Caller, ExternType, Linker, Store, TypedFunc};

/// Maximum number of lines that a module may request in one call; further requests are ignored.
pub const MAX_LINES: usize = 16;

/// The module's name for imported functions.
const IMPORTS: &str = "longma";

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
pub struct PrefetcherPlugin {
    store: Store<State<Requests>>,
    observe: TypedFunc<(i64, i64, i32), ()>,
    truncated: Option<TypedFunc<i64, ()>>,
    /// The first failure. After it, the module predicts nothing.
    failure: Option<PluginError>,
}

impl std::fmt::Debug for PrefetcherPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefetcherPlugin").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl PrefetcherPlugin {
    /// Creates an instance of the module `bytes` and calls its `start`, if it has one.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, lacks `observe`, imports anything but the functions of this
    /// interface, or its start fails.
    pub fn new(bytes: &[u8], geometry: Geometry) -> Result<Self, PluginError> {
        let (module, mut store) = sandbox::load(bytes, Requests::default())?;
        let mut linker = Linker::new(store.engine());
        let request = |mut caller: Caller<'_, State<Requests>>, line: i64| {
            let requests = &mut caller.data_mut().data;
            if let Some(slot) = requests.lines.get_mut(requests.count) {
                *slot = line as u64;
                requests.count += 1;
            }
        };
        let defined = linker.func_wrap(IMPORTS, "prefetch", request).map(drop);
        defined.map_err(|error| PluginError::Invalid(error.to_string()))?;
        if let Some(import) = module.imports().find(|import| {
            (import.module(), import.name()) != (IMPORTS, "prefetch")
                || !matches!(import.ty(), ExternType::Func(_))
        }) {
            return Err(PluginError::Import(format!("{}.{}", import.module(), import.name())));
        }
        sandbox::refuel(&mut store);
        let instance = linker
            .instantiate_and_start(&mut store, &module)
            .map_err(|error| sandbox::failed("the module's start", &error))?;
        let observe = instance
            .get_typed_func(&store, "observe")
            .map_err(|_| PluginError::Export("`observe(line: i64, instruction: i64, event: i32)`"))?;
        let truncated = match instance.get_func(&store, "truncated") {
            None => None,
            Some(function) => Some(
                function
                    .typed(&store)
                    .map_err(|_| PluginError::Export("`truncated(line: i64)`, or nothing of this name"))?,
            ),
        };
        if let Some(function) = instance.get_func(&store, "start") {
            let start: TypedFunc<(i32, i64, i32, i32, i32), ()> = function.typed(&store).map_err(|_| {
                PluginError::Export(
                    "`start(line_bytes: i32, page_lines: i64, degree: i32, distance: i32, streams: i32)`, or nothing of this name",
                )
            })?;
            sandbox::refuel(&mut store);
            let Geometry { line_bytes, page_lines, degree, distance, streams } = geometry;
            let arguments =
                (line_bytes as i32, page_lines as i64, degree as i32, distance as i32, streams as i32);
            start.call(&mut store, arguments).map_err(|error| sandbox::failed("start", &error))?;
        }
        Ok(Self { store, observe, truncated, failure: None })
    }

    /// Reports an access to `line` by the instruction at `instruction`. Returns the lines that the module requests, at
    /// most [`MAX_LINES`] and in this order; none after a failure.
    pub fn observe(&mut self, line: u64, instruction: u64, event: Event) -> &[u64] {
        self.store.data_mut().data.count = 0;
        if self.failure.is_none() {
            sandbox::refuel(&mut self.store);
            let arguments = (line as i64, instruction as i64, event as i32);
            if let Err(error) = self.observe.call(&mut self.store, arguments) {
                self.store.data_mut().data.count = 0;
                self.failure = Some(sandbox::failed("observe", &error));
            }
        }
        let Requests { lines, count } = &self.store.data().data;
        &lines[..*count]
    }

    /// Reports that only the lines before `from` of the last prediction were fetched.
    pub fn truncated(&mut self, from: u64) {
        let Some(truncated) = self.truncated.filter(|_| self.failure.is_none()) else { return };
        sandbox::refuel(&mut self.store);
        if let Err(error) = truncated.call(&mut self.store, from as i64) {
            self.failure = Some(sandbox::failed("truncated", &error));
        }
        self.store.data_mut().data.count = 0;
    }

    /// The first failure of the module. After it, the module predicts nothing.
    pub fn failure(&self) -> Option<&PluginError> {
        self.failure.as_ref()
    }
}
