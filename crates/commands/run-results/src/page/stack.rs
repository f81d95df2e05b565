//! The CPI stack of the whole run and over time.

use std::fmt::Write as _;

use longma_lab::report::{
    draw::{Frame, grid, svg, text, x_labels},
    escape,
    scale::Scale,
};
use longma_runner::{simulation::Summary, timing::Cause};

use super::{RunPage, percent, put};

/// Shares below this are left out of the bar and the table, in percent.
const MIN_PERCENT: f64 = 0.05;
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 250.0;

pub(super) fn write(run: &RunPage<'_>, out: &mut String) {
    let summary = &run.result.summary;
    let Some(stack) = &summary.stack else { return };
    let total: f64 = stack.iter().sum();
    let shown: Vec<Cause> = Cause::ALL
        .into_iter()
        .filter(|cause| percent(stack[*cause as usize], total) >= MIN_PERCENT)
        .collect();
    out.push_str("<div class=\"stack\" role=\"img\" aria-label=\"shares of the causes, as in the table\">");
    for cause in &shown {
        let share = percent(stack[*cause as usize], total);
        let label = if share >= 7.0 { cause.name() } else { "" };
        put!(
            out,
            "<i class=\"c-{0}\" style=\"flex:{share:.2}\" title=\"{0}: {share:.1} %\"><span>{label}</span></i>",
            cause.name()
        );
    }
    out.push_str("</div>\n<div class=\"wide\"><table class=\"causes\"><thead><tr><th>cause<th class=n>share<th class=n>CPI<th>cycles spent</tr></thead>\n");
    for cause in &shown {
        let cycles = stack[*cause as usize];
        put!(
            out,
            "<tr><td><i class=\"key c-{0}\"></i>{0}<td class=n>{1:.1} %<td class=n>{2:.3}<td>{3}</tr>\n",
            cause.name(),
            percent(cycles, total),
            cycles / summary.instructions.max(1) as f64,
            escape(cause.description()),
        );
    }
    out.push_str("</table></div>\n");
    over_time(&run.result.intervals, summary, out);
}

/// The counts between two summaries.
struct Interval {
    /// Instructions at its beginning and end, in millions.
    from: f64,
    to: f64,
    /// Cycles per instruction by cause, without idle cycles.
    cpi: [f64; Cause::ALL.len()],
}

fn intervals(kept: &[Summary], whole: &Summary) -> Vec<Interval> {
    let nothing = [0.0; Cause::ALL.len()];
    let (mut instructions, mut cycles) = (0, nothing);
    let mut found = Vec::new();
    for summary in kept.iter().chain([whole]) {
        let (Some(now), more) = (summary.stack, summary.instructions.saturating_sub(instructions)) else {
            continue;
        };
        if more == 0 {
            continue;
        }
        let mut cpi = nothing;
        for cause in Cause::ALL.into_iter().filter(|cause| *cause != Cause::Idle) {
            let index = cause as usize;
            cpi[index] = (now[index] - cycles[index]).max(0.0) / more as f64;
        }
        let (from, to) = (instructions as f64 / 1e6, summary.instructions as f64 / 1e6);
        found.push(Interval { from, to, cpi });
        (instructions, cycles) = (summary.instructions, now);
    }
    found
}

/// The stack over time: one column for each interval.
fn over_time(kept: &[Summary], whole: &Summary, out: &mut String) {
    let intervals = intervals(kept, whole);
    if intervals.len() < 4 {
        return;
    }
    let frame = Frame { left: 44.0, right: WIDTH - 12.0, top: 26.0, bottom: HEIGHT };
    let heights: Vec<f64> = intervals.iter().map(|interval| interval.cpi.iter().sum()).collect();
    let top = clipped_top(&heights);
    let y = Scale::of([0.0, top].into_iter(), (frame.bottom, frame.top), false, true);
    let x = Scale::of(
        [0.0, intervals[intervals.len() - 1].to].into_iter(),
        (frame.left, frame.right),
        false,
        true,
    );
    let mut inside = String::new();
    let ticks: Vec<_> = y.ticks(5).into_iter().map(|(value, words)| (y.place(value), words)).collect();
    grid(&mut inside, frame, &ticks);
    text(&mut inside, "axis", 2.0, 13.0, "cycles per instruction");
    for interval in &intervals {
        column(interval, (&x, &y), &mut inside);
    }
    let ticks: Vec<_> = x.ticks(8).into_iter().map(|(value, words)| (x.place(value), words)).collect();
    x_labels(&mut inside, frame, &ticks);
    text(&mut inside, "axis end", frame.right, HEIGHT + 40.0, "millions of instructions of all cores");
    out.push_str("<figure class=\"chart over-time\"><figcaption>The stack over time <span>without idle cycles</span></figcaption>\n<div class=\"legend\">");
    let occurs =
        |cause: &Cause| intervals.iter().any(|interval| interval.cpi[*cause as usize] >= top / 200.0);
    for cause in Cause::ALL.iter().filter(|cause| occurs(cause)) {
        put!(out, "<span><i class=\"key c-{0}\"></i>{0}</span>", cause.name());
    }
    put!(out, "</div>\n{}</figure>\n", svg(WIDTH, HEIGHT + 46.0, "CPI stack over time", &inside));
    if heights.iter().any(|height| *height > top) {
        put!(out, "<p class=\"note\">Columns above {top:.1} are cut off.</p>\n");
    }
}

/// The top of the axis: the highest column, unless few columns are much higher than the others.
fn clipped_top(heights: &[f64]) -> f64 {
    let mut sorted = heights.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = sorted[(sorted.len() - 1) * 97 / 100];
    let highest = sorted[sorted.len() - 1];
    if highest > 2.0 * high && high > 0.0 { 1.5 * high } else { highest.max(1e-9) }
}

fn column(interval: &Interval, (x, y): (&Scale, &Scale), inside: &mut String) {
    let (left, right) = (x.place(interval.from), x.place(interval.to));
    let total: f64 = interval.cpi.iter().sum();
    put!(inside, "<g><title>{:.2} to {:.2} M: CPI {total:.3}", interval.from, interval.to);
    let mut largest: Vec<Cause> = Cause::ALL.to_vec();
    largest.sort_by(|a, b| interval.cpi[*b as usize].total_cmp(&interval.cpi[*a as usize]));
    for cause in largest.iter().take(4).filter(|cause| interval.cpi[**cause as usize] > 0.0) {
        put!(inside, "\n{} {:.3}", cause.name(), interval.cpi[*cause as usize]);
    }
    inside.push_str("</title>");
    let mut sum = 0.0;
    for cause in Cause::ALL {
        let cycles = interval.cpi[cause as usize];
        let (bottom, top) = (y.place(sum), y.place(sum + cycles));
        sum += cycles;
        if bottom - top >= 0.05 {
            put!(
                inside,
                "<rect class=\"c-{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                cause.name(),
                (right - left).max(0.3),
                bottom - top
            );
        }
    }
    inside.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_sim::Duration;

    fn summary(instructions: u64, base: f64, memory: f64) -> Summary {
        let mut stack = [0.0; Cause::ALL.len()];
        stack[Cause::Base as usize] = base;
        stack[Cause::LocalMemory as usize] = memory;
        stack[Cause::Idle as usize] = 1e9;
        Summary {
            instructions,
            busy_cycles: base + memory,
            time: Duration::ZERO,
            cores: 1,
            stack: Some(stack),
            branches: None,
        }
    }

    #[test]
    fn an_interval_has_the_cycles_of_its_own_instructions() {
        let kept = [summary(1_000_000, 250_000.0, 0.0), summary(2_000_000, 500_000.0, 3_000_000.0)];
        let whole = summary(2_000_000, 500_000.0, 3_000_000.0);
        let found = intervals(&kept, &whole);
        assert_eq!(found.len(), 2, "the run ended at the last summary");
        assert_eq!(found[0].cpi.iter().sum::<f64>(), 0.25, "idle cycles do not count");
        assert_eq!(found[1].cpi[Cause::LocalMemory as usize], 3.0);
        assert_eq!((found[1].from, found[1].to), (1.0, 2.0));
    }

    #[test]
    fn one_high_column_does_not_flatten_the_others() {
        let mut heights = vec![1.0; 100];
        assert_eq!(clipped_top(&heights), 1.0);
        heights[3] = 50.0;
        assert_eq!(clipped_top(&heights), 1.5);
    }
}
