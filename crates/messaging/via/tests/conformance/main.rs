//! The conformance suite: what the specification says of a VI provider, section by section, against every provider there is.
//! Not a test of how a provider does it, nor of how fast.
//! Source: VI Architecture Specification 1.0 (1997), by the titles of its sections; VIPL where a call is meant.
//!
//! A provider takes part by an entry in `providers.rs`. `LONGMA_UPDATE=1` renews the book's table.

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

/// At which reliability levels a case is run.
#[derive(Clone, Copy, PartialEq)]
pub enum Levels {
    /// Once; the level does not matter.
    Once,
    /// At each that the provider has.
    All,
    /// At each but unreliable.
    Reliable,
    /// At each that has RDMA read.
    RdmaRead,
    /// At this one, if the provider has it.
    Only(Reliability),
}

/// One thing that the specification says.
pub struct Case {
    /// The title of its section.
    pub section: &'static str,
    /// What has to hold.
    pub claim: &'static str,
    /// Where it has to.
    pub levels: Levels,
    /// Panics if it does not.
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

/// The table's word for a case: "yes", "n/a", or what went wrong.
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
fn every_provider_does_what_the_specification_says() {
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
    if std::env::var_os("LONGMA_UPDATE").is_some_and(|it| it == "1") {
        std::fs::write(&page, table).unwrap();
    } else {
        let book = std::fs::read_to_string(&page).unwrap_or_default();
        // Providers that this machine cannot run leave their column in the book.
        let rows = |text: &str| text.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(rows(&book), rows(&table), "the book's page is out of date: LONGMA_UPDATE=1 renews it");
    }
}
