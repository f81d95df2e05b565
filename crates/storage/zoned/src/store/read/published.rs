//! The newest version of the tree. Readers load it without a lock, independently of the writer. The module also tracks
//! the oldest checkpoint whose blocks a reader may still need.
//!
//! Source: read-copy-update as in McKenney and Slingwine ("Read-Copy Update", PDCS 1998), with reference counts by the
//! crate arc-swap.

use crate::store::tree::nodes::Tree;
use arc_swap::{ArcSwapOption, Guard};
use longma_locks::IgnorePoison;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// An immutable version of the tree. No block that it refers to is released while it is alive.
pub(crate) struct Version {
    pub tree: Tree,
    /// Held only to keep the epoch alive; see [`Published::oldest`].
    _epoch: Arc<Epoch>,
}

/// The last complete checkpoint at the time when a version was made. The version may need its blocks.
struct Epoch {
    generation: u64,
}

/// The newest tree.
pub(crate) struct Published {
    /// The version that readers see. `None` if the writer has changed the tree in place and no reader has needed one
    /// since; the next reader then creates it.
    version: ArcSwapOption<Version>,
    working: Mutex<WriterTree>,
    /// The thread that made the last change, and whether any other thread has read since.
    writer: AtomicUsize,
    read_elsewhere: AtomicBool,
}

/// The writer's tree.
struct WriterTree {
    tree: Tree,
    /// The epochs that live versions may refer to, the oldest first.
    epochs: VecDeque<Arc<Epoch>>,
}

/// A short-lived reference to a version.
pub(crate) enum VersionRef {
    /// The shared version, protected by an arc-swap guard instead of a reference count.
    Published(Guard<Option<Arc<Version>>>),
    /// A private version for the thread that made the last change.
    Own(Version),
}

impl Deref for VersionRef {
    type Target = Version;

    fn deref(&self) -> &Version {
        match self {
            Self::Published(version) => version.as_ref().expect("a published version exists"),
            Self::Own(version) => version,
        }
    }
}

impl VersionRef {
    /// Converts the reference to an owned one.
    pub fn keep(self) -> Arc<Version> {
        match self {
            Self::Published(version) => Guard::into_inner(version).expect("a published version exists"),
            Self::Own(version) => Arc::new(version),
        }
    }
}

/// A unique identifier of the current thread, valid while the thread lives.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl WriterTree {
    fn version(&self) -> Version {
        let epoch = Arc::clone(self.epochs.back().expect("there is always a newest checkpoint"));
        Version { tree: self.tree.clone(), _epoch: epoch }
    }
}

impl Published {
    /// Starts with a tree and the generation of its checkpoint.
    pub fn new(tree: Tree, generation: u64) -> Self {
        let epochs = VecDeque::from([Arc::new(Epoch { generation })]);
        Self {
            version: ArcSwapOption::empty(),
            working: Mutex::new(WriterTree { tree, epochs }),
            writer: AtomicUsize::new(0),
            read_elsewhere: AtomicBool::new(false),
        }
    }

    /// Returns the newest version for a reader.
    ///
    /// This takes no lock, except when only the writing thread has read since the last change. In that case it may wait
    /// until the batch that is being applied is complete.
    pub fn load(&self) -> VersionRef {
        let is_elsewhere = self.writer.load(Ordering::Relaxed) != this_thread();
        if is_elsewhere && !self.read_elsewhere.load(Ordering::Relaxed) {
            self.read_elsewhere.store(true, Ordering::Relaxed);
        }
        let version = self.version.load();
        if version.is_some() {
            return VersionRef::Published(version);
        }
        let working = self.working.lock().ignore_poison();
        match is_elsewhere {
            true => VersionRef::Published(Guard::from_inner(Some(self.publish(&working)))),
            false => VersionRef::Own(working.version()),
        }
    }

    /// Publishes the current tree as a version, unless there is one already.
    fn publish(&self, working: &WriterTree) -> Arc<Version> {
        self.version.load_full().unwrap_or_else(|| {
            let version = Arc::new(working.version());
            self.version.store(Some(Arc::clone(&version)));
            version
        })
    }

    /// Returns the newest tree for the writer. Unlike a version, it does not protect any block from being released.
    pub fn tree(&self) -> Tree {
        self.working.lock().ignore_poison().tree.clone()
    }

    /// Begins an update of the tree.
    ///
    /// If other threads have read since the last change, they keep the old version, and the update copies the nodes
    /// that it changes. Otherwise no version is shared, and the tree is updated in place.
    pub fn begin_update(&self) -> TreeUpdate<'_> {
        if self.read_elsewhere.swap(false, Ordering::Relaxed) {
            return self.begin_copying_update();
        }
        let working = self.working.lock().ignore_poison();
        self.writer.store(this_thread(), Ordering::Relaxed);
        if self.version.load().is_some() {
            self.version.store(None);
        }
        TreeUpdate { published: self, working, before: None, is_done: false }
    }

    /// Begins an update that always copies the nodes that it changes.
    pub fn begin_copying_update(&self) -> TreeUpdate<'_> {
        let working = self.working.lock().ignore_poison();
        self.writer.store(this_thread(), Ordering::Relaxed);
        let before = Some(self.publish(&working));
        TreeUpdate { published: self, working, before, is_done: false }
    }

    /// Starts a new epoch after a checkpoint: later readers do not need blocks of older checkpoints.
    pub fn checkpoint_ended(&self, generation: u64) {
        let mut working = self.working.lock().ignore_poison();
        working.epochs.push_back(Arc::new(Epoch { generation }));
        let version = self.version.load().is_some().then(|| Arc::new(working.version()));
        self.version.store(version);
    }

    /// The generation of the oldest checkpoint whose blocks a reader may need.
    pub fn oldest(&self) -> u64 {
        let epochs = &mut self.working.lock().ignore_poison().epochs;
        // If `get_mut` succeeds, the last version of the epoch has been dropped, and all accesses of its readers
        // happened before.
        while epochs.len() > 1 && epochs.front_mut().is_some_and(|oldest| Arc::get_mut(oldest).is_some()) {
            epochs.pop_front();
        }
        epochs.front().map_or(u64::MAX, |oldest| oldest.generation)
    }
}

/// An update of the tree in progress.
pub(crate) struct TreeUpdate<'a> {
    published: &'a Published,
    working: MutexGuard<'a, WriterTree>,
    /// The version that readers see during the update.
    before: Option<Arc<Version>>,
    is_done: bool,
}

impl TreeUpdate<'_> {
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.working.tree
    }

    /// Publishes the update.
    pub fn publish(mut self) {
        self.is_done = true;
        if self.before.is_some() {
            self.published.version.store(Some(Arc::new(self.working.version())));
        }
    }

    /// Completes the update without publishing it. The next checkpoint includes it, and readers see it when that
    /// checkpoint is complete.
    pub fn commit_unpublished(mut self) {
        self.is_done = true;
    }
}

impl Drop for TreeUpdate<'_> {
    /// Rolls back an incomplete update after an error or a panic, so that no reader sees a part of it. If the tree was
    /// updated in place, it is replaced by a tree whose reads fail.
    fn drop(&mut self) {
        if !self.is_done {
            self.working.tree = match &self.before {
                Some(before) => before.tree.clone(),
                None => Tree::lost(self.working.tree.len),
            };
        }
    }
}
