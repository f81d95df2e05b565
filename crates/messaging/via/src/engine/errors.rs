//! The error callback. It runs on its own thread, so that no lock of the NIC is held while code of the program runs.
//!
//! Source: VIA, asynchronous errors; VIPL, VipErrorCallback.

use crate::error::{AsynchronousError, Error};
use longma_locks::IgnorePoison;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

type Callback = Box<dyn FnMut(&AsynchronousError) + Send>;

#[derive(Default)]
pub(crate) struct ErrorDispatch {
    callback: Arc<Mutex<Option<Callback>>>,
    /// The channel to the thread, which starts with the first callback and ends with the NIC.
    sender: Mutex<Option<Sender<AsynchronousError>>>,
}

impl ErrorDispatch {
    pub(crate) fn set(&self, callback: Callback) -> Result<(), Error> {
        let before = self.callback.lock().ignore_poison().replace(callback);
        drop(before);
        let mut sender = self.sender.lock().ignore_poison();
        if sender.is_some() {
            return Ok(());
        }
        let (send, receive) = channel::<AsynchronousError>();
        let callback = self.callback.clone();
        std::thread::Builder::new()
            .name("via-errors".into())
            .spawn(move || {
                for error in receive {
                    // Called outside the lock, because the callback may set another one.
                    let place = || callback.lock().ignore_poison();
                    let Some(mut current) = place().take() else { continue };
                    // A panicking callback stays registered for the next error.
                    let _ = catch_unwind(AssertUnwindSafe(|| current(&error)));
                    let mut next = place();
                    if next.is_none() {
                        *next = Some(current);
                    }
                }
            })
            .map_err(|source| Error::system("starting the error thread", source))?;
        *sender = Some(send);
        Ok(())
    }

    pub(crate) fn report(&self, error: AsynchronousError) {
        if let Some(sender) = self.sender.lock().ignore_poison().as_ref() {
            let _ = sender.send(error);
        }
    }
}
