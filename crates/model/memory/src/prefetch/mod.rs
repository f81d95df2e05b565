//! Hardware prefetchers: they predict which lines a cache will need.

mod adjacent_line;
mod next_line;
mod plugin;
mod stream;
mod stride;

use crate::cache::Line;
pub(crate) use longma_plugin::Event;
use longma_plugin::PluginError;
use longma_topology::parts::{Prefetcher as Parameters, PrefetcherKind};

/// The prefetcher of one cache. Like hardware that observes the fill buffers, it sees misses and the first use of each
/// prefetched line; plug-ins of a second-level or shared cache also see other hits.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    table: Box<dyn PrefetchAlgorithm>,
    limits: Limits,
}

/// A prefetch algorithm.
trait PrefetchAlgorithm: std::fmt::Debug + Send {
    /// Observes that the instruction at `instruction` missed on `line` or used it for the first time since its
    /// prefetch. Returns the lines to fetch.
    fn observe(&mut self, line: Line, instruction: u64, limits: Limits) -> Prediction;

    /// Observes an access like [`PrefetchAlgorithm::observe`], for algorithms that distinguish events.
    fn observe_event(&mut self, line: Line, instruction: u64, _event: Event, limits: Limits) -> Prediction {
        self.observe(line, instruction, limits)
    }

    /// Reports that only the lines before `from` of the last prediction were fetched: the others are on a page that is
    /// not adjacent in physical memory, or not mapped yet.
    fn truncated(&mut self, _from: Line) {}

    /// Whether the algorithm also observes [`Event::Hit`].
    fn sees_hits(&self) -> bool {
        false
    }

    /// Why the algorithm has stopped predicting; `None` if it has not.
    fn failure(&self) -> Option<&PluginError> {
        None
    }
}

/// Limits of a prediction.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Maximum number of lines of one prediction.
    degree: i64,
    /// Distance ahead of the access, in lines or strides.
    distance: i64,
    /// Lines per page, a power of two: the next physical page may be unrelated. 2^63 for a prefetcher that crosses
    /// pages.
    page_lines: u64,
}

/// Maximum degree: the length of a prediction.
pub(crate) const MAX_DEGREE: u32 = 16;

/// Lines to fetch, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prediction {
    lines: [Line; MAX_DEGREE as usize],
    count: usize,
}

impl Prediction {
    /// The lines to fetch.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }
}

impl Limits {
    /// Appends `line + offset` to `to`. Returns false if it is not on the page of `line` or `to` is full.
    fn append(&self, to: &mut Prediction, line: Line, offset: i64) -> bool {
        let is_on_page = |other: &Line| (other.0 ^ line.0) & !(self.page_lines - 1) == 0;
        let Some(prediction) = line.offset(offset).filter(is_on_page) else { return false };
        let Some(slot) = to.lines.get_mut(to.count) else { return false };
        *slot = prediction;
        to.count += 1;
        true
    }
}

impl Prefetcher {
    /// Creates the prefetcher that the machine file describes, for lines of `line_bytes` bytes and pages of `page_lines`
    /// lines (powers of two). If it crosses pages, the caller must check that the next page is contiguous in physical
    /// memory.
    ///
    /// # Errors
    /// If it is a plug-in that cannot be used.
    pub fn new(parameters: &Parameters, line_bytes: u32, page_lines: u64) -> Result<Self, PluginError> {
        let page_lines = if parameters.crosses_pages { 1 << 63 } else { page_lines };
        let streams = parameters.streams.max(1) as usize;
        let table: Box<dyn PrefetchAlgorithm> = match parameters.kind {
            PrefetcherKind::AdjacentLine => Box::new(adjacent_line::AdjacentLine),
            PrefetcherKind::NextLine => Box::new(next_line::NextLine),
            PrefetcherKind::Stream => Box::new(stream::Streams::new(streams)),
            PrefetcherKind::Stride => Box::new(stride::Strides::new(streams)),
            PrefetcherKind::Plugin => Box::new(plugin::Plugin::new(parameters, line_bytes, page_lines)?),
        };
        let degree = i64::from(parameters.degree.clamp(1, MAX_DEGREE));
        let distance = i64::from(parameters.distance.max(1));
        Ok(Self { table, limits: Limits { degree, distance, page_lines } })
    }

    /// Observes an access to `line` by the instruction at `instruction`. Returns the lines to fetch.
    pub fn observe(&mut self, line: Line, instruction: u64, event: Event) -> Prediction {
        self.table.observe_event(line, instruction, event, self.limits)
    }

    /// Whether the algorithm also observes [`Event::Hit`].
    pub fn sees_hits(&self) -> bool {
        self.table.sees_hits()
    }

    /// Why the algorithm has stopped predicting; `None` if it has not.
    pub fn failure(&self) -> Option<&PluginError> {
        self.table.failure()
    }

    /// Reports that only the lines before `from` of the last prediction were fetched: the others are on a page that is
    /// not adjacent in physical memory, or not mapped yet.
    pub fn truncated(&mut self, from: Line) {
        self.table.truncated(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { degree: 2, distance: 4, page_lines: 256 };

    fn numbers(prediction: Prediction) -> Vec<u64> {
        prediction.lines().iter().map(|line| line.0).collect()
    }

    #[test]
    fn next_line_stops_at_the_end_of_the_page() {
        let limits = Limits { distance: 1, ..LIMITS };
        assert_eq!(numbers(next_line::NextLine.observe(Line(10), 0, limits)), [11, 12]);
        assert_eq!(numbers(next_line::NextLine.observe(Line(254), 0, limits)), [255]);
    }

    #[test]
    fn the_adjacent_line_is_the_other_line_of_the_pair() {
        for (line, other) in [(10, 11), (11, 10), (255, 254)] {
            assert_eq!(numbers(adjacent_line::AdjacentLine.observe(Line(line), 0, LIMITS)), [other]);
        }
    }

    #[test]
    fn a_stream_starts_after_three_misses_in_a_row_and_runs_ahead_in_either_direction() {
        for step in [1i64, -1] {
            let mut streams = stream::Streams::new(2);
            let at = |n: i64| Line((100 + n * step) as u64);
            assert!(streams.observe(at(0), 0, LIMITS).lines().is_empty());
            assert!(streams.observe(at(1), 0, LIMITS).lines().is_empty());
            assert_eq!(numbers(streams.observe(at(2), 0, LIMITS)), [at(3).0, at(4).0]);
            assert_eq!(numbers(streams.observe(at(3), 0, LIMITS)), [at(5).0, at(6).0]);
            assert_eq!(numbers(streams.observe(at(4), 0, LIMITS)), [at(7).0, at(8).0]);
            // The stream is already four lines ahead: it fetches one more line per miss.
            assert_eq!(numbers(streams.observe(at(5), 0, LIMITS)), [at(9).0]);
        }
    }

    #[test]
    fn steps_of_several_lines_do_not_form_a_stream() {
        for step in 3..=16 {
            let mut streams = stream::Streams::new(16);
            let lines = (0..100).map(|n| Line(5000 + n * step));
            let prediction = lines.map(|line| streams.observe(line, 0, LIMITS).lines().len()).sum::<usize>();
            assert_eq!(prediction, 0, "in steps of {step} lines");
        }
    }

    #[test]
    fn a_stream_continues_although_some_of_its_lines_hit() {
        let mut streams = stream::Streams::new(4);
        for line in 100..103 {
            streams.observe(Line(line), 0, LIMITS);
        }
        // Lines 103 and 104 are in the cache, and 104 is used first.
        assert_eq!(numbers(streams.observe(Line(104), 0, LIMITS)), [105, 106]);
        assert!(streams.observe(Line(103), 0, LIMITS).lines().is_empty());
        assert_eq!(numbers(streams.observe(Line(105), 0, LIMITS)), [107, 108]);
    }

    #[test]
    fn a_stream_does_not_capture_accesses_of_a_nearer_one() {
        let mut streams = stream::Streams::new(4);
        for line in [100, 101, 102, 110, 111, 112] {
            streams.observe(Line(line), 0, LIMITS);
        }
        for line in 103..=108 {
            streams.observe(Line(line), 0, LIMITS);
        }
        // The first stream has also run ahead to 113.
        assert_eq!(numbers(streams.observe(Line(113), 0, LIMITS)), [115, 116]);
        assert_eq!(numbers(streams.observe(Line(109), 0, LIMITS)), [113]);
    }

    #[test]
    fn a_stream_does_not_count_lines_beyond_a_page_as_fetched() {
        for (step, begin) in [(1i64, 240u64), (-1, 271)] {
            let mut streams = stream::Streams::new(2);
            let at = |n: i64| Line(begin.wrapping_add_signed(n * step));
            let prediction: Vec<u64> =
                (0..=17).flat_map(|n| numbers(streams.observe(at(n), 0, LIMITS))).collect();
            // Lines 3 to 15 precede the page boundary; beyond it, the stream starts again.
            let expected: Vec<u64> = (3..16).chain(17..=20).map(|n| at(n).0).collect();
            assert_eq!(prediction, expected, "in steps of {step}");
        }
    }

    #[test]
    fn a_stream_does_not_count_truncated_lines_as_fetched() {
        let mut streams = stream::Streams::new(2);
        for line in 100..103 {
            streams.observe(Line(line), 0, LIMITS);
        }
        streams.truncated(Line(104));
        assert_eq!(numbers(streams.observe(Line(103), 0, LIMITS)), [104, 105]);
    }

    #[test]
    fn random_misses_do_not_start_a_stream() {
        let mut streams = stream::Streams::new(4);
        let misses = [5u64, 90, 33, 71, 12, 200, 150];
        assert!(misses.iter().all(|line| streams.observe(Line(*line), 0, LIMITS).lines().is_empty()));
    }

    #[test]
    fn strides_are_learnt_per_instruction() {
        let mut strides = stride::Strides::new(16);
        for n in 0..2 {
            assert!(strides.observe(Line(n * 3), 0x100, LIMITS).lines().is_empty());
            assert!(strides.observe(Line(100 + n), 0x104, LIMITS).lines().is_empty());
        }
        assert_eq!(numbers(strides.observe(Line(6), 0x100, LIMITS)), [6 + 4 * 3, 6 + 5 * 3]);
        assert_eq!(numbers(strides.observe(Line(102), 0x104, LIMITS)), [106, 107]);
    }
}
