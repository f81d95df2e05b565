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

/// Counts the refused requests of each token; `None` stands for all requests without a valid one.
#[derive(Debug, Default)]
pub(crate) struct RefusalLimit(HashMap<Option<String>, RefusalCount>);

#[derive(Debug)]
struct RefusalCount {
    began: Instant,
    recorded: u32,
    omitted: u64,
}

impl RefusalLimit {
    /// Returns whether a refused request is to be recorded and, if so, how many before it were not.
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
    /// Appends a request to the audit log and waits until the record is durable. Of refused requests only so many are
    /// recorded. If the database fails, the record goes to the service's log.
    pub async fn record_audit(self: &Arc<Self>, caller: Option<&Caller>, mut record: AuditRecord) {
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
        let appended = record.clone();
        if self.with(move |state| state.store.append_audit(&appended)).await.is_err() {
            // Debug format escapes control characters.
            (self.log)(&format!("the audit log cannot be written: {record:?}"));
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
