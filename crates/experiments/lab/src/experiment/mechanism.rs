//! The mechanisms that `longma explain` turns off and on, as the experiment file describes them.

use crate::read::{Map, Name, SourcePositions, part};
use crate::setting::Setting;

part! {
    /// A mechanism that can be off or on. Two mechanisms never set the same parameter.
    pub struct Mechanism = "mechanism" {
        /// Title in tables; the name if left out.
        title: Option<String>,
        /// Parameters without it, which may include `machine` and `machine.PATH`.
        off: Map<Setting>,
        /// The same parameters with it.
        on: Map<Setting>,
    }
}

part! {
    /// The mechanisms among which an explanation divides the result of an experiment.
    pub struct Explain = "explain" {
        /// Mechanisms by name; if there are none, every swept flag is one.
        mechanisms: Map<Mechanism>,
        /// Metrics to explain; all if left out.
        metrics: Vec<Name>,
        /// Values of swept parameters. For parameters left out, every value is explained separately.
        at: Map<Setting>,
    }
}

impl Mechanism {
    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }
}

impl Explain {
    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }
}
