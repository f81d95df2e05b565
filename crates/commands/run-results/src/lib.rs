//! Shows results of runs: the page of `longma run --report`, the annotated assembly of `--annotate`, the comparison of
//! `longma compare`, the summary of a simulated run, the costs of a functional run, flame graphs, and profiles for pprof.

pub mod annotate;
pub mod caches;
pub mod compare;
pub mod flame_graph;
pub mod function_name;
mod grouped;
pub mod page;
pub mod pprof;
pub mod process_costs;
pub mod summary;

pub use compare::Figures;
pub use grouped::grouped;
