//! Prediction of the targets of indirect branches.

mod ittage;
mod target_cache;

use super::TargetBuffer;
use super::targets::{WAYS, word};
use crate::model_error::ModelError;
use ittage::Ittage;
use longma_plugin::{PluginError, TargetPlugin};
use longma_topology::Module;
use longma_topology::parts::{IndirectPredictor, MAX_INDIRECT_ENTRIES};
use target_cache::TargetCache;

/// Default number of targets: 512, as in the target cache of Chang, Hao and Patt.
const DEFAULT_ENTRIES: u32 = 512;

/// A predictor of indirect targets of the kind in the machine file.
#[derive(Debug)]
pub(crate) struct IndirectTargets(Kind);

#[derive(Debug)]
enum Kind {
    LastTarget(TargetBuffer),
    TargetCache(TargetCache),
    Ittage(Box<Ittage>),
    Plugin(Box<TargetPlugin>),
}

impl IndirectTargets {
    /// Creates a predictor with at most `entries` targets, selected by a history of the given length if the kind of
    /// predictor uses one. `module` is that of a plug-in.
    ///
    /// # Errors
    /// If a number is out of range, or the plug-in cannot be used.
    pub fn new(
        kind: IndirectPredictor,
        module: Option<&Module>,
        entries: Option<u32>,
        history: Option<u32>,
    ) -> Result<Self, ModelError> {
        let sizes = super::sizes(entries, history);
        let entries = entries.unwrap_or(DEFAULT_ENTRIES);
        in_range("indirect_entries", entries, 1, MAX_INDIRECT_ENTRIES)?;
        let history = match kind.history() {
            Some(lengths) => {
                let history = history.unwrap_or(lengths.default);
                in_range("indirect_history", history, lengths.min, lengths.max)?;
                history
            }
            None => 0,
        };
        Ok(Self(match kind {
            IndirectPredictor::LastTarget => Kind::LastTarget(TargetBuffer::new(entries)),
            IndirectPredictor::TargetCache => Kind::TargetCache(TargetCache::new(entries, history)),
            IndirectPredictor::Ittage => Kind::Ittage(Box::new(Ittage::new(entries, history))),
            IndirectPredictor::Plugin => {
                let plugin = TargetPlugin::new(module.map_or(&[][..], Module::bytes), sizes);
                Kind::Plugin(Box::new(plugin.map_err(ModelError::IndirectPredictor)?))
            }
        }))
    }

    /// Predicts the target of `branch`, then trains with the actual `target`. Returns whether the prediction was right.
    #[inline]
    pub fn resolve(&mut self, branch: u64, target: u64) -> bool {
        match &mut self.0 {
            Kind::LastTarget(buffer) => buffer.resolve(branch, target),
            Kind::TargetCache(cache) => cache.resolve(branch, target),
            Kind::Ittage(predictor) => predictor.resolve(branch, target),
            Kind::Plugin(plugin) => plugin.resolve(branch, target),
        }
    }

    /// Adds the outcome of the conditional branch at `address` to the history, if the predictor uses it.
    #[inline]
    pub fn note_conditional(&mut self, address: u64, taken: bool) {
        match &mut self.0 {
            Kind::Ittage(predictor) => predictor.note_conditional(taken),
            Kind::Plugin(plugin) => plugin.note_conditional(address, taken),
            Kind::LastTarget(_) | Kind::TargetCache(_) => {}
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

fn in_range(key: &'static str, value: u32, min: u32, max: u32) -> Result<(), ModelError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ModelError::OutOfRange { key, value: value.into(), max: max.into() })
}

/// Mixes the bits of a path, so that every bit of the result depends on all of them. Hardware folds them by XOR
/// instead, with the same purpose.
#[inline]
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ bits >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
