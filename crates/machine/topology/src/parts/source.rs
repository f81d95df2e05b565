//! Sources of the numbers in a machine file.

use crate::read::{choice, part};

choice! {
    /// Kinds of sources.
    pub enum SourceKind = "a kind of source" {
        /// A vendor's manual or optimization guide.
        Manual = "manual",
        /// A vendor's data sheet or product page.
        DataSheet = "data-sheet",
        /// A peer-reviewed paper, thesis or technical report.
        Paper = "paper",
        /// A standard.
        Standard = "standard",
        /// A press article, wiki or review site.
        Article = "article",
        /// Published source code (firmware, driver, simulator configuration).
        Code = "code",
        /// Our own measurement; `reasoning` describes it.
        Measurement = "measurement",
        /// Read from the operating system.
        System = "system",
        /// An estimate of an unpublished value; `reasoning` says why it is plausible.
        Estimate = "estimate",
    }
}

part! {
    /// A source of numbers, cited by its key in `source` and `source_of`.
    pub struct Source = "source" {
        /// The kind of source.
        kind: SourceKind,
        /// Title, authors, year.
        title: String,
        /// Page, section, table or figure.
        place: Option<String>,
        /// Where to find it.
        url: Option<String>,
        /// Why the value is plausible, or how it was measured; required for estimates and measurements.
        reasoning: Option<String>,
    }
}
