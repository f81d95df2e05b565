//! The audit log: which requests are recorded, and a limit that keeps refused ones from filling the database.

use super::ServiceState;
use crate::access::Caller;
use longma_locks::IgnorePoison;
use longma_placement::store::AuditRecord;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of refused requests of one token that are recorded in a [`REFUSAL_PERIOD`]. Requests without a valid
/// token count together.
const MAX_REFUSALS: u32 = 60;
const REFUSAL_PERIOD: Duration = Duration::from_secs(60);

/// Counts the refused requests of each token; `None` represents all requests without a valid token.
#[derive(Debug, Default)]
pub(crate) struct RefusalLimit(HashMap<Option<String>, RefusalCount>);

#[derive(Debug)]
struct RefusalCount {
    began: Instant,
    recorded: u32,
    omitted: u64,
}

impl RefusalLimit {
    /// Returns whether to record a refused request and, if so, the number of preceding ones that were not recorded.
    fn admit(&mut self, caller: Option<&Caller>, now: Instant) -> Option<u64> {
        let count = self.0.entry(caller.map(|c| c.digest.clone()));
        let count = count.or_insert(RefusalCount { began: now, recorded: 0, omitted: 0 });
        if now.duration_since(count.began) >= REFUSAL_PERIOD {
            (count.began, count.recorded) = (now, 0);
        }
        if count.recorded == MAX_REFUSALS {
            count.omitted += 1;
            return None;
        }
        count.recorded += 1;
        Some(std::mem::take(&mut count.omitted))
    }
}

impl ServiceState {
    /// Records a request in the audit log. Limits how many refused requests are recorded. If `wait`, the record is
    /// durable afterwards; otherwise it is within a second, together with others.
    pub async fn record_audit(
        self: &Arc<Self>,
        caller: Option<&Caller>,
        mut record: AuditRecord,
        wait: bool,
    ) {
        if record.status >= 400 {
            let mut limit = self.refusal_limit.lock().ignore_poison();
            match limit.admit(caller, Instant::now()) {
                None => return,
                Some(0) => {}
                Some(omitted) => {
                    let separator = if record.object.is_empty() { "" } else { "; " };
                    record.object +=
                        &format!("{separator}{omitted} refused requests before it are not recorded");
                }
            }
        }
        self.audit_queue.lock().ignore_poison().push(record);
        if wait {
            self.write_audit().await;
        }
    }

    /// Writes the queued records of the audit log. If the database fails, they go to the service's log instead.
    pub async fn write_audit(self: &Arc<Self>) {
        // A failure is already logged.
        let _ = self
            .with(|state| {
                state.write_audit_now();
                Ok(())
            })
            .await;
    }

    fn write_audit_now(&self) {
        // Held while the records are written, so that a caller whose record another thread is writing returns only
        // after it is durable.
        let _writing = self.audit_writer.lock().ignore_poison();
        let records = std::mem::take(&mut *self.audit_queue.lock().ignore_poison());
        if records.is_empty() {
            return;
        }
        if let Err(error) = self.store.append_audit(&records) {
            for record in records {
                // Debug format escapes control characters.
                (self.log)(&format!("the audit log cannot be written ({error}): {record:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_beyond_the_limit_are_counted_instead() {
        let (mut limit, began) = (RefusalLimit::default(), Instant::now());
        for _ in 0..MAX_REFUSALS {
            assert_eq!(limit.admit(None, began), Some(0));
        }
        assert_eq!([limit.admit(None, began), limit.admit(None, began + REFUSAL_PERIOD / 2)], [None, None]);
        assert_eq!(limit.admit(None, began + REFUSAL_PERIOD), Some(2));
        assert_eq!(limit.admit(None, began + REFUSAL_PERIOD), Some(0));
    }
}
