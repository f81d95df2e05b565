//! Misses by cache and bandwidth by controller, port and link.

use std::fmt::Write as _;

use longma_lab::number;
use longma_runner::simulation::Traffic;

use super::{RunPage, bytes, name, put, share};
use crate::caches::caches;

/// Maximum number of controllers, ports and links.
const MAX_LINKS: usize = 24;

pub(super) fn write(run: &RunPage<'_>, out: &mut String) {
    let caches = caches(&run.result.statistics);
    if !caches.is_empty() {
        let thousands = run.result.summary.instructions.max(1) as f64 / 1000.0;
        out.push_str("<div class=\"wide\"><table><thead><tr><th>cache<th class=n>accesses<th class=n>misses<th class=n>miss rate<th class=n>per 1000 instr.<th class=n>by loads<th class=n>by stores<th class=n>by fetches</tr></thead>\n");
        for (cache, accesses) in caches {
            let [loads, stores, fetches] = accesses.missed_by_kind.map(|count| number(count as f64));
            put!(
                out,
                "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{:.2}<td class=n>{loads}<td class=n>{stores}<td class=n>{fetches}</tr>\n",
                name(&cache.to_uppercase()),
                number(accesses.all as f64),
                number(accesses.missed as f64),
                share(accesses.missed as f64, accesses.all as f64),
                accesses.missed as f64 / thousands,
            );
        }
        out.push_str("</table></div>\n");
    }
    links(run, out);
}

/// The part of its peak bandwidth that a component used, 0 to 1.
pub(super) fn utilisation(part: &Traffic, seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    part.bytes as f64 / seconds / part.peak_bytes_per_second.max(1) as f64
}

fn links(run: &RunPage<'_>, out: &mut String) {
    let seconds = run.result.summary.time.seconds();
    let mut busy: Vec<&Traffic> = run.result.traffic.iter().filter(|part| part.bytes > 0).collect();
    if run.result.summary.stack.is_none() || seconds <= 0.0 || busy.is_empty() {
        return;
    }
    busy.sort_by(|a, b| {
        utilisation(b, seconds).total_cmp(&utilisation(a, seconds)).then_with(|| a.name.cmp(&b.name))
    });
    out.push_str("<div class=\"wide\"><table class=\"links\"><thead><tr><th>controller, port or link<th class=n>moved<th class=n>GB/s<th class=n>of peak<th></tr></thead>\n");
    for part in busy.iter().take(MAX_LINKS) {
        let used = utilisation(part, seconds);
        put!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{:.3}<td class=n>{:.1} %<td>{}</tr>\n",
            name(&part.name),
            bytes(part.bytes as f64),
            part.bytes as f64 / seconds / 1e9,
            100.0 * used,
            bar(used),
        );
    }
    out.push_str("</table></div>\n");
    if busy.len() > MAX_LINKS {
        put!(out, "<p class=\"note\">{} more carried less.</p>\n", busy.len() - MAX_LINKS);
    }
}

/// A bar of a share between 0 and 1.
pub(super) fn bar(share: f64) -> String {
    format!("<span class=\"meter\"><i style=\"width:{:.1}%\"></i></span>", 100.0 * share.clamp(0.0, 1.0))
}
