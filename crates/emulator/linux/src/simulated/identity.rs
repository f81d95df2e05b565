//! Process and thread ids that are equal in all runs. Children have host ids. Source: credentials(7); Linux
//! include/linux/threads.h (PID_MAX_LIMIT).

use longma_guest::host::locks::Mutex;
use longma_locks::IgnorePoison;

use super::ThreadNumber;
use super::sched_attributes::group_on_host;

/// The id of the process and of its main thread. Other threads have the following ids. No host process has such an id,
/// because PID_MAX_LIMIT is exclusive.
pub const FIRST_ID: i32 = 4 << 20;

/// Maps ids of the process and its threads between guest and host.
#[derive(Debug)]
pub(crate) struct Identities {
    process: i32,
    /// Host ids by thread number; 0 for a thread that has ended.
    threads: Mutex<Vec<i32>>,
}

/// The type of an id argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// A process, or if negative a process group.
    Process,
    /// A process group.
    Group,
    /// A thread.
    Thread,
}
use Id::{Group, Process, Thread};

/// The kinds of a call's id arguments.
pub(crate) type Ids = [Option<Id>; 6];

impl Identities {
    pub(crate) fn new() -> Self {
        Self { process: std::process::id() as i32, threads: Mutex::default() }
    }

    /// The id of thread `number`.
    pub(crate) fn of(number: ThreadNumber) -> i32 {
        FIRST_ID + number.0 as i32
    }

    /// The thread with this id, alive or not.
    pub(crate) fn thread(id: i32) -> Option<ThreadNumber> {
        id.checked_sub(FIRST_ID).and_then(|number| u32::try_from(number).ok()).map(ThreadNumber)
    }

    /// Records the host thread that runs thread `number`.
    pub(crate) fn set(&self, number: ThreadNumber, host: i32) {
        let mut threads = self.threads.lock().ignore_poison();
        let index = number.0 as usize;
        if threads.len() <= index {
            threads.resize(index + 1, 0);
        }
        threads[index] = host;
    }

    /// The host thread that runs thread `number`, if it is alive.
    pub(crate) fn host_thread(&self, number: ThreadNumber) -> Option<i32> {
        self.threads.lock().ignore_poison().get(number.0 as usize).copied().filter(|host| *host != 0)
    }

    /// The live threads.
    pub(crate) fn alive(&self) -> Vec<ThreadNumber> {
        let threads = self.threads.lock().ignore_poison();
        (0..)
            .zip(threads.iter())
            .filter(|(_, host)| **host != 0)
            .map(|(number, _)| ThreadNumber(number))
            .collect()
    }

    /// The host's id of the process.
    pub(crate) fn host_process(&self) -> i32 {
        self.process
    }

    /// Converts an id for the host. The id of a thread that has ended or never existed stays unchanged, so that the
    /// host does not find it.
    fn to_host(&self, id: i32, named: Id) -> i32 {
        match named {
            Process if id == FIRST_ID => self.process,
            Process if id == -FIRST_ID => -group_on_host(FIRST_ID),
            Process => id,
            Group => group_on_host(id),
            Thread => Self::thread(id).and_then(|number| self.host_thread(number)).unwrap_or(id),
        }
    }

    /// Converts a host id for the guest.
    pub(crate) fn to_guest(&self, id: i32) -> i32 {
        if id == self.process {
            return FIRST_ID;
        }
        let position = self.threads.lock().ignore_poison().iter().position(|host| *host == id && id != 0);
        position.map_or(id, |number| Self::of(ThreadNumber(number as u32)))
    }

    /// Like [`Identities::translate`], but only for process ids.
    pub(crate) fn translate_processes(&self, ids: &Ids, arguments: [u64; 6]) -> [u64; 6] {
        self.translate(&ids.map(|id| id.filter(|id| *id != Thread)), arguments)
    }

    /// Translates the id arguments of a call for the host.
    pub(crate) fn translate(&self, ids: &Ids, mut arguments: [u64; 6]) -> [u64; 6] {
        for (argument, id) in arguments.iter_mut().zip(ids) {
            if let Some(named) = *id {
                *argument = i64::from(self.to_host(*argument as i32, named)) as u64;
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_translated_both_ways_and_others_are_unchanged() {
        let identities = Identities::new();
        let host = std::process::id() as i32;
        identities.set(ThreadNumber(0), host);
        identities.set(ThreadNumber(2), 77);
        let of_tgkill = [Some(Process), Some(Thread), None, None, None, None];
        let tgkill = identities.translate(&of_tgkill, [FIRST_ID as u64, FIRST_ID as u64 + 2, 10, 0, 0, 0]);
        assert_eq!(tgkill, [host as u64, 77, 10, 0, 0, 0]);
        let unknown = [1, FIRST_ID as u64 + 9, 0, 0, 0, 0];
        assert_eq!(identities.translate(&of_tgkill, unknown), unknown);
        let of_child =
            identities.translate_processes(&of_tgkill, [FIRST_ID as u64, FIRST_ID as u64 + 2, 10, 0, 0, 0]);
        assert_eq!(of_child, [host as u64, FIRST_ID as u64 + 2, 10, 0, 0, 0]);
        assert_eq!(identities.translate(&[None; 6], [FIRST_ID as u64; 6]), [FIRST_ID as u64; 6]);
        assert_eq!((identities.to_guest(77), identities.to_guest(host)), (FIRST_ID + 2, FIRST_ID));
        assert_eq!(identities.to_guest(1), 1);
    }
}
