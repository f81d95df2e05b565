//! Shows results of simulated runs: the page of `longma run --report`, the annotated assembly of `--annotate`, and the
//! comparison of `longma compare`.

pub mod annotate;
pub mod caches;
pub mod compare;
pub mod page;

pub use compare::Figures;
