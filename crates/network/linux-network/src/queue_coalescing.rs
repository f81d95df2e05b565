//! Interrupt coalescing of single queues. A setting for the interface changes all of its queues.
//!
//! Source: Linux include/uapi/linux/ethtool.h (struct ethtool_per_queue_op, ethtool_coalesce), net/ethtool/ioctl.c.

use crate::ethtool::exchange;
use std::io;

const PER_QUEUE: u32 = 0x4b;
const GET_COALESCE: u32 = 0x0e;
const SET_COALESCE: u32 = 0x0f;
/// Words of the mask of queues: MAX_NUM_QUEUE is 4096.
const MASK_WORDS: usize = 128;
/// The number of words in the structure of one queue, including the command.
pub const WORDS: usize = 23;

/// Reads the coalescing of these queues, which must be sorted. The words are those of `struct ethtool_coalesce`.
///
/// # Errors
/// The kernel's error: EOPNOTSUPP if the driver has one value for all queues; `InvalidInput` for a queue from 4096.
pub fn get(interface: &str, queues: &[u32]) -> io::Result<Vec<[u32; WORDS]>> {
    let mut words = request(GET_COALESCE, queues)?;
    let begin = words.len();
    words.resize(begin + queues.len() * WORDS, 0);
    exchange(interface, &mut words)?;
    Ok(words[begin..].as_chunks::<WORDS>().0.to_vec())
}

/// Writes the coalescing of queues, which must be sorted, in the form of [`get`].
///
/// # Errors
/// As for [`get`].
pub fn set(interface: &str, queues: &[(u32, [u32; WORDS])]) -> io::Result<()> {
    let numbers: Vec<u32> = queues.iter().map(|(queue, _)| *queue).collect();
    let mut words = request(SET_COALESCE, &numbers)?;
    for (_, values) in queues {
        let begin = words.len();
        words.extend(values);
        words[begin] = SET_COALESCE;
    }
    exchange(interface, &mut words)
}

fn request(command: u32, queues: &[u32]) -> io::Result<Vec<u32>> {
    let mut words = vec![0u32; 2 + MASK_WORDS];
    (words[0], words[1]) = (PER_QUEUE, command);
    for queue in queues {
        let word = words[2..].get_mut(*queue as usize / 32).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (queue % 32);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_names_the_queues() {
        let words = request(GET_COALESCE, &[0, 33, 4095]).unwrap();
        assert_eq!(words.len(), 130);
        assert_eq!((words[0], words[1], words[2], words[3], words[129]), (0x4b, 0x0e, 1, 2, 1 << 31));
        assert!(request(GET_COALESCE, &[4096]).is_err());
    }

    #[test]
    fn an_interface_without_coalescing_says_so() {
        assert!(get("lo", &[0]).is_err() && set("lo", &[(0, [0; WORDS])]).is_err());
    }
}
