//! Experiments: read, swept, run, stored, compared with what was published, and reported.
//! Not what is run: each workload is registered from outside; only guest programs, run by the command, are at home here.
//! Source: the experiment file format is described key by key in the book (docs/src/experiments.md), from [`experiment::keys`].

// The `part!` and `choice!` macros of the machine files' reader name this path.
use longma_topology::read;

mod campaign;
mod compare;
mod experiment;
mod explain;
mod export;
mod names;
mod number;
mod point;
mod program;
mod report;
mod setting;
mod store;
mod table;
mod workload;

pub use campaign::{Campaign, Fault, Observer, Options, Outcome, RunError, Shard, State};
pub use compare::{Comparison, Verdict, compare};
pub use experiment::*;
pub use explain::{
    Contribution, ExplainError, Explanation, Game, Gap, MOST_MEMBERS, Place, Selection, Switch,
};
pub use export::{ExportError, Exported, export, write_whole};
pub use names::Names;
pub use number::number;
pub use point::{Key, Point, PointError};
pub use program::{HOST_FAULT_STATUS, HOST_FAULT_WORDS, Program};
pub use report::{Chapter, page};
pub use setting::Setting;
pub use store::{Contradiction, Damage, Merged, Record, Results, Store, StoreError, Writer};
pub use table::{Column, Row, Table};
pub use workload::{
    Failure, FailureKind, Kind, Measure, Metrics, Parameter, Registry, Rehearsal, Stop, Workload,
};
