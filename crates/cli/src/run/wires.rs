//! Parses `--wire`: the peers of Ethernet devices. `longma-runner` implements them.

use std::collections::BTreeMap;

use longma_runner::devices::{TcpOptions, WireEnd};
use longma_sim::{Duration, Time};

use super::failure::Failure;

const HOW: &str =
    "write DEVICE,loop or DEVICE,tcp,KEY=VALUE,..., for example --wire eth0,tcp,message=1024,bytes=1000000";
const KEYS: &str = "message, bytes, mss, flows, begin_us, message_interval_ns, nodelay, lost, damaged, corrupted, cut, stretched, late, lateness_us, doubled, seed";

/// Parses all options into the peer of each device.
///
/// # Errors
/// Fails if an option is malformed or a device is named twice.
pub fn parse(options: &[String]) -> Result<BTreeMap<String, WireEnd>, Failure> {
    let mut wires = BTreeMap::new();
    for option in options {
        let (device, end) = one(option)?;
        if wires.insert(device.clone(), end).is_some() {
            let message = format!("--wire is given twice for {device}");
            return Err(Failure::own(&message, "a device has one peer"));
        }
    }
    Ok(wires)
}

fn one(option: &str) -> Result<(String, WireEnd), Failure> {
    let wrong = |why: &str| Failure::own(&format!("--wire {option}: {why}"), HOW);
    let mut words = option.split(',');
    let (Some(device), Some(kind)) = (words.next().filter(|device| !device.is_empty()), words.next()) else {
        return Err(wrong("it names no device or no peer"));
    };
    let end = match kind {
        "loop" => match words.next() {
            None => WireEnd::Loop,
            Some(word) => return Err(wrong(&format!("`loop` takes no `{word}`"))),
        },
        "tcp" => {
            let mut tcp = TcpOptions::default();
            for word in words {
                let (key, value) =
                    word.split_once('=').ok_or_else(|| wrong(&format!("`{word}` has no `=`")))?;
                set(&mut tcp, key, value).map_err(|why| wrong(&why))?;
            }
            WireEnd::Tcp(tcp)
        }
        other => return Err(wrong(&format!("`{other}` is neither `loop` nor `tcp`"))),
    };
    Ok((device.into(), end))
}

fn set(tcp: &mut TcpOptions, key: &str, value: &str) -> Result<(), String> {
    let number = |min: u64, max: u64| match value.parse::<u64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{key} is a number from {min} to {max}, not `{value}`")),
    };
    let rate = || number(0, 1_000_000).map(|rate| rate as u32);
    // Limited to 10^10 us, so that simulated time cannot overflow.
    let us = || number(0, 10_000_000_000).map(|us| us * 1_000_000);
    match key {
        "message" => tcp.message_bytes = number(1, 1 << 30)?,
        "bytes" => tcp.total_bytes = number(1, 1 << 40)?,
        "mss" => tcp.mss = number(64, 16_000)? as u16,
        "flows" => tcp.flows = number(1, 64)? as u16,
        "begin_us" => tcp.begin = Time::from_ps(us()?),
        "message_interval_ns" => tcp.message_interval = Duration::from_ps(number(0, 1_000_000_000)? * 1000),
        "nodelay" => tcp.no_delay = number(0, 1)? == 1,
        "lost" => tcp.faults.lost = rate()?,
        "damaged" => tcp.faults.damaged = rate()?,
        "corrupted" => tcp.faults.corrupted = rate()?,
        "cut" => tcp.faults.cut = rate()?,
        "stretched" => tcp.faults.stretched = rate()?,
        "late" => tcp.faults.late = rate()?,
        "lateness_us" => tcp.faults.lateness = Duration::from_ps(us()?),
        "doubled" => tcp.faults.doubled = rate()?,
        "seed" => tcp.seed = number(0, u64::MAX)?,
        _ => return Err(format!("there is no key `{key}`; the keys are {KEYS}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(text: &str) -> Result<BTreeMap<String, WireEnd>, String> {
        parse(&[text.to_owned()]).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_wires_options_reach_its_sender() {
        let wires =
            parse_one("eth0,tcp,message=64,bytes=4096,lost=100,begin_us=7,nodelay=1,flows=3").unwrap();
        let WireEnd::Tcp(tcp) = &wires["eth0"] else { panic!("{wires:?}") };
        assert_eq!((tcp.message_bytes, tcp.total_bytes, tcp.faults.lost), (64, 4096, 100));
        assert_eq!((tcp.begin.ps(), tcp.no_delay, tcp.mss, tcp.flows), (7_000_000, true, 1460, 3));
        assert_eq!(parse_one("eth1,loop").unwrap()["eth1"], WireEnd::Loop);
    }

    #[test]
    fn invalid_options_are_rejected_with_a_reason() {
        for (text, reason) in [
            ("eth0", "names no device"),
            (",loop", "names no device"),
            ("eth0,udp", "neither"),
            ("eth0,loop,x", "takes no"),
            ("eth0,tcp,mss", "no `=`"),
            ("eth0,tcp,mss=1", "from 64"),
            ("eth0,tcp,size=1", "no key"),
            ("eth0,tcp,flows=0", "from 1"),
        ] {
            let failure = parse_one(text).unwrap_err();
            assert!(failure.contains(reason), "{text}: {failure}");
        }
        let twice = ["eth0,loop".to_owned(), "eth0,loop".to_owned()];
        assert!(parse(&twice).unwrap_err().to_string().contains("twice"));
    }
}
