//! The limits within which a module runs.

use wasmi::{Config, EnforcedLimits, Engine, Module, Store, StoreLimits, StoreLimitsBuilder};

/// Maximum memory of an instance. Hardware tables of a few megabytes need less.
pub const MAX_MEMORY_BYTES: usize = 64 << 20;
/// Maximum number of WebAssembly instructions of a call, so that an endless loop ends with an error.
pub const MAX_INSTRUCTIONS: u64 = 10_000_000;
/// Maximum number of elements of a table, which holds function pointers.
const MAX_TABLE_ELEMENTS: usize = 10_000;

/// Why a module cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The module is not valid WebAssembly, or exceeds a limit.
    #[error("not a WebAssembly module that can run here: {0}")]
    Invalid(String),
    /// The module imports a function that this program does not provide.
    #[error(
        "it imports `{0}`, which does not exist: plug-ins import only functions of `longma`, so compile without a C library"
    )]
    Import(String),
    /// The module lacks a function, or it has another signature.
    #[error("it must export {0}")]
    Export(&'static str),
    /// A function of the module failed.
    #[error("`{function}` failed: {message}")]
    Failed {
        /// The function.
        function: &'static str,
        /// How it failed.
        message: String,
    },
}

/// Data of a store.
pub(crate) struct State<T> {
    limits: StoreLimits,
    pub data: T,
}

/// Compiles a module, and creates a store with limits for it.
pub(crate) fn load<T>(bytes: &[u8], data: T) -> Result<(Module, Store<State<T>>), PluginError> {
    let mut config = Config::default();
    config.consume_fuel(true).enforced_limits(EnforcedLimits::strict()).ignore_custom_sections(true);
    let engine = Engine::new(&config);
    let module = Module::new(&engine, bytes).map_err(|error| PluginError::Invalid(error.to_string()))?;
    let limits = StoreLimitsBuilder::new()
        .memory_size(MAX_MEMORY_BYTES)
        .table_elements(MAX_TABLE_ELEMENTS)
        .instances(1)
        .build();
    let mut store = Store::new(&engine, State { limits, data });
    store.limiter(|state| &mut state.limits);
    Ok((module, store))
}

/// Allows the next call its instructions.
pub(crate) fn refuel<T>(store: &mut Store<State<T>>) {
    // `set_fuel` fails only without fuel metering, which `load` enables.
    let _ = store.set_fuel(MAX_INSTRUCTIONS);
}

/// The error of a call.
pub(crate) fn failed(function: &'static str, error: &wasmi::Error) -> PluginError {
    let message = match error.as_trap_code() {
        Some(wasmi::TrapCode::OutOfFuel) => {
            format!("it ran for more than {MAX_INSTRUCTIONS} instructions: an endless loop?")
        }
        _ => error.to_string(),
    };
    PluginError::Failed { function, message }
}
