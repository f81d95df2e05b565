//! The limits within which a module runs, and calls of its functions.

use wasmi::{
    Caller, Config, EnforcedLimits, Engine, ExternType, Instance, IntoFunc, Linker, Module, Store,
    StoreLimits, StoreLimitsBuilder, TypedFunc, WasmParams, WasmResults,
};

/// Maximum memory of an instance. Hardware tables of a few megabytes need less.
pub const MAX_MEMORY_BYTES: usize = 64 << 20;
/// Maximum number of WebAssembly instructions of a call, so that an endless loop ends with an error.
pub const MAX_INSTRUCTIONS: u64 = 10_000_000;
/// Maximum number of elements of a table, which holds function pointers.
const MAX_TABLE_ELEMENTS: usize = 10_000;
/// Maximum number of tables of a module.
const MAX_TABLES: usize = 4;

/// The module's name for imported functions.
const IMPORTS: &str = "longma";

/// Why a module cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The module is not valid WebAssembly, or exceeds a limit.
    #[error("not a WebAssembly module that can run here: {0}")]
    Invalid(String),
    /// The module imports a function that this program does not provide.
    #[error(
        "it imports `{name}`, which does not exist for {kind}; if it is a function of the C library, compile without that"
    )]
    Import {
        /// The imported function.
        name: String,
        /// The kind of plug-in, as a plural.
        kind: &'static str,
    },
    /// The module lacks a function, or it has another signature.
    #[error("it must export {0}")]
    Export(&'static str),
    /// A function that need not exist has another signature.
    #[error("it must export {0}, or nothing of this name")]
    Signature(&'static str),
    /// A function of the module failed.
    #[error("`{function}` failed: {message}")]
    Failed {
        /// The function.
        function: &'static str,
        /// How it failed.
        message: String,
    },
    /// A replacement policy chose a way that must not be evicted.
    #[error(
        "`victim` returned way {way}, but the ways that it may choose are those in the mask {allowed:#x}"
    )]
    Way {
        /// The way.
        way: i32,
        /// The mask of the ways that it could have chosen.
        allowed: u64,
    },
}

/// Data of a store.
pub(crate) struct State<T> {
    limits: StoreLimits,
    pub data: T,
}

/// A kind of plug-in.
pub(crate) struct Kind {
    /// Its name, as a plural.
    pub name: &'static str,
    /// The function that it imports, if there is one.
    pub import: Option<&'static str>,
}

/// An instance of a module, within its limits.
pub(crate) struct Sandbox<T: 'static> {
    store: Store<State<T>>,
    instance: Instance,
    /// The first failure. After it, no function is called.
    failure: Option<PluginError>,
}

impl<T: 'static> Sandbox<T> {
    /// Creates an instance of the module `bytes`. `import` is what the imported function of this kind of plug-in does.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, imports anything else, or its start function fails.
    pub fn new<P, R>(
        bytes: &[u8],
        kind: &Kind,
        data: T,
        import: impl IntoFunc<State<T>, P, R>,
    ) -> Result<Self, PluginError> {
        let (module, mut store) = load(bytes, data)?;
        let is_provided = |import: &wasmi::ImportType<'_>| {
            import.module() == IMPORTS
                && Some(import.name()) == kind.import
                && matches!(import.ty(), ExternType::Func(_))
        };
        if let Some(import) = module.imports().find(|import| !is_provided(import)) {
            let name = format!("{}.{}", import.module(), import.name());
            return Err(PluginError::Import { name, kind: kind.name });
        }
        let mut linker = Linker::new(store.engine());
        if let Some(name) = kind.import {
            let defined = linker.func_wrap(IMPORTS, name, import).map(drop);
            defined.map_err(|error| PluginError::Invalid(error.to_string()))?;
        }
        refuel(&mut store);
        let instance = linker
            .instantiate_and_start(&mut store, &module)
            .map_err(|error| failed("the module's start", &error))?;
        Ok(Self { store, instance, failure: None })
    }

    /// The function `name`, which every plug-in of this kind has.
    ///
    /// # Errors
    /// If it does not exist, or its signature is not `signature`.
    pub fn required<P: WasmParams, R: WasmResults>(
        &self,
        name: &str,
        signature: &'static str,
    ) -> Result<TypedFunc<P, R>, PluginError> {
        self.instance.get_typed_func(&self.store, name).map_err(|_| PluginError::Export(signature))
    }

    /// The function `name`, if the module has it.
    ///
    /// # Errors
    /// If its signature is not `signature`.
    pub fn optional<P: WasmParams, R: WasmResults>(
        &self,
        name: &str,
        signature: &'static str,
    ) -> Result<Option<TypedFunc<P, R>>, PluginError> {
        let Some(external) = self.instance.get_export(&self.store, name) else { return Ok(None) };
        let function = external.into_func().and_then(|function| function.typed(&self.store).ok());
        function.map(Some).ok_or(PluginError::Signature(signature))
    }

    /// Calls the function `start`, if the module has it.
    ///
    /// # Errors
    /// If its signature is not `signature`, or it fails.
    pub fn start<P: WasmParams>(&mut self, signature: &'static str, arguments: P) -> Result<(), PluginError> {
        let Some(start) = self.optional::<P, ()>("start", signature)? else { return Ok(()) };
        refuel(&mut self.store);
        start.call(&mut self.store, arguments).map_err(|error| failed("start", &error))
    }

    /// Calls a function of the module. `None` if it fails, or if an earlier call has failed.
    pub fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
        function: TypedFunc<P, R>,
        arguments: P,
    ) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        refuel(&mut self.store);
        function.call(&mut self.store, arguments).map_err(|error| self.fail(failed(name, &error))).ok()
    }

    /// Records a failure: no function is called any more.
    pub fn fail(&mut self, error: PluginError) {
        self.failure.get_or_insert(error);
    }

    /// The first failure.
    pub fn failure(&self) -> Option<&PluginError> {
        self.failure.as_ref()
    }

    /// The data that the imported function changes.
    pub fn data(&self) -> &T {
        &self.store.data().data
    }

    /// The data that the imported function changes.
    pub fn data_mut(&mut self) -> &mut T {
        &mut self.store.data_mut().data
    }
}

impl Sandbox<()> {
    /// Creates an instance of a module of a kind that imports nothing.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn without_imports(bytes: &[u8], name: &'static str) -> Result<Self, PluginError> {
        Self::new(bytes, &Kind { name, import: None }, (), |_: Caller<'_, State<()>>| ())
    }
}

impl<T: 'static> std::fmt::Debug for Sandbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("failure", &self.failure).finish_non_exhaustive()
    }
}

/// Compiles a module, and creates a store with limits for it.
fn load<T>(bytes: &[u8], data: T) -> Result<(Module, Store<State<T>>), PluginError> {
    let mut config = Config::default();
    config.consume_fuel(true).enforced_limits(EnforcedLimits::strict()).ignore_custom_sections(true);
    let engine = Engine::new(&config);
    let module = Module::new(&engine, bytes).map_err(|error| PluginError::Invalid(error.to_string()))?;
    let limits = StoreLimitsBuilder::new()
        .memory_size(MAX_MEMORY_BYTES)
        .memories(1)
        .table_elements(MAX_TABLE_ELEMENTS)
        .tables(MAX_TABLES)
        .instances(1)
        .build();
    let mut store = Store::new(&engine, State { limits, data });
    store.limiter(|state| &mut state.limits);
    Ok((module, store))
}

/// Allows the next call its instructions.
fn refuel<T>(store: &mut Store<State<T>>) {
    // `set_fuel` fails only without fuel metering, which `load` enables.
    let _ = store.set_fuel(MAX_INSTRUCTIONS);
}

/// The error of a call.
fn failed(function: &'static str, error: &wasmi::Error) -> PluginError {
    let message = match error.as_trap_code() {
        Some(wasmi::TrapCode::OutOfFuel) => {
            format!("it ran for more than {MAX_INSTRUCTIONS} instructions: an endless loop?")
        }
        _ => error.to_string(),
    };
    PluginError::Failed { function, message }
}
