//! Where the numbers of a machine file come from.
//! Not a bibliography format: just what a reader needs to find the place.

use crate::read::{choice, part};

choice! {
    /// What kind of source it is.
    pub enum SourceKind = "a kind of source" {
        /// A maker's manual or optimisation guide.
        Manual = "manual",
        /// A maker's data sheet or product page.
        DataSheet = "data-sheet",
        /// A peer-reviewed paper, thesis or technical report.
        Paper = "paper",
        /// A standard.
        Standard = "standard",
        /// A press article, wiki or test site.
        Article = "article",
        /// Published program text (firmware, driver, simulator configuration).
        Code = "code",
        /// Measured by ourselves; `reasoning` says how.
        Measurement = "measurement",
        /// Read from the operating system.
        System = "system",
        /// Nobody published it; `reasoning` says why the value is plausible.
        Estimate = "estimate",
    }
}

part! {
    /// A source of numbers, cited by its key in `source` and `source_of`.
    pub struct Source = "source" {
        /// What kind of source it is.
        kind: SourceKind,
        /// Title, authors, year.
        title: String,
        /// Page, section, table or figure.
        place: Option<String>,
        /// Where to read it.
        url: Option<String>,
        /// Why the value holds; required for estimates and measurements.
        reasoning: Option<String>,
    }
}
