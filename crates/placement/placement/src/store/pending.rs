//! An answer of a store that comes later.
//! Not when a change is durable, which is the store's.

use super::StoreError;
use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver, Sender};

/// An answer that comes when it is durable.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<Result<T, StoreError>>,
    came: RefCell<Option<Result<T, StoreError>>>,
}

impl<T> Pending<T> {
    /// An answer that is there already.
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        let (sender, pending) = Self::awaited();
        // The receiver is alive: it is returned below.
        let _ = sender.send(answer);
        pending
    }

    /// An answer that whoever has the sender gives.
    pub(super) fn awaited() -> (Sender<Result<T, StoreError>>, Self) {
        let (sender, answer) = mpsc::channel();
        (sender, Self { answer, came: RefCell::new(None) })
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// What the store says, or [`StoreError::Closed`].
    pub fn wait(self) -> Result<T, StoreError> {
        match self.came.into_inner() {
            Some(answer) => answer,
            None => self.answer.recv().unwrap_or(Err(StoreError::Closed)),
        }
    }

    /// Whether the answer has come.
    pub fn is_answered(&self) -> bool {
        let mut came = self.came.borrow_mut();
        if came.is_none() {
            *came = match self.answer.try_recv() {
                Ok(answer) => Some(answer),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => Some(Err(StoreError::Closed)),
            };
        }
        came.is_some()
    }
}
