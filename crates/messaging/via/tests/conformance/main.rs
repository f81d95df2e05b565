//! The conformance suite: the requirements of the specification, section by section, checked for every provider.
//!
//! Source: VI Architecture Specification 1.0 (1997), by section titles; VIPL for individual calls.
//!
//! Providers are listed in `providers.rs`. `LONGMA_UPDATE=1` regenerates the table in the book.

mod bed;
mod completion;
mod connection;
mod data;
mod errors;
mod memory;
mod namespaces;
mod providers;
mod rdma;

use bed::Bed;
use longma_via::Reliability;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The reliability levels at which a case runs.
#[derive(Clone, Copy, PartialEq)]
pub enum Levels {
    /// Once, because the level does not matter.
    Once,
    /// At every level that the provider supports.
    All,
    /// At every level except unreliable.
    Reliable,
    /// At every level that supports RDMA read.
    RdmaRead,
    /// At this level, if the provider supports it.
    Only(Reliability),
}

/// A requirement of the specification.
pub struct Case {
    /// The title of the section.
    pub section: &'static str,
    /// The requirement.
    pub claim: &'static str,
    /// The levels at which it applies.
    pub levels: Levels,
    /// Panics if the requirement is violated.
    pub check: fn(&Bed),
}

fn cases() -> impl Iterator<Item = &'static Case> {
    [memory::CASES, connection::CASES, data::CASES, rdma::CASES, completion::CASES, errors::CASES]
        .into_iter()
        .flatten()
}

fn levels_of(case: &Case, bed: &Bed) -> Vec<Reliability> {
    let facts = bed.open();
    let facts = facts.attributes();
    let have = |levels: Vec<Reliability>| {
        levels.into_iter().filter(|level| facts.reliability.contains(level)).collect()
    };
    match case.levels {
        Levels::Once => facts.reliability.last().copied().into_iter().collect(),
        Levels::All => facts.reliability.clone(),
        Levels::Reliable => have(vec![Reliability::ReliableDelivery, Reliability::ReliableReception]),
        Levels::RdmaRead => facts.rdma_read.clone(),
        Levels::Only(level) => have(vec![level]),
    }
}

/// The entry of a case in the table: "yes", "n/a", or the failure.
fn verdict(case: &Case, bed: &Bed) -> Result<&'static str, String> {
    let levels = levels_of(case, bed);
    if levels.is_empty() {
        return Ok("n/a");
    }
    for level in levels {
        let bed = bed.at(level);
        catch_unwind(AssertUnwindSafe(|| (case.check)(&bed))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            format!("{} at {level:?}: {}: {}", bed.name(), case.claim, text.unwrap_or_default())
        })?;
    }
    Ok("yes")
}

const HEAD: &str = "# VIA conformance

Statements of the Virtual Interface Architecture Specification 1.0 and whether each provider of [`longma-via`](../reference/via.md) satisfies them. Each is checked
at every reliability level that the provider has and to which the statement applies; `n/a` means that the provider has no such level. Sections are cited by title,
since copies in circulation number them differently. The suite runs AF_XDP over a veth pair between two network namespaces and skips it where that is not
permitted. It writes this page:

<!-- book: not run: it writes the chapter's table; the test compares it -->
```sh
LONGMA_UPDATE=1 cargo test -p longma-via --test conformance
```

";

#[test]
fn every_provider_conforms_to_the_specification() {
    let beds = providers::all();
    let mut table = String::from(HEAD);
    let mut wrong = Vec::new();
    let names: Vec<_> = beds.iter().map(Bed::name).collect();
    writeln!(table, "| section | statement | {} |", names.join(" | ")).unwrap();
    writeln!(table, "| --- | --- |{}", " --- |".repeat(beds.len())).unwrap();
    for case in cases() {
        let words: Vec<_> = beds
            .iter()
            .map(|bed| {
                verdict(case, bed).unwrap_or_else(|error| {
                    wrong.push(error);
                    "**no**"
                })
            })
            .collect();
        writeln!(table, "| {} | {} | {} |", case.section, case.claim, words.join(" | ")).unwrap();
    }
    assert!(
        wrong.is_empty(),
        "{} of {} claims do not hold:\n{}",
        wrong.len(),
        cases().count(),
        wrong.join("\n")
    );
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/results/via-conformance.md");
    if std::env::var_os("LONGMA_UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&page, table).unwrap();
    } else {
        let book = std::fs::read_to_string(&page).unwrap_or_default();
        // Providers that this machine cannot run keep their column in the book.
        let rows = |text: &str| text.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(rows(&book), rows(&table), "the book's page is out of date: LONGMA_UPDATE=1 renews it");
    }
}
