//! `longma via top`.

use crate::{FolderOptions, State, type_name};
use longma_command_line::output::{Outcome, table};
use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of `longma via top`.
#[derive(clap::Args)]
pub struct TopArguments {
    #[command(flatten)]
    folder: FolderOptions,
    /// Seconds between two lists.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after this many lists [default: continue until Ctrl-C].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "expected seconds, such as 0.5".to_string())?;
    let is_valid = (0.01..=3600.0).contains(&value);
    is_valid.then(|| Duration::from_secs_f64(value)).ok_or_else(|| "between 0.01 and 3600 seconds".into())
}

/// The message count of each topic at the previous refresh.
struct Counts {
    time: Instant,
    /// Messages, bytes, and the publisher's process, by topic.
    topics: BTreeMap<String, (u64, u64, u32)>,
}

/// Prints the rates of all topics and the losses of their subscribers, at intervals. Ctrl-C ends it.
///
/// # Errors
/// If the folder of the topics cannot be used.
pub fn run(arguments: &TopArguments) -> Outcome {
    // On a terminal each list replaces the previous one.
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut before = counts(&arguments.folder.topics()?);
    let mut lists = 0;
    while arguments.count.is_none_or(|count| lists < count) {
        std::thread::sleep(arguments.interval);
        let topics = arguments.folder.topics()?;
        let text = format!("{clear}{}", list(&topics, &before));
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // The reader, such as `head`, has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            other => other?,
        }
        before = counts(&topics);
        lists += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn counts(topics: &[State]) -> Counts {
    let known = topics.iter().filter_map(|(name, state)| Some((name, state.as_ref().ok()?)));
    let topics = known.map(|(name, it)| (name.clone(), (it.published, it.bytes, it.process))).collect();
    Counts { time: Instant::now(), topics }
}

/// One row for a topic, and one for each of its subscribers.
fn list(topics: &[State], before: &Counts) -> String {
    let heads = ["topic", "type", "process", "messages/s", "MB/s", "lag", "lost", "held"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let seconds = before.time.elapsed().as_secs_f64().max(1e-9);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    for (name, state) in topics {
        let Ok(report) = state else { continue };
        // A topic that is new, or has a new publisher, counts from its beginning.
        let counted = before.topics.get(name).filter(|counted| counted.2 == report.process);
        let (messages, bytes, _) = counted.copied().unwrap_or_default();
        let rates = (rate(report.published, messages), rate(report.bytes, bytes) / 1e6);
        let process = report.process.to_string();
        rows.push(vec![
            name.clone(),
            type_name(report),
            process,
            format!("{:.0}", rates.0),
            format!("{:.1}", rates.1),
        ]);
        for subscriber in &report.subscribers {
            let numbers =
                [subscriber.lag, subscriber.lost, subscriber.held.into()].map(|number| number.to_string());
            let begin = [
                "  subscriber".into(),
                String::new(),
                subscriber.process.to_string(),
                String::new(),
                String::new(),
            ];
            rows.push(begin.into_iter().chain(numbers).collect());
        }
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_pubsub::{MessageType, Overflow, Report, SubscriberReport};

    fn topic(published: u64) -> State {
        let subscriber = SubscriberReport { process: 9, lag: 3, lost: 17, held: 1 };
        let report = Report {
            message: MessageType::of::<[f32]>(),
            process: 7,
            depth: 16,
            history: 0,
            overflow: Overflow::Overwrite,
            published,
            bytes: published * 1000,
            subscribers: vec![subscriber],
        };
        ("camera".into(), Ok(report))
    }

    #[test]
    fn rates_are_those_since_the_last_list_and_begin_anew_with_a_new_publisher() {
        let second_ago = Instant::now() - Duration::from_secs(1);
        let rate = |process| {
            let topics = BTreeMap::from([("camera".into(), (1000, 1_000_000, process))]);
            let before = Counts { time: second_ago, topics };
            let text = list(&[topic(6000)], &before);
            let line = text.lines().nth(1).unwrap().to_string();
            let words: Vec<_> = line.split_whitespace().map(String::from).collect();
            assert_eq!(words[..3], ["camera", "[f32]", "7"]);
            let subscriber: Vec<_> = text.lines().nth(2).unwrap().split_whitespace().collect();
            assert_eq!(subscriber, ["subscriber", "9", "3", "17", "1"]);
            words[3].parse::<f64>().unwrap()
        };
        assert!((4000.0..=5000.0).contains(&rate(7)));
        assert!((5001.0..=6000.0).contains(&rate(8)));
    }
}
