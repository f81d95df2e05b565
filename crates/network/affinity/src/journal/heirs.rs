//! Threads that have inherited their CPUs from one that was bound: taken over, so that they are put back too, and forgotten when they end.
//! Source: sched_setaffinity(2): what fork and clone begin has the CPUs of who called them.

use super::{Change, Journal, JournalError, Line};
use crate::setting::Setting;
use crate::threads;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A file with more lines than this, and more than four for each change, is written anew.
const MANY_LINES: usize = 1024;

/// What a process's threads may hand on: the CPUs before, and those that they were bound to.
type Heritage = Vec<(String, Vec<String>)>;

impl Journal<'_> {
    /// Takes over the threads that were begun by threads which are bound here, and have inherited their CPUs. Threads of the same process and
    /// those of its children are found, as long as the process lives. Threads that have ended are forgotten: there is nothing of them to put
    /// back.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn inherit(&mut self) -> Result<(), JournalError> {
        let mut known: HashSet<Setting> = HashSet::new();
        let mut processes: BTreeMap<u32, Heritage> = BTreeMap::new();
        for change in &self.changes {
            if let Setting::Thread { process, started, .. } = change.setting {
                if self.is_another(process, started) {
                    continue;
                }
                known.insert(change.setting.clone());
                // What it had before is nobody's heritage.
                let differs = |ours: &&String| !change.setting.means_same(ours, &change.original);
                let ours: Vec<String> = change.ours.iter().filter(differs).cloned().collect();
                processes.entry(process).or_default().push((change.original.clone(), ours));
            }
        }
        let mut visited: BTreeSet<u32> = processes.keys().copied().collect();
        let mut queue: Vec<(u32, Heritage)> = processes.into_iter().collect();
        let (mut alive, mut heirs) = (HashSet::new(), Vec::new());
        while let Some((process, heritage)) = queue.pop() {
            for thread in threads::of_process(self.host, process) {
                let Some(stat) = threads::stat(self.host, process, thread) else { continue };
                let setting = Setting::Thread { process, thread, started: stat.started };
                if !known.contains(&setting) {
                    heirs.extend(self.heir(setting.clone(), thread, &heritage));
                }
                alive.insert(setting);
            }
            let children = threads::children(self.host, process).into_iter();
            queue.extend(
                children.filter(|child| visited.insert(*child)).map(|child| (child, heritage.clone())),
            );
        }
        let is_there = |change: &Change| {
            !matches!(change.setting, Setting::Thread { .. }) || alive.contains(&change.setting)
        };
        self.changes.retain(is_there);
        if !heirs.is_empty() {
            self.log.add(&heirs)?;
            self.changes.extend(heirs.into_iter().map(Change::of));
        }
        if self.log.lines as usize > MANY_LINES.max(4 * self.changes.len()) {
            self.log.renew(&self.changes)?;
        }
        Ok(())
    }

    /// Whether a process's number is another process's than the one that had a thread which began at `started`: what begins later than its own
    /// thread is another.
    fn is_another(&self, process: u32, started: u64) -> bool {
        threads::stat(self.host, process, process).is_some_and(|first| first.started > started)
    }

    /// What is to be put back of a thread, if its CPUs are of what it may have inherited.
    fn heir(&self, setting: Setting, thread: u32, heritage: &Heritage) -> Option<Line> {
        let found = self.host.thread_cpus(thread).ok()?.to_string();
        let is_of = |(_, ours): &&(String, Vec<String>)| ours.iter().any(|of| setting.means_same(of, &found));
        let original = heritage.iter().find(is_of)?.0.clone();
        Some(Line {
            setting,
            index: None,
            source: None,
            before: original,
            becomes: found,
            is_inherited: true,
        })
    }
}
