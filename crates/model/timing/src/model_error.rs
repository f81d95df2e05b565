//! The error for a core that cannot be modelled.

use longma_plugin::PluginError;

/// A core that cannot be modelled as its machine file describes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The machine file lists the core's units, but none executes a class of operations.
    #[error("no unit executes `{operation}`: add it to the operations of one of the core's units")]
    NoUnit {
        /// The class of operations.
        operation: &'static str,
    },
    /// A value is zero or too large.
    #[error("`{key}` is {value}: a core's timing can be modelled with 1 to {max}")]
    OutOfRange {
        /// The machine file's key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The largest value that can be modelled.
        max: u64,
    },
    /// The direction predictor is a plug-in that cannot be used.
    #[error("its branch predictor cannot run: {0}")]
    Predictor(PluginError),
    /// The predictor of indirect targets is a plug-in that cannot be used.
    #[error("its predictor of indirect targets cannot run: {0}")]
    IndirectPredictor(PluginError),
    /// The line length of the instruction cache is not a power of two.
    #[error("an instruction line of {0} bytes is not possible: use a power of two from 4")]
    LineBytes(u64),
}
