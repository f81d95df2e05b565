//! Handles threads that inherited the affinity of a thread bound by the journal: adds them to the journal, so that they
//! are restored too, and drops them when they end.
//!
//! Source: sched_setaffinity(2): a child of fork or clone inherits its parent's affinity.

use super::{Change, Journal, JournalError, Line};
use crate::setting::Setting;
use crate::threads;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Minimum number of lines for compaction, in addition to more than four lines per change.
const MIN_COMPACTION_LINES: usize = 1024;

/// Affinities that a process's threads may have inherited: each original value with the values written.
type InheritedValues = Vec<(String, Vec<String>)>;

impl Journal<'_> {
    /// Records threads that inherited their affinity from threads bound by this journal. It finds threads of the same
    /// process and of its children, as long as the process lives. Threads that have ended are dropped, since they need
    /// no restoration.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn inherit(&mut self) -> Result<(), JournalError> {
        let mut known: HashSet<Setting> = HashSet::new();
        let mut processes: BTreeMap<u32, InheritedValues> = BTreeMap::new();
        for change in &self.changes {
            if let Setting::Thread { process, started, .. } = change.setting {
                if self.is_another(process, started) {
                    continue;
                }
                known.insert(change.setting.clone());
                // A thread with the original affinity has inherited nothing from the change.
                let differs = |ours: &&String| !change.setting.means_same(ours, &change.original);
                let ours: Vec<String> = change.ours.iter().filter(differs).cloned().collect();
                processes.entry(process).or_default().push((change.original.clone(), ours));
            }
        }
        let mut visited: BTreeSet<u32> = processes.keys().copied().collect();
        let mut queue: Vec<(u32, InheritedValues)> = processes.into_iter().collect();
        let (mut alive, mut inherited) = (HashSet::new(), Vec::new());
        while let Some((process, heritage)) = queue.pop() {
            for thread in threads::of_process(self.host, process) {
                let Some(stat) = threads::stat(self.host, process, thread) else { continue };
                let setting = Setting::Thread { process, thread, started: stat.started };
                if !known.contains(&setting) {
                    inherited.extend(self.line_for(setting.clone(), thread, &heritage));
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
        if !inherited.is_empty() {
            self.log.add(&inherited)?;
            self.changes.extend(inherited.into_iter().map(Change::of));
        }
        if self.log.lines as usize > MIN_COMPACTION_LINES.max(4 * self.changes.len()) {
            self.log.renew(&self.changes)?;
        }
        Ok(())
    }

    /// Returns whether a process ID was reused since a thread of the original process started at `started`: the new
    /// process started later.
    fn is_another(&self, process: u32, started: u64) -> bool {
        threads::stat(self.host, process, process).is_some_and(|first| first.started > started)
    }

    /// The journal line for a thread whose affinity may be inherited.
    fn line_for(&self, setting: Setting, thread: u32, heritage: &InheritedValues) -> Option<Line> {
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
