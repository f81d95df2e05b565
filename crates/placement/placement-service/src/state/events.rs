//! Events in the store, which other processes may add.

use super::ServiceState;
use longma_placement::store::StoreError;

impl ServiceState {
    /// Reads new events. Notifies watchers, and the agents of hosts that another process changed.
    pub fn read_events(&self) -> Result<(), StoreError> {
        let known = *self.last_event.borrow();
        let events = self.store.events(known, 1000)?;
        let Some(last) = events.last().map(|e| e.number) else { return Ok(()) };
        for event in events.iter().filter(|e| {
            matches!(
                &*e.kind,
                "reserved" | "evacuated" | "intent" | "draining" | "emptying" | "up" | "relocated"
            )
        }) {
            match (&event.host, event.vm) {
                (Some(host), _) => self.notify(host),
                (None, Some(vm)) => self.notify_host_of(&self.store.vm(vm)?),
                (None, None) => {}
            }
        }
        self.last_event.send_replace(last);
        Ok(())
    }
}
