//! The newest tree: readers take it without a lock, whatever the writer does; and of which older checkpoints somebody may need blocks.
//! Not reading itself: see `snapshot` and `iter`.
//! Source: read-copy-update as in McKenney and Slingwine ("Read-Copy Update", PDCS 1998), counted by arc-swap.

use super::lock;
use super::tree::Tree;
use arc_swap::{ArcSwapOption, Guard};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The tree at one moment. As long as somebody has it, no block that it leads to is given up.
pub(super) struct Version {
    pub tree: Tree,
    /// Kept, not looked at: see [`Newest::oldest`].
    _epoch: Arc<Epoch>,
}

/// A checkpoint that was the newest one when versions were made, and whose blocks they may need.
struct Epoch {
    generation: u64,
}

/// The newest tree.
pub(super) struct Newest {
    /// What readers see. Nothing if nobody has read since the writer changed the tree in place: the first who reads makes it.
    version: ArcSwapOption<Version>,
    working: Mutex<Working>,
    /// The thread that changed the tree last, and whether another one has read since.
    writer: AtomicUsize,
    read_elsewhere: AtomicBool,
}

/// The writer's tree.
struct Working {
    tree: Tree,
    /// The checkpoints that versions may have been made at, the oldest first.
    epochs: VecDeque<Arc<Epoch>>,
}

/// A version for a moment.
pub(super) enum Seen {
    /// Others see the same one, and nobody counts.
    Published(Guard<Option<Arc<Version>>>),
    /// The writer's own thread looks at what it wrote.
    Own(Version),
}

impl Deref for Seen {
    type Target = Version;

    fn deref(&self) -> &Version {
        match self {
            Self::Published(version) => version.as_ref().expect("only what is there is seen"),
            Self::Own(version) => version,
        }
    }
}

impl Seen {
    /// The version for as long as wanted.
    pub fn keep(self) -> Arc<Version> {
        match self {
            Self::Published(version) => Guard::into_inner(version).expect("only what is there is seen"),
            Self::Own(version) => Arc::new(version),
        }
    }
}

/// Says which thread this is, for as long as it lives.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Working {
    fn version(&self) -> Version {
        let epoch = Arc::clone(self.epochs.back().expect("there is always a newest checkpoint"));
        Version { tree: self.tree.clone(), _epoch: epoch }
    }
}

impl Newest {
    /// A tree, and the checkpoint that it comes from.
    pub fn new(tree: Tree, generation: u64) -> Self {
        let epochs = VecDeque::from([Arc::new(Epoch { generation })]);
        Self {
            version: ArcSwapOption::empty(),
            working: Mutex::new(Working { tree, epochs }),
            writer: AtomicUsize::new(0),
            read_elsewhere: AtomicBool::new(false),
        }
    }

    /// The newest tree, for a reader.
    ///
    /// It takes no lock, unless nobody but the thread that writes has read since the last change: then it may wait until the batch
    /// that is just being applied is.
    pub fn load(&self) -> Seen {
        let is_elsewhere = self.writer.load(Ordering::Relaxed) != this_thread();
        if is_elsewhere && !self.read_elsewhere.load(Ordering::Relaxed) {
            self.read_elsewhere.store(true, Ordering::Relaxed);
        }
        let version = self.version.load();
        if version.is_some() {
            return Seen::Published(version);
        }
        let working = lock(&self.working);
        match is_elsewhere {
            true => Seen::Published(Guard::from_inner(Some(self.publish(&working)))),
            false => Seen::Own(working.version()),
        }
    }

    /// The version of a tree that does not change meanwhile.
    fn publish(&self, working: &Working) -> Arc<Version> {
        self.version.load_full().unwrap_or_else(|| {
            let version = Arc::new(working.version());
            self.version.store(Some(Arc::clone(&version)));
            version
        })
    }

    /// The newest tree, for the writer. Unlike a version it keeps no block from being given up.
    pub fn tree(&self) -> Tree {
        lock(&self.working).tree.clone()
    }

    /// Begins a change of the tree.
    ///
    /// If others read, they go on reading what was there, and what is changed is copied. If nobody but the writer's own thread has
    /// read since the last change, nobody is there to be held up, and the tree is changed in place.
    pub fn change(&self) -> Changing<'_> {
        if self.read_elsewhere.swap(false, Ordering::Relaxed) {
            return self.change_unseen();
        }
        let working = lock(&self.working);
        self.writer.store(this_thread(), Ordering::Relaxed);
        if self.version.load().is_some() {
            self.version.store(None);
        }
        Changing { newest: self, working, before: None, is_done: false }
    }

    /// Begins a change of the tree that copies what it changes, whoever reads.
    pub fn change_unseen(&self) -> Changing<'_> {
        let working = lock(&self.working);
        self.writer.store(this_thread(), Ordering::Relaxed);
        let before = Some(self.publish(&working));
        Changing { newest: self, working, before, is_done: false }
    }

    /// A checkpoint is the newest from now on: who reads later needs no blocks of older ones.
    pub fn checkpoint_ended(&self, generation: u64) {
        let mut working = lock(&self.working);
        working.epochs.push_back(Arc::new(Epoch { generation }));
        let version = self.version.load().is_some().then(|| Arc::new(working.version()));
        self.version.store(version);
    }

    /// The oldest checkpoint of which somebody may need blocks.
    pub fn oldest(&self) -> u64 {
        let epochs = &mut lock(&self.working).epochs;
        // Whoever had the last version of an epoch is done with its blocks: `get_mut` sees all that was done before it was let go.
        while epochs.len() > 1 && epochs.front_mut().is_some_and(|oldest| Arc::get_mut(oldest).is_some()) {
            epochs.pop_front();
        }
        epochs.front().map_or(u64::MAX, |oldest| oldest.generation)
    }
}

/// The tree while it is being changed.
pub(super) struct Changing<'a> {
    newest: &'a Newest,
    working: MutexGuard<'a, Working>,
    /// What readers see meanwhile.
    before: Option<Arc<Version>>,
    is_done: bool,
}

impl Changing<'_> {
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.working.tree
    }

    /// Readers see the changes from now on.
    pub fn done(mut self) {
        self.is_done = true;
        if self.before.is_some() {
            self.newest.version.store(Some(Arc::new(self.working.version())));
        }
    }

    /// The tree has the changes, and the next checkpoint; readers see them when it has ended.
    pub fn kept(mut self) {
        self.is_done = true;
    }
}

impl Drop for Changing<'_> {
    /// After an error or a panic in the middle nobody sees a part of the changes: where the tree was changed in place, reading it is
    /// an error from now on.
    fn drop(&mut self) {
        if !self.is_done {
            self.working.tree = match &self.before {
                Some(before) => before.tree.clone(),
                None => Tree::lost(self.working.tree.len),
            };
        }
    }
}
