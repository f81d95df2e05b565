//! Kills publishers and subscribers with SIGKILL at random moments. The other process detects this, reads no corrupt
//! byte, and gets back the slots that the dead process held. `LONGMA_PUBSUB_KILLS=100 cargo test -p longma-pubsub
//! --test killed` kills each side a hundred times.

use longma_pubsub::*;
use longma_random::SplitMix64;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LONGMA_PUBSUB_ROLE";
const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn kills() -> usize {
    std::env::var("LONGMA_PUBSUB_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10)
}

/// Starts this program again in a role, and returns when it is running.
fn start(role: &str, topic: &str) -> Child {
    let mut command = Command::new("timeout");
    command.arg("120").arg(std::env::current_exe().unwrap()).args(["--exact", "role", "--nocapture"]);
    command.env(ROLE, format!("{role} {topic}")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("begun")), "{role} has not begun");
    child
}

/// Kills the process under `timeout`, then waits for both.
fn kill(mut child: Child) {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let process: i32 = children.trim().parse().expect("one child");
    // SAFETY: a process that this test has started, and whose parent has not waited for it.
    unsafe { libc::kill(process, libc::SIGKILL) };
    child.wait().unwrap();
}

/// Not a test: the code of the other processes in the tests below.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, topic) = role.split_once(' ').unwrap();
    match role {
        "publisher" => {
            let options = Options { depth: 8, max_elements: 4000, ..Options::default() };
            let mut publisher = Publisher::<[u64]>::create_with(topic, options).unwrap();
            println!("begun");
            for number in 0.. {
                let mut loan = publisher.loan_slice((number % 4000) as usize).unwrap();
                loan.fill(number);
                loan.publish().unwrap();
            }
        }
        "subscriber" => {
            let mut subscriber = Subscriber::<[u64]>::connect(topic).unwrap();
            println!("begun");
            let mut kept = Vec::new();
            while let Ok(sample) = subscriber.receive_wait(SOON) {
                if kept.len() < 3 {
                    kept.push(sample);
                }
            }
        }
        // A subscriber that receives nothing, which blocks a topic with `Overflow::Block`.
        _ => {
            let _subscriber = Subscriber::<u64>::connect(topic).unwrap();
            println!("begun");
            std::thread::sleep(Duration::from_secs(100));
        }
    }
}

#[test]
fn a_subscriber_whose_publisher_is_killed_gets_no_wrong_byte_and_is_told() {
    let topic = format!("killed-publisher-{}", std::process::id());
    let mut random = SplitMix64::new(1);
    for round in 0..kills() {
        let publisher = start("publisher", &topic);
        let mut subscriber = Subscriber::<[u64]>::connect(&topic).unwrap();
        let moment = Duration::from_micros(random.below(5000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(moment);
            kill(publisher);
            Instant::now()
        });
        let mut kept = None;
        let error = loop {
            let received = match round % 2 {
                0 => subscriber.receive_wait(SOON).map(Some),
                _ => subscriber.receive(),
            };
            match received {
                Ok(Some(sample)) => {
                    let right = |sample: &Sample<[u64]>| {
                        sample.len() as u64 == sample.number() % 4000
                            && sample.iter().all(|element| element == sample.number())
                    };
                    assert!(right(&sample) && kept.as_ref().is_none_or(right), "a wrong byte");
                    kept = Some(sample);
                }
                Ok(None) => {}
                Err(error) => break error,
            }
        };
        let elapsed = killer.join().unwrap().elapsed();
        assert!(matches!(error, Error::Died), "{error}");
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    }
}

#[test]
fn a_publisher_whose_subscribers_are_killed_gets_back_what_they_held() {
    let topic = format!("killed-subscriber-{}", std::process::id());
    let options = Options { depth: 2, max_elements: 1000, max_subscribers: 2, ..Options::default() };
    let mut publisher = Publisher::<[u64]>::create_with(&topic, options).unwrap();
    let mut honest = Subscriber::<[u64]>::connect(&topic).unwrap();
    let mut random = SplitMix64::new(2);
    let mut number = 0;
    for _ in 0..kills() {
        // The topic accepts the new subscriber only after it has removed the dead one.
        let end = Instant::now() + Duration::from_secs(10);
        while publisher.subscribers() > 1 {
            assert!(Instant::now() < end, "the dead subscriber is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
        let subscriber = start("subscriber", &topic);
        let end = Instant::now() + Duration::from_micros(random.below(3000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            kill(subscriber);
        });
        while !killer.is_finished() {
            publisher.publish_slice(&vec![number; 1000]).unwrap();
            let sample = honest.receive_wait(SOON).unwrap();
            assert!(sample.lost() == 0 && sample.iter().all(|element| element == number), "a wrong byte");
            number += 1;
        }
        killer.join().unwrap();
    }
}

#[test]
fn a_publisher_that_waits_for_a_subscriber_goes_on_when_it_is_killed() {
    let topic = format!("killed-waiting-{}", std::process::id());
    let options = Options { depth: 2, overflow: Overflow::Block, ..Options::default() };
    let mut publisher = Publisher::<u64>::create_with(&topic, options).unwrap();
    for _ in 0..kills().min(20) {
        let subscriber = start("idle", &topic);
        let end = Instant::now() + Duration::from_secs(10);
        while !matches!(publisher.publish(&1), Err(Error::Full)) {
            assert!(Instant::now() < end);
        }
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            kill(subscriber);
        });
        publisher.publish_wait(&1, SOON).unwrap();
        killer.join().unwrap();
    }
}

#[test]
fn the_topic_of_a_publisher_that_was_killed_can_be_taken_at_once() {
    let topic = format!("killed-name-{}", std::process::id());
    for _ in 0..kills().min(10) {
        kill(start("publisher", &topic));
        assert!(matches!(Subscriber::<[u64]>::connect(&topic), Err(Error::NoPublisher(_))));
        let listed = topics(None).unwrap();
        assert!(listed.iter().any(|(name, state)| *name == topic && state.is_err()));
    }
    drop(Publisher::<u8>::create(&topic).unwrap());
    assert!(topics(None).unwrap().iter().all(|(name, _)| *name != topic));
}
