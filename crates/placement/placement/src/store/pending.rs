//! A store's answer that arrives later.

use super::StoreError;
use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver, Sender};

/// An answer that arrives when the change is durable.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<Result<T, StoreError>>,
    received: RefCell<Option<Result<T, StoreError>>>,
}

impl<T> Pending<T> {
    /// Creates an answer that has already arrived.
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        let (sender, pending) = Self::channel();
        // Cannot fail: the receiver is returned below.
        let _ = sender.send(answer);
        pending
    }

    /// Creates an answer that the returned sender delivers.
    pub(super) fn channel() -> (Sender<Result<T, StoreError>>, Self) {
        let (sender, answer) = mpsc::channel();
        (sender, Self { answer, received: RefCell::new(None) })
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The store's error, or [`StoreError::Closed`].
    pub fn wait(self) -> Result<T, StoreError> {
        match self.received.into_inner() {
            Some(answer) => answer,
            None => self.answer.recv().unwrap_or(Err(StoreError::Closed)),
        }
    }

    /// Returns whether the answer has arrived.
    pub fn is_answered(&self) -> bool {
        let mut received = self.received.borrow_mut();
        if received.is_none() {
            *received = match self.answer.try_recv() {
                Ok(answer) => Some(answer),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => Some(Err(StoreError::Closed)),
            };
        }
        received.is_some()
    }
}
