//! Reads and sets the interrupt coalescing of single queues, which a change of the interface's coalescing overwrites.
//! Drivers with one value for all queues do not support it.

use crate::host::Host;
use longma_linux_network::queue_coalescing::WORDS;
use std::collections::BTreeMap;
use std::io;

/// Returns the coalescing parameters of each queue, as JSON.
///
/// # Errors
/// The error of the operating system: EOPNOTSUPP if the driver has one value for all queues.
pub(super) fn read(host: &dyn Host, interface: &str) -> io::Result<String> {
    let names = host.names(&format!("sys/class/net/{interface}/queues")).into_iter();
    let mut queues: Vec<u32> = names.filter_map(|name| name.split_once('-')?.1.parse().ok()).collect();
    queues.sort_unstable();
    queues.dedup();
    let words = host.queue_coalescing(interface, &queues)?;
    let all: BTreeMap<u32, Vec<u32>> =
        queues.into_iter().zip(words.into_iter().map(|words| words[1..].to_vec())).collect();
    Ok(serde_json::to_string(&all)?)
}

/// Writes the parameters of each queue whose current parameters differ from those in `text`.
///
/// # Errors
/// The error of the operating system; `InvalidInput` for another text.
pub(super) fn write(host: &dyn Host, interface: &str, text: &str) -> io::Result<()> {
    let wanted: BTreeMap<u32, Vec<u32>> = serde_json::from_str(text)?;
    let now: BTreeMap<u32, Vec<u32>> = serde_json::from_str(&read(host, interface)?)?;
    let mut changes = Vec::new();
    for (queue, numbers) in wanted.into_iter().filter(|(queue, numbers)| now.get(queue) != Some(numbers)) {
        let mut words = [0; WORDS];
        if numbers.len() + 1 != WORDS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        words[1..].copy_from_slice(&numbers);
        changes.push((queue, words));
    }
    host.set_queue_coalescing(interface, &changes)
}

#[cfg(test)]
mod tests {
    use crate::fake::FakeHost;
    use crate::host::Host;
    use crate::setting::Setting;

    #[test]
    fn queues_that_differ_are_restored_one_by_one() {
        let host = FakeHost::with(&[
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
            ("sys/class/net/eth0/queues/rx-10/rps_cpus", "0"),
            ("sys/class/net/eth0/queues/tx-0/xps_cpus", "0"),
        ]);
        let delays = Setting::QueueDelays("eth0".parse().unwrap());
        assert!(delays.read(&host).is_err(), "one value for all");
        let words =
            |delay| [0, delay, 7].into_iter().chain([0; 20]).collect::<Vec<u32>>().try_into().unwrap();
        host.put_queue_coalescing([(0, words(8)), (10, words(30))].into());
        let before = delays.read(&host).unwrap();
        host.put_queue_coalescing([(0, words(50)), (10, words(50))].into());
        assert!(!delays.means_same(&before, &delays.read(&host).unwrap()));
        delays.write(&host, &before).unwrap();
        assert_eq!(host.queue_coalescing("eth0", &[0, 10]).unwrap(), [words(8), words(30)]);
        assert!(delays.write(&host, "{\"0\":[1]}").is_err() && delays.write(&host, "1").is_err());
    }
}
