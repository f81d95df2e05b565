//! The providers that the suite runs against.
//! Not their set-up beyond opening two NICs that reach each other.
//! Source: none.

use crate::bed::Bed;
use longma_via::{Address, Nic};

/// All providers that this machine can run.
pub fn all() -> Vec<Bed> {
    vec![shared_memory()]
}

fn shared_memory() -> Bed {
    Bed::new("shared memory", || Nic::open().unwrap(), |_, discriminator| Address::local(discriminator))
}
