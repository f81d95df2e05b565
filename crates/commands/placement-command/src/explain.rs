//! `longma placement explain`: prints why the scheduler accepts or rejects each host and node for a request.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, Page, heading, list as listed};
use super::request::RequestOptions;
use longma_placement::scheduler::{Explanation, HostVerdict, Refusal, Weighed};
use longma_placement_service::client::part;

/// Arguments of `longma placement explain`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    wanted: RequestOptions,
    /// Explain this host only.
    #[arg(long)]
    host: Option<String>,
    /// Print at most this many hosts; the totals cover all hosts.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

fn format_refusals(refusals: &[Refusal]) -> String {
    let one = |r: &Refusal| format!("{}: needs {} {}, has {}", r.filter, r.needed, r.what, r.available);
    refusals.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn format_weights(weights: &[Weighed]) -> String {
    weights.iter().map(|w| format!("{} {:.2}", w.weigher, w.value)).collect::<Vec<_>>().join(", ")
}

fn verdict(page: &mut Page, host: &HostVerdict) {
    let name = &host.host;
    page.line(&match host.score {
        Some(score) => {
            let host_weights = if host.weights.is_empty() {
                String::new()
            } else {
                format!(": {}", format_weights(&host.weights))
            };
            format!("{name} fits, node {}, score {score:.3}{host_weights}", listed(&host.nodes_chosen))
        }
        None if host.refused.is_empty() => {
            format!("{name} does not fit: too few of its nodes are suitable")
        }
        None => format!("{name} does not fit: {}", format_refusals(&host.refused)),
    });
    let mut rows = vec![heading(["  NODE", "", "WHY"])];
    for node in &host.nodes {
        let (mark, why) = match node.refused.is_empty() {
            true if host.nodes_chosen.contains(&node.node) => ("chosen", format_weights(&node.weights)),
            true => ("fits", format_weights(&node.weights)),
            false => ("no", format_refusals(&node.refused)),
        };
        rows.push(vec![format!("  {}", node.node), mark.into(), why]);
    }
    if rows.len() > 1 {
        page.table(&rows);
    }
}

/// Runs `longma placement explain`.
pub fn run(arguments: &Arguments) -> Outcome {
    let host = arguments.host.as_ref().map(|h| format!("&host={}", part(h))).unwrap_or_default();
    let path = format!("/v1/explain?limit={}{host}", arguments.limit);
    let explanation: Explanation =
        arguments.connection.client()?.post(&path, None, &arguments.wanted.body()?).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&explanation);
    }
    let nodes = match explanation.virtual_nodes {
        1 => "one virtual node".to_string(),
        n => format!("{n} virtual nodes"),
    };
    let hosts = |n: u32| if n == 1 { "1 host".to_string() } else { format!("{n} hosts") };
    let mut page = Page::new();
    page.line(&format!("checked with {nodes}; it fits {}", hosts(explanation.fitting)));
    explanation.hosts.iter().for_each(|host| verdict(&mut page, host));
    for (filter, rejected) in &explanation.refused_by {
        page.line(&format!("{filter} rejects {} or nodes of them", hosts(*rejected)));
    }
    page.print()
}
