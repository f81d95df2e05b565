//! Finds the process and descriptor that have a socket open, from /proc. Results are cached and revalidated. `watch`
//! finds the thread that reads the socket.
//!
//! Source: proc(5) (/proc/PID/fd: `socket:[INODE]`).

use crate::host::Host;
use std::collections::{BTreeSet, HashMap};

/// A process with its descriptor of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    /// Process ID.
    pub process: u32,
    /// Descriptor.
    pub descriptor: u32,
}

/// Number of lookups after which a socket that was not found is searched for again. The socket may belong to the kernel
/// or another container.
const RETRY_AFTER_LOOKUPS: u32 = 10;
/// Maximum number of processes searched in one lookup. The remaining processes are searched in later lookups.
const MAX_PROCESSES: usize = 4096;

/// Cache of socket owners.
#[derive(Default)]
pub struct SocketOwners {
    known: HashMap<u32, SocketOwner>,
    absent: HashMap<u32, u32>,
}

impl SocketOwners {
    /// Returns the owners of these sockets, as far as they are found.
    pub fn of(&mut self, host: &dyn Host, inodes: &[u32]) -> HashMap<u32, SocketOwner> {
        let wanted: BTreeSet<u32> = inodes.iter().copied().filter(|inode| *inode != 0).collect();
        self.absent.retain(|inode, looks| {
            *looks -= 1;
            *looks > 0 && wanted.contains(inode)
        });
        self.known.retain(|inode, owner| wanted.contains(inode) && still_has(host, *owner, *inode));
        let is_missing = |owners: &Self, inode: &u32| {
            !owners.known.contains_key(inode) && !owners.absent.contains_key(inode)
        };
        let mut missing: BTreeSet<u32> =
            wanted.iter().copied().filter(|inode| is_missing(self, inode)).collect();
        // A process with one connection often opens the next one too.
        let familiar: BTreeSet<u32> = self.known.values().map(|owner| owner.process).collect();
        // Listing all processes is costly and usually unnecessary.
        let others: Vec<u32> = match missing.is_empty() {
            true => Vec::new(),
            false => {
                let all = host.names("proc").into_iter().filter_map(|name| name.parse().ok());
                all.filter(|process| !familiar.contains(process)).collect()
            }
        };
        // The youngest processes have the newest connections.
        for process in familiar.into_iter().chain(others.into_iter().rev()).take(MAX_PROCESSES) {
            if missing.is_empty() {
                break;
            }
            self.search(host, process, &mut missing);
        }
        self.absent.extend(missing.into_iter().map(|inode| (inode, RETRY_AFTER_LOOKUPS)));
        self.known.clone()
    }

    fn search(&mut self, host: &dyn Host, process: u32, missing: &mut BTreeSet<u32>) {
        let folder = format!("proc/{process}/fd");
        for name in host.names(&folder) {
            let inode = host.link(&format!("{folder}/{name}")).and_then(|to| inode(&to));
            if let (Some(inode), Ok(descriptor)) = (inode, name.parse())
                && missing.remove(&inode)
            {
                self.known.insert(inode, SocketOwner { process, descriptor });
                if missing.is_empty() {
                    return;
                }
            }
        }
    }
}

fn still_has(host: &dyn Host, owner: SocketOwner, of: u32) -> bool {
    let link = host.link(&format!("proc/{}/fd/{}", owner.process, owner.descriptor));
    link.and_then(|to| inode(&to)) == Some(of)
}

fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests;
