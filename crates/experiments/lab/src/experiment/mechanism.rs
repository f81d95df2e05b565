//! What `longma explain` switches: mechanisms, each off or on, in an experiment.
//! Not the explanation: that is `explain`.

use crate::read::{Map, Marks, Name, part};
use crate::setting::Setting;

part! {
    /// A mechanism that can be off or on. Two mechanisms never set the same parameter.
    pub struct Mechanism = "mechanism" {
        /// What it is called in tables; its name if left out.
        title: Option<String>,
        /// Parameters without it, `machine` and `machine.PATH` among them.
        off: Map<Setting>,
        /// Parameters with it; the same ones.
        on: Map<Setting>,
    }
}

part! {
    /// How an experiment is explained: what of the result is due to which mechanism.
    pub struct Explain = "explain" {
        /// Mechanisms by name; if there are none, every swept flag is one.
        mechanisms: Map<Mechanism>,
        /// What is explained; all metrics if left out.
        metrics: Vec<Name>,
        /// Values of swept parameters; every value of those left out is explained by itself.
        at: Map<Setting>,
    }
}

impl Mechanism {
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }
}

impl Explain {
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }
}
