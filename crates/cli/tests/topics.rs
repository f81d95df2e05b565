//! Tests `longma via list` and `longma via top`.

mod subcommand;

use longma_pubsub::{Options, Publisher, SubscribeOptions, Subscriber};
use subcommand::Subcommand;

const VIA: Subcommand = Subcommand("via");

#[test]
fn topics_are_listed_with_types_publishers_and_subscribers() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("topics");
    let folder = path.to_str().unwrap();
    assert_eq!(VIA.success(&["list", "--folder", folder]).lines().count(), 1);
    let options =
        Options { max_elements: 100, depth: 8, history: 4, folder: Some(path.clone()), ..Options::default() };
    let mut publisher = Publisher::<[f32]>::create_with("robot.camera", options).unwrap();
    let options = SubscribeOptions { folder: Some(path.clone()), ..SubscribeOptions::default() };
    let _subscriber = Subscriber::<[f32]>::connect_with("robot.camera", &options).unwrap();
    for _ in 0..3 {
        publisher.publish_slice(&[1.0; 100]).unwrap();
    }

    let process = std::process::id().to_string();
    let list = VIA.success(&["list", "--folder", folder]);
    let row: Vec<_> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["robot.camera", "[f32]", "8", "4", "overwrite", &process, &process]);
    let topics = VIA.json(&["list", "--folder", folder, "--format", "json"]);
    let topic = &topics["topics"][0];
    assert_eq!((&topic["published"], &topic["bytes"]), (&3.into(), &1200.into()));
    assert_eq!((&topic["subscribers"][0]["lag"], &topic["subscribers"][0]["lost"]), (&3.into(), &0.into()));

    let top = VIA.success(&["top", "--folder", folder, "--interval", "0.05", "--count", "2"]);
    assert_eq!(top.lines().filter(|line| line.starts_with("robot.camera")).count(), 2, "{top}");
    assert_eq!(top.lines().filter(|line| line.trim().starts_with("subscriber")).count(), 2, "{top}");
    drop(publisher);
    assert_eq!(VIA.success(&["list", "--folder", folder]).lines().count(), 1);
}

#[test]
fn top_ends_when_its_reader_does() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("topics");
    let mut command = VIA.command(&["top", "--interval", "0.01", "--folder", folder.to_str().unwrap()]);
    let mut top = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(top.stdout.take());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while top.try_wait().unwrap().is_none() {
        assert!(std::time::Instant::now() < end, "{:?}", top.kill());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_folder_of_others_is_refused() {
    let message = VIA.failure(&["list", "--folder", "/usr/share"]);
    assert!(message.contains("other users have rights") || message.contains("belongs to user"), "{message}");
}
