//! The store operations that a host's agent uses. An agent on another machine has only this part, through the service's
//! API.

use super::{StoreError, Vm, VmId, VmState};
use crate::placement::Placement;

/// Operations on the virtual machines of one host. A call that changes something returns after the change is durable.
pub trait AgentStore: Send + Sync {
    /// Unique alphanumeric identity of this database. It is generated when the database is created and never changes.
    /// Domains record it.
    ///
    /// # Errors
    /// If the database fails.
    fn identity(&self) -> Result<String, StoreError>;

    /// Returns the virtual machines of a host and those that are being migrated to it, without deleted ones, in the order
    /// of their IDs.
    ///
    /// # Errors
    /// If the database fails.
    fn host_vms(&self, host: &str) -> Result<Vec<Vm>, StoreError>;

    /// Returns one virtual machine.
    ///
    /// # Errors
    /// If it does not exist.
    fn vm(&self, id: VmId) -> Result<Vm, StoreError>;

    /// Returns whether this store ever created a virtual machine with this ID (and this creation time, if given). If
    /// not, a domain that names it belongs to another store, or to a virtual machine that this store has lost.
    ///
    /// # Errors
    /// If the database fails.
    fn has_created(&self, id: VmId, created_at: Option<i64>) -> Result<bool, StoreError> {
        match self.vm(id) {
            Ok(vm) => Ok(created_at.is_none_or(|at| at == vm.created_at)),
            Err(StoreError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes the state of a virtual machine. `problem` replaces its recorded problem. A transition to
    /// [`VmState::Deleted`] releases its resources.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is in another state than `from`, [`StoreError::NotAllowed`] if the state machine has
    /// no such transition.
    fn transition(
        &self,
        id: VmId,
        from: VmState,
        to: VmState,
        problem: Option<&str>,
    ) -> Result<Vm, StoreError>;

    /// Reserves a second placement on the same host for a running virtual machine and marks it as moving.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if resources are taken or its groups forbid the target, [`StoreError::Stale`] if it is
    /// not running.
    fn begin_move(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError>;

    /// Ends a move and releases the placement that is no longer used: the old one if `arrived`, the target otherwise.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not moving.
    fn end_move(&self, id: VmId, arrived: bool) -> Result<Vm, StoreError>;

    /// Reserves a placement on another host for a running virtual machine and marks it as migrating. Its present
    /// placement stays reserved.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if resources are taken, its groups forbid the target, the target host accepts no virtual
    /// machines, or it has devices; [`StoreError::Stale`] if it is not running.
    fn begin_migration(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError>;

    /// Ends a migration: it is on the target host if `problem` is `None`, else it has stayed and `problem` is recorded.
    /// Releases the placement that is no longer used.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not migrating.
    fn end_migration(&self, id: VmId, problem: Option<&str>) -> Result<Vm, StoreError>;
}
