//! Handles threads that inherited the affinity of a thread bound by the journal: adds them to the journal, so that they
//! are restored too, and drops them when they end. Once a process has ended, the kernel no longer links its children to
//! it. Processes in the process group or session that it led are treated as its children. Other processes with its CPUs
//! are only reported.
//!
//! Source: sched_setaffinity(2): a child of fork or clone inherits its parent's affinity; credentials(7): the number of
//! a process is not reused while its group or session has members.

use super::{Change, InheritedFrom, Journal, JournalError, Line};
use crate::setting::Setting;
use crate::threads;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Minimum number of lines for compaction, in addition to more than four lines per change.
const MIN_COMPACTION_LINES: usize = 1024;

/// Affinities that a process's threads may have inherited: each original value with the values written.
type InheritedValues = Vec<(String, Vec<String>)>;

impl Journal<'_> {
    /// Records threads that inherited their affinity from threads bound by this journal: threads of the same process and
    /// of its children, which can be found as long as the process lives. Drops threads that have ended, since they need
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
        let orphans = self.orphans(&processes);
        visited.extend(orphans.iter().map(|(process, _)| *process));
        let mut queue: Vec<(u32, InheritedValues)> = processes.into_iter().chain(orphans).collect();
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
        self.left_behind.retain(|setting, _| !alive.contains(setting));
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

    /// The processes in a group or session that an ended process of `bound` led. Notes its other possible children.
    fn orphans(&mut self, bound: &BTreeMap<u32, InheritedValues>) -> Vec<(u32, InheritedValues)> {
        // A zombie is listed until its parent waits for it. A process whose first thread has ended continues in its
        // other threads.
        let lives = |process: u32, thread: u32| {
            threads::stat(self.host, process, thread).is_some_and(|stat| !stat.has_ended)
        };
        let has_ended = |process: &u32| {
            !threads::of_process(self.host, *process).iter().any(|thread| lives(*process, *thread))
        };
        let ended: BTreeMap<u32, &InheritedValues> = bound
            .iter()
            .filter(|(process, _)| has_ended(process))
            .map(|(process, of)| (*process, of))
            .collect();
        let mut orphans = Vec::new();
        if ended.is_empty() {
            return orphans;
        }
        let all = self.host.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        for process in all.filter(|process| !bound.contains_key(process)) {
            let stat = threads::stat(self.host, process, process).filter(|stat| !stat.has_ended);
            let Some(stat) = stat else { continue };
            let led = [stat.group, stat.session].into_iter().find_map(|leader| ended.get_key_value(&leader));
            if let Some((_, heritage)) = led {
                orphans.push((process, (*heritage).clone()));
                continue;
            }
            let setting = Setting::Thread { process, thread: process, started: stat.started };
            for (of, heritage) in &ended {
                let is_later = self.started(*of).is_some_and(|first| first <= stat.started);
                let line = self.line_for(setting.clone(), process, heritage).filter(|_| is_later);
                if let Some(Line { before: was, becomes: found, .. }) = line {
                    self.left_behind.insert(setting.clone(), InheritedFrom { of: *of, found, was });
                }
            }
        }
        orphans
    }

    /// When the first bound thread of a process started.
    fn started(&self, of: u32) -> Option<u64> {
        let starts = self.changes.iter().filter_map(|change| match change.setting {
            Setting::Thread { process, started, .. } if process == of => Some(started),
            _ => None,
        });
        starts.min()
    }

    /// Returns whether a process ID was reused: the process that has it now started later than `started`, the start of
    /// a thread of the original process.
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
