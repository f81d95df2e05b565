//! Branch prediction: direction predictors, the target buffer, the return-address stack, and targets of indirect
//! branches. `front_end.rs` charges mispredictions.

mod bimodal;
mod gshare;
mod indirect;
mod perceptron;
mod tage;
mod targets;
mod tournament;
mod two_level;

use crate::model_error::ModelError;
pub(crate) use indirect::IndirectTargets;
use longma_plugin::{DirectionPlugin, PluginError, PredictorSizes};
use longma_topology::Module;
use longma_topology::parts::Predictor;
pub(crate) use targets::{ReturnStack, TargetBuffer};

/// Default size of a direction predictor: 4096 counters, as in the Alpha 21264 (Kessler, 1999).
const DEFAULT_TABLE_ENTRIES: u32 = 4096;
/// Maximum table size in a machine file.
const MAX_TABLE_ENTRIES: u32 = 1 << 24;

/// A resolved conditional branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedBranch {
    /// The branch's address.
    pub address: u64,
    /// Target if taken.
    pub target: u64,
    /// Whether it was taken.
    pub taken: bool,
}

/// A direction predictor. It is updated immediately: the delay between prediction and update is not modelled.
trait Predict {
    /// Returns the prediction for the branch and then trains with its outcome.
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool;
}

/// Static prediction: backward branches are taken, as in loops.
#[derive(Debug)]
struct BackwardTaken;

impl Predict for BackwardTaken {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        outcome.target < outcome.address
    }
}

/// A direction predictor of the kind in the machine file.
#[derive(Debug)]
pub(crate) struct Direction(Kind);

#[derive(Debug)]
enum Kind {
    Static(BackwardTaken),
    Bimodal(bimodal::Bimodal),
    TwoLevel(two_level::TwoLevel),
    Gshare(gshare::Gshare),
    Tournament(tournament::Tournament),
    Perceptron(perceptron::Perceptron),
    Tage(Box<tage::Tage>),
    Plugin(Box<DirectionPlugin>),
}

/// The sizes of the tables of a plug-in.
fn sizes(entries: Option<u32>, history: Option<u32>) -> PredictorSizes {
    PredictorSizes { entries: entries.unwrap_or(0), history: history.unwrap_or(0) }
}

impl Direction {
    /// Creates a predictor with `table_entries` counters and `history_bits` branches of history, if the kind of
    /// predictor uses them. `module` is that of a plug-in.
    ///
    /// # Errors
    /// If the table is too large, or the plug-in cannot be used.
    pub fn new(
        kind: Predictor,
        module: Option<&Module>,
        table_entries: Option<u32>,
        history_bits: Option<u32>,
    ) -> Result<Self, ModelError> {
        let max = if kind == Predictor::Tage { tage::MAX_ENTRIES } else { MAX_TABLE_ENTRIES };
        let entries = table_entries.unwrap_or(DEFAULT_TABLE_ENTRIES);
        if entries == 0 || entries > max {
            let (value, max) = (entries.into(), max.into());
            return Err(ModelError::OutOfRange { key: "table_entries", value, max });
        }
        Ok(Self(match kind {
            Predictor::Static => Kind::Static(BackwardTaken),
            Predictor::Bimodal => Kind::Bimodal(bimodal::Bimodal::new(entries)),
            Predictor::TwoLevel => Kind::TwoLevel(two_level::TwoLevel::new(entries, history_bits)),
            Predictor::Gshare => Kind::Gshare(gshare::Gshare::new(entries, history_bits)),
            Predictor::Tournament => Kind::Tournament(tournament::Tournament::new(entries, history_bits)),
            Predictor::Perceptron => Kind::Perceptron(perceptron::Perceptron::new(entries, history_bits)),
            Predictor::Tage => Kind::Tage(Box::new(tage::Tage::new(entries, history_bits))),
            Predictor::Plugin => {
                let bytes = module.map_or(&[][..], Module::bytes);
                let plugin = DirectionPlugin::new(bytes, sizes(table_entries, history_bits));
                Kind::Plugin(Box::new(plugin.map_err(ModelError::Predictor)?))
            }
        }))
    }

    /// Returns the prediction for the branch and then trains with its outcome.
    #[inline]
    pub fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        match &mut self.0 {
            Kind::Static(p) => p.resolve(outcome),
            Kind::Bimodal(p) => p.resolve(outcome),
            Kind::TwoLevel(p) => p.resolve(outcome),
            Kind::Gshare(p) => p.resolve(outcome),
            Kind::Tournament(p) => p.resolve(outcome),
            Kind::Perceptron(p) => p.resolve(outcome),
            Kind::Tage(p) => p.resolve(outcome),
            Kind::Plugin(p) => p.resolve(outcome.address, outcome.target, outcome.taken),
        }
    }

    /// Why a plug-in has failed; `None` if it has not.
    pub fn failure(&self) -> Option<&PluginError> {
        match &self.0 {
            Kind::Plugin(plugin) => plugin.failure(),
            _ => None,
        }
    }
}

/// The predictor that has failed and why, if one has: only plug-ins can.
pub(crate) fn failure<'a>(
    direction: &'a Direction,
    indirect: &'a IndirectTargets,
) -> Option<(&'static str, &'a PluginError)> {
    let failed = direction.failure().map(|error| ("branch predictor", error));
    failed.or_else(|| Some(("predictor of indirect targets", indirect.failure()?)))
}

/// A table of two-bit counters. Its size is a power of two.
#[derive(Debug)]
struct Counters(Box<[u8]>);

impl Counters {
    /// Creates at most `entries` counters, each weakly not taken.
    fn new(entries: u32) -> Self {
        Self(vec![1; 1 << entries.max(1).ilog2()].into())
    }

    fn len_bits(&self) -> u32 {
        self.0.len().ilog2()
    }

    fn predicts_taken(&self, index: u64) -> bool {
        self.0[index as usize & (self.0.len() - 1)] >= 2
    }

    fn learn(&mut self, index: u64, taken: bool) {
        self.learn_if(true, index, taken);
    }

    /// Trains only if `learns`, without a branch on the host.
    #[inline]
    fn learn_if(&mut self, learns: bool, index: u64, taken: bool) {
        let index = index as usize & (self.0.len() - 1);
        let counter = &mut self.0[index];
        let (more, less) = ((*counter + 1).min(3), counter.saturating_sub(1));
        let learnt = if taken { more } else { less };
        *counter = if learns { learnt } else { *counter };
    }
}

/// A mask of the lowest `bits` bits, up to 64.
const fn ones(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

#[cfg(test)]
mod tests;
