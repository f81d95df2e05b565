//! Process and thread ids that are the same on every run.
//! Not the ids of children: those are processes of the host.
//! Source: credentials(7); Linux include/linux/threads.h (PID_MAX_LIMIT).

use longma_guest::host::locks::Mutex;

use super::standing::group_on_host;
use super::{ThreadNumber, lock};

/// The process's id and that of its first thread; the others follow. No process of a host has such an id: PID_MAX_LIMIT is the
/// first that none gets.
pub const FIRST_ID: i32 = 4 << 20;

/// What the guest calls its process and threads, and what the host calls them.
#[derive(Debug)]
pub(crate) struct Identities {
    process: i32,
    /// The host's ids by thread number; 0 once the thread is over.
    threads: Mutex<Vec<i32>>,
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// A process, or negated its group.
    Process,
    /// A group.
    Group,
    /// A thread.
    Thread,
}
use Id::{Group, Process, Thread};

/// Which of a call's arguments are ids.
pub(crate) type Ids = [Option<Id>; 6];

impl Identities {
    pub(crate) fn new() -> Self {
        Self { process: std::process::id() as i32, threads: Mutex::default() }
    }

    /// The id of thread `number`.
    pub(crate) fn of(number: ThreadNumber) -> i32 {
        FIRST_ID + number.0 as i32
    }

    /// The thread that has `id`, alive or not.
    pub(crate) fn thread(id: i32) -> Option<ThreadNumber> {
        id.checked_sub(FIRST_ID).and_then(|number| u32::try_from(number).ok()).map(ThreadNumber)
    }

    /// Notes which host thread runs thread `number`.
    pub(crate) fn set(&self, number: ThreadNumber, host: i32) {
        let mut threads = lock(&self.threads);
        let index = number.0 as usize;
        if threads.len() <= index {
            threads.resize(index + 1, 0);
        }
        threads[index] = host;
    }

    /// The host thread that runs thread `number`, if it is alive.
    pub(crate) fn host_thread(&self, number: ThreadNumber) -> Option<i32> {
        lock(&self.threads).get(number.0 as usize).copied().filter(|host| *host != 0)
    }

    /// The threads that are alive.
    pub(crate) fn alive(&self) -> Vec<ThreadNumber> {
        let threads = lock(&self.threads);
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

    /// What the host calls `id`. One that is over, or never was, keeps the guest's number, which nothing on the host has.
    fn to_host(&self, id: i32, named: Id) -> i32 {
        match named {
            Process if id == FIRST_ID => self.process,
            Process if id == -FIRST_ID => -group_on_host(FIRST_ID),
            Process => id,
            Group => group_on_host(id),
            Thread => Self::thread(id).and_then(|number| self.host_thread(number)).unwrap_or(id),
        }
    }

    /// What the guest calls the host's process or thread `id`.
    pub(crate) fn to_guest(&self, id: i32) -> i32 {
        if id == self.process {
            return FIRST_ID;
        }
        let position = lock(&self.threads).iter().position(|host| *host == id && id != 0);
        position.map_or(id, |number| Self::of(ThreadNumber(number as u32)))
    }

    /// As [`Identities::translate`], of ids of processes only.
    pub(crate) fn translate_processes(&self, ids: &Ids, arguments: [u64; 6]) -> [u64; 6] {
        self.translate(&ids.map(|id| id.filter(|id| *id != Thread)), arguments)
    }

    /// The arguments of a call, of which `ids` are ids, as the host is to have them.
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
    fn ids_are_translated_both_ways_and_others_are_left_alone() {
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
