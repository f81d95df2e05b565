//! Compares user-level communication libraries on the same two cores, in the same run.
//!
//! via-bench [--rounds N] [--json FILE] [--cores A,B] [--only SECTION]

mod channel;
mod iceoryx;
mod limit;
mod processes;
mod programs;
mod publish;
mod sockets;
mod via;

use processes::Cores;

/// A figure of one way to communicate.
struct Row {
    section: &'static str,
    name: &'static str,
    unit: &'static str,
    measure: Box<dyn Fn(Cores) -> Option<f64>>,
}

fn row(
    section: &'static str,
    name: &'static str,
    unit: &'static str,
    measure: impl Fn(Cores) -> Option<f64> + 'static,
) -> Row {
    Row { section, name, unit, measure: Box::new(measure) }
}

/// All measurements. The first row of a section is its limit, by which the other rows are divided.
fn rows() -> Vec<Row> {
    let mut rows = vec![
        row("8 bytes, one way", "the limit: a cache line handed over", "ns", |c| {
            limit::cache_line_latency_ns(c, 300_000)
        }),
        row("8 bytes, one way", "VIA, RDMA write", "ns", |c| via::rdma_write_ns(c, 300_000)),
        row("8 bytes, one way", "VIA, send and receive", "ns", |c| via::latency_ns(c, 8, 300_000)),
        row("8 bytes, one way", "UCX, put", "ns", |c| programs::ucx_put_ns(c, 8)),
        row("8 bytes, one way", "iceoryx2, publish and subscribe", "ns", |c| iceoryx::latency_ns(c, 200_000)),
        row("8 bytes, one way", "UCX, tag send", "ns", |c| programs::ucx_tag_ns(c, 8)),
        row("8 bytes, one way", "libfabric, longma", "ns", |c| {
            programs::libfabric(c, "longma", 8).map(|f| f.0)
        }),
        row("8 bytes, one way", "libfabric, shm", "ns", |c| programs::libfabric(c, "shm", 8).map(|f| f.0)),
        row("8 bytes, one way", "Unix socket, spinning", "ns", |c| sockets::unix_ns(c, 30_000)),
        row("8 bytes, one way", "TCP over loopback, spinning", "ns", |c| sockets::tcp_ns(c, 30_000)),
        row("8-byte messages", "VIA, send and receive", "M/s", |c| via::rate_mps(c, 8, 3_000_000)),
        row("8-byte messages", "UCX, tag send", "M/s", |c| programs::ucx_tag_mps(c, 8)),
    ];
    rows.push(row("64 bytes, call", "Unix socket", "ns", |c| channel::unix_call_ns(c, 30_000)));
    rows.push(row("64 bytes, call", "longma-channel", "ns", |c| channel::call_ns(c, 300_000)));
    rows.push(row("stream", "Unix socket", "GB/s", |c| channel::unix_gb_per_s(c, 1 << 30)));
    rows.push(row("stream", "longma-channel", "GB/s", |c| channel::channel_gb_per_s(c, 1 << 30)));
    rows.extend(publish_rows());
    for (section, bytes) in [("64 KiB", 64 << 10), ("256 KiB", 256 << 10), ("1 MiB", 1 << 20)] {
        rows.push(row(section, "the limit: memcpy", "GB/s", move |c| limit::memcpy_gb_per_s(c, bytes)));
        rows.push(row(section, "VIA, RDMA write", "GB/s", move |c| via::rdma_gbps(c, bytes)));
        rows.push(row(section, "VIA, send and receive", "GB/s", move |c| via::bandwidth_gbps(c, bytes)));
        rows.push(row(section, "UCX, tag send, single copy (CMA)", "GB/s", move |c| {
            programs::ucx_tag_gbps(c, bytes, true)
        }));
        rows.push(row(section, "UCX, tag send", "GB/s", move |c| programs::ucx_tag_gbps(c, bytes, false)));
        for (name, provider) in
            [("libfabric, longma, ping-pong", "longma"), ("libfabric, shm, ping-pong", "shm")]
        {
            rows.push(row(section, name, "GB/s", move |c| {
                programs::libfabric(c, provider, bytes).map(|f| f.1)
            }));
        }
    }
    rows
}

/// Publish and subscribe with one and with four subscribers: the time until all have answered, and the message rate
/// without answers.
fn publish_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let sizes: [(usize, &str, u64); 4] = [
        (8, "8 bytes", 100_000),
        (64, "64 bytes", 100_000),
        (4096, "4 KiB", 50_000),
        (1 << 20, "1 MiB", 500),
    ];
    let libraries = [("longma-pubsub", publish::Library::Longma), ("iceoryx2", publish::Library::Iceoryx)];
    for subscribers in [1, 4] {
        for (bytes, size, messages) in sizes {
            let section: &str = format!("publish {size} to {subscribers}, all answer").leak();
            for (name, library) in libraries {
                rows.push(row(section, name, "ns", move |c| {
                    publish::answered_ns(c, library, bytes, subscribers, messages / subscribers as u64)
                }));
            }
            let section: &str = format!("publish {size} to {subscribers}").leak();
            for (name, library) in libraries {
                rows.push(row(section, name, "M/s", move |c| {
                    publish::rate_mps(c, library, bytes, subscribers, messages * 5)
                }));
            }
        }
    }
    rows
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

struct Options {
    rounds: usize,
    json: Option<String>,
    cores: Cores,
    only: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { rounds: 5, json: None, cores: Cores(0, 1), only: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--rounds" => {
                options.rounds = value.parse().map_err(|_| format!("{value} is not a number of rounds"))?
            }
            "--json" => options.json = Some(value),
            "--only" => options.only = Some(value),
            "--cores" => {
                let cores: Vec<usize> = value.split(',').filter_map(|core| core.parse().ok()).collect();
                let [one, two] = cores[..] else { return Err(format!("{value} is not two cores, like 0,1")) };
                options.cores = Cores(one, two);
            }
            _ => return Err(format!("{name} is not known; see the head of src/main.rs")),
        }
    }
    Ok(options)
}

fn main() {
    let options = options().unwrap_or_else(|error| {
        eprintln!("via-bench: {error}");
        std::process::exit(2);
    });
    let rows: Vec<Row> = rows()
        .into_iter()
        .filter(|row| options.only.as_ref().is_none_or(|only| row.section.contains(only)))
        .collect();
    // Interleave rounds, so that changes of the machine over time affect all rows alike.
    let mut figures = vec![Vec::new(); rows.len()];
    for round in 0..options.rounds {
        for (row, figures) in rows.iter().zip(&mut figures) {
            let figure = (row.measure)(options.cores);
            eprintln!("round {round}: {}, {}: {figure:.1?} {}", row.section, row.name, row.unit);
            figures.extend(figure);
        }
    }
    println!(
        "| what | how | median | best | unit | to the limit |\n| --- | --- | ---: | ---: | --- | ---: |"
    );
    let mut limit = (String::new(), None);
    let mut report = Vec::new();
    for (row, figures) in rows.iter().zip(&figures) {
        let middle = median(figures);
        if limit.0 != row.section {
            limit = (row.section.to_string(), middle.filter(|_| row.name.starts_with("the limit")));
        }
        let best = figures.iter().copied().reduce(if row.unit == "ns" { f64::min } else { f64::max });
        let show = |value: Option<f64>| {
            value.map_or("-".to_string(), |value| format!("{value:.*}", if value < 10.0 { 4 } else { 1 }))
        };
        let ratio =
            middle.zip(limit.1).map_or("-".to_string(), |(middle, limit)| format!("{:.2}", middle / limit));
        println!(
            "| {} | {} | {} | {} | {} | {ratio} |",
            row.section,
            row.name,
            show(middle),
            show(best),
            row.unit
        );
        report.push(serde_json::json!({
            "what": row.section, "how": row.name, "unit": row.unit, "median": middle, "best": best, "all": figures,
        }));
    }
    let costs = via::call_costs_ns();
    println!(
        "\nCalls in one thread, ns: post send {:.0}, send done {:.0}, post receive {:.0}, receive done {:.0}, RDMA write and done {:.0}.",
        costs[0], costs[1], costs[2], costs[3], costs[4]
    );
    if let Some(path) = options.json {
        let text = serde_json::to_string_pretty(&report).expect("numbers");
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("via-bench: {path}: {error}");
            std::process::exit(1);
        }
    }
}
