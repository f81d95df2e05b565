//! Experiments: parses experiment files, enumerates and runs their points, stores results, compares them with published
//! values, and renders reports. Workloads are registered by the caller.
//!
//! The book documents the file format (docs/src/reference/experiments.md); its tables are generated from
//! [`experiment::keys`].

// The macros `part!` and `choice!` refer to this path.
use longma_topology::read;

mod campaign;
mod compare;
mod estimate;
mod experiment;
mod explain;
mod export;
mod failure;
mod formula;
mod idle;
mod key;
mod lacking;
mod machines;
mod names;
mod number;
mod pairwise;
mod parameters;
mod point;
mod points;
mod rehearse;
mod replicates;
pub mod report;
mod sensitivity;
mod setting;
mod store;
mod table;
mod units;
mod values;
mod workload;

pub use campaign::{Campaign, Fault, Observer, Options, Outcome, RunError, Shard, State};
pub use compare::{Comparison, Relation, Verdict, compare, relations, whole_values};
pub use experiment::*;
pub use explain::{
    Context, Contribution, ExplainError, Explanation, Game, MAX_MECHANISMS, MissingValue, Selection, Switch,
};
pub use export::{ExportError, Exported, csv, export, write_atomically};
pub use failure::{Failure, FailureKind};
pub use key::{Key, digest};
pub use lacking::{Lacking, Why, lacking};
pub use machines::{EditError, MachineEdit, open_machine, with_space};
pub use names::Names;
pub use number::number;
pub use parameters::{Parameters, Varied};
pub use point::{Point, PointMachine};
pub use points::PointError;
pub use rehearse::RehearsalReport;
#[cfg(feature = "pdf")]
pub use report::pdf;
pub use report::{Chapter, FigureFile, Section, figures, page, page_with, tornado};
pub use sensitivity::{
    Combination, Effect, Effects, Estimate, Sensitivity, SensitivityError, Variations, estimates,
};
pub use setting::Setting;
pub use store::{Contradiction, InvalidLine, Merged, Record, Results, Store, StoreError, Writer};
pub use table::{Column, Row, Table};
pub use workload::{InputFile, Kind, Measure, Metrics, Parameter, Registry, Rehearsal, Stop, Workload};
