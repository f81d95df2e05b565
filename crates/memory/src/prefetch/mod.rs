//! Hardware prefetchers: which lines to bring before they are asked for.
//! Not software prefetches, which are ordinary accesses nobody waits for.
//! Source: each prefetcher's own file.

mod adjacent_line;
mod next_line;
mod stream;
mod stride;

use crate::cache::Line;
use longma_topology::parts::{Prefetcher as Parameters, PrefetcherKind};

/// The prefetcher of one cache. It sees misses, and first uses of lines it brought, as hardware that watches fill buffers does.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    table: Box<dyn Predicts>,
    reach: Reach,
}

/// A way to find out what will be asked for.
trait Predicts: std::fmt::Debug + Send {
    /// `line` was missed, or used for the first time since it was prefetched, by the instruction at `instruction`.
    fn observe(&mut self, line: Line, instruction: u64, reach: Reach) -> Wanted;
}

/// How far a prefetcher looks.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Lines brought at a time.
    degree: i64,
    /// How far ahead of the access, in lines or strides.
    distance: i64,
    /// Lines of a page, a power of two: physical addresses beyond are another page's. 2^63 for a prefetcher that goes on there.
    page_lines: u64,
}

/// Most lines of one answer.
pub(crate) const MAX_DEGREE: u32 = 16;

/// Lines to bring, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    lines: [Line; MAX_DEGREE as usize],
    count: usize,
}

impl Wanted {
    /// The lines.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }
}

impl Reach {
    /// Adds `line + offset` to `to` if it is on the page of `line`.
    fn want(&self, to: &mut Wanted, line: Line, offset: i64) {
        let same_page = |other: &Line| (other.0 ^ line.0) & !(self.page_lines - 1) == 0;
        if let Some(wanted) = line.offset(offset).filter(same_page)
            && to.count < to.lines.len()
        {
            to.lines[to.count] = wanted;
            to.count += 1;
        }
    }
}

impl Prefetcher {
    /// A prefetcher as the machine file describes it, for pages of `page_lines` lines (a power of two). Where it goes on beyond a page's end,
    /// whoever asks must see which page lies there.
    pub fn new(parameters: &Parameters, page_lines: u64) -> Self {
        let streams = parameters.streams.max(1) as usize;
        let table: Box<dyn Predicts> = match parameters.kind {
            PrefetcherKind::AdjacentLine => Box::new(adjacent_line::AdjacentLine),
            PrefetcherKind::NextLine => Box::new(next_line::NextLine),
            PrefetcherKind::Stream => Box::new(stream::Streams::new(streams)),
            PrefetcherKind::Stride => Box::new(stride::Strides::new(streams)),
        };
        let degree = i64::from(parameters.degree.clamp(1, MAX_DEGREE));
        let distance = i64::from(parameters.distance.max(1));
        let page_lines = if parameters.crosses_pages { 1 << 63 } else { page_lines };
        Self { table, reach: Reach { degree, distance, page_lines } }
    }

    /// `line` was missed, or used for the first time since it was prefetched, by the instruction at `instruction`.
    pub fn observe(&mut self, line: Line, instruction: u64) -> Wanted {
        self.table.observe(line, instruction, self.reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: Reach = Reach { degree: 2, distance: 4, page_lines: 256 };

    fn numbers(wanted: Wanted) -> Vec<u64> {
        wanted.lines().iter().map(|line| line.0).collect()
    }

    #[test]
    fn next_line_stops_at_the_end_of_the_page() {
        let reach = Reach { distance: 1, ..REACH };
        assert_eq!(numbers(next_line::NextLine.observe(Line(10), 0, reach)), [11, 12]);
        assert_eq!(numbers(next_line::NextLine.observe(Line(254), 0, reach)), [255]);
    }

    #[test]
    fn the_adjacent_line_is_the_other_of_the_pair() {
        for (line, other) in [(10, 11), (11, 10), (255, 254)] {
            assert_eq!(numbers(adjacent_line::AdjacentLine.observe(Line(line), 0, REACH)), [other]);
        }
    }

    #[test]
    fn a_stream_starts_after_three_misses_in_a_row_and_runs_ahead_in_either_direction() {
        for step in [1i64, -1] {
            let mut streams = stream::Streams::new(2);
            let at = |n: i64| Line((100 + n * step) as u64);
            assert!(streams.observe(at(0), 0, REACH).lines().is_empty());
            assert!(streams.observe(at(1), 0, REACH).lines().is_empty());
            assert_eq!(numbers(streams.observe(at(2), 0, REACH)), [at(3).0, at(4).0]);
            assert_eq!(numbers(streams.observe(at(3), 0, REACH)), [at(5).0, at(6).0]);
            assert_eq!(numbers(streams.observe(at(4), 0, REACH)), [at(7).0, at(8).0]);
            // Already four ahead: one more line a miss.
            assert_eq!(numbers(streams.observe(at(5), 0, REACH)), [at(9).0]);
        }
    }

    #[test]
    fn steps_of_several_lines_are_no_stream() {
        for step in 3..=16 {
            let mut streams = stream::Streams::new(16);
            let lines = (0..100).map(|n| Line(5000 + n * step));
            let wanted = lines.map(|line| streams.observe(line, 0, REACH).lines().len()).sum::<usize>();
            assert_eq!(wanted, 0, "in steps of {step} lines");
        }
    }

    #[test]
    fn a_stream_goes_on_where_some_of_its_lines_are_left_out() {
        let mut streams = stream::Streams::new(4);
        for line in 100..103 {
            streams.observe(Line(line), 0, REACH);
        }
        // Lines 103 and 104 are there, and the second of them is used first.
        assert_eq!(numbers(streams.observe(Line(104), 0, REACH)), [105, 106]);
        assert!(streams.observe(Line(103), 0, REACH).lines().is_empty());
        assert_eq!(numbers(streams.observe(Line(105), 0, REACH)), [107, 108]);
    }

    #[test]
    fn a_stream_does_not_take_what_a_nearer_one_goes_on_with() {
        let mut streams = stream::Streams::new(4);
        for line in [100, 101, 102, 110, 111, 112] {
            streams.observe(Line(line), 0, REACH);
        }
        for line in 103..=108 {
            streams.observe(Line(line), 0, REACH);
        }
        // The first stream has run as far as 113, too.
        assert_eq!(numbers(streams.observe(Line(113), 0, REACH)), [115, 116]);
        assert_eq!(numbers(streams.observe(Line(109), 0, REACH)), [113]);
    }

    #[test]
    fn random_misses_start_no_stream() {
        let mut streams = stream::Streams::new(4);
        let misses = [5u64, 90, 33, 71, 12, 200, 150];
        assert!(misses.iter().all(|line| streams.observe(Line(*line), 0, REACH).lines().is_empty()));
    }

    #[test]
    fn a_stride_is_learnt_for_each_instruction_apart() {
        let mut strides = stride::Strides::new(16);
        for n in 0..2 {
            assert!(strides.observe(Line(n * 3), 0x100, REACH).lines().is_empty());
            assert!(strides.observe(Line(100 + n), 0x104, REACH).lines().is_empty());
        }
        assert_eq!(numbers(strides.observe(Line(6), 0x100, REACH)), [6 + 4 * 3, 6 + 5 * 3]);
        assert_eq!(numbers(strides.observe(Line(102), 0x104, REACH)), [106, 107]);
    }
}
