//! Branch predictors as WebAssembly modules: of directions, and of the targets of indirect branches.

use crate::sandbox::{PluginError, Sandbox};
use wasmi::TypedFunc;

/// The sizes of a predictor's tables in the machine file; 0 if it states none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictorSizes {
    /// The key `table_entries` or `indirect_entries`.
    pub entries: u32,
    /// The key `history_bits` or `indirect_history`.
    pub history: u32,
}

impl PredictorSizes {
    fn arguments(self) -> (i32, i32) {
        (self.entries as i32, self.history as i32)
    }
}

/// An instance of a module that predicts the directions of one core's conditional branches.
#[derive(Debug)]
pub struct DirectionPlugin {
    sandbox: Sandbox<()>,
    predict: TypedFunc<(i64, i64), i32>,
    train: TypedFunc<(i64, i64, i32), ()>,
}

impl DirectionPlugin {
    /// Creates an instance of the module `bytes` and calls its `start`, if it has one.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, lacks a function, imports anything, or its start fails.
    pub fn new(bytes: &[u8], sizes: PredictorSizes) -> Result<Self, PluginError> {
        let mut sandbox = Sandbox::without_imports(bytes, "branch predictors")?;
        let predict = sandbox.required("predict", "`predict(address: i64, target: i64) -> i32`")?;
        let train = sandbox.required("train", "`train(address: i64, target: i64, taken: i32)`")?;
        sandbox.start("`start(table_entries: i32, history_bits: i32)`", sizes.arguments())?;
        Ok(Self { sandbox, predict, train })
    }

    /// Predicts whether the branch at `address` to `target` is taken, then trains the module with the outcome.
    pub fn resolve(&mut self, address: u64, target: u64, taken: bool) -> bool {
        let branch = (address as i64, target as i64);
        let predicted = self.sandbox.call("predict", self.predict, branch);
        self.sandbox.call("train", self.train, (branch.0, branch.1, taken.into()));
        predicted.is_some_and(|predicted| predicted != 0)
    }

    /// The first failure of the module. After it, the predictions are meaningless.
    pub fn failure(&self) -> Option<&PluginError> {
        self.sandbox.failure()
    }
}

/// An instance of a module that predicts the targets of one core's indirect branches.
#[derive(Debug)]
pub struct TargetPlugin {
    sandbox: Sandbox<()>,
    predict: TypedFunc<i64, i64>,
    train: TypedFunc<(i64, i64), ()>,
    conditional: Option<TypedFunc<(i64, i32), ()>>,
}

impl TargetPlugin {
    /// Creates an instance of the module `bytes` and calls its `start`, if it has one.
    ///
    /// # Errors
    /// If it is not a valid module, exceeds a limit, lacks a function, imports anything, or its start fails.
    pub fn new(bytes: &[u8], sizes: PredictorSizes) -> Result<Self, PluginError> {
        let mut sandbox = Sandbox::without_imports(bytes, "predictors of indirect targets")?;
        let predict = sandbox.required("predict", "`predict(address: i64) -> i64`")?;
        let train = sandbox.required("train", "`train(address: i64, target: i64)`")?;
        let conditional = sandbox.optional("conditional", "`conditional(address: i64, taken: i32)`")?;
        sandbox.start("`start(entries: i32, history: i32)`", sizes.arguments())?;
        Ok(Self { sandbox, predict, train, conditional })
    }

    /// Predicts the target of the branch at `address`, then trains the module with the actual one. Returns whether the
    /// prediction was right.
    pub fn resolve(&mut self, address: u64, target: u64) -> bool {
        let predicted = self.sandbox.call("predict", self.predict, address as i64);
        self.sandbox.call("train", self.train, (address as i64, target as i64));
        predicted == Some(target as i64)
    }

    /// Reports the outcome of a conditional branch.
    pub fn note_conditional(&mut self, address: u64, taken: bool) {
        if let Some(conditional) = self.conditional {
            self.sandbox.call("conditional", conditional, (address as i64, taken.into()));
        }
    }

    /// The first failure of the module. After it, the predictions are meaningless.
    pub fn failure(&self) -> Option<&PluginError> {
        self.sandbox.failure()
    }
}
