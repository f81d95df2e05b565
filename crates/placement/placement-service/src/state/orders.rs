//! Orders for the agents: moves, and virtual machines whose intended state has changed.

use super::ServiceState;
use crate::wire::{AgentOrders, Order, OrderDone, OrderKind};
use longma_locks::IgnorePoison;
use longma_placement::store::{Intent, StoreError, Vm, VmId};
use longma_placement::{Placement, Store};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum time that an agent's report is held open to wait for work.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(5);

/// An order whose result a request waits for.
pub(super) struct AwaitedOrder {
    /// The host whose agent has the order.
    host: String,
    answer: oneshot::Sender<OrderDone>,
}

impl ServiceState {
    /// Signals that there is work for a host's agent.
    pub fn notify(&self, host: &str) {
        self.host(host, |h| h.generation.send_modify(|g| *g += 1));
    }

    /// Waits for work on a host that is newer than `generation`, at most for `wait`. Returns the pending orders.
    pub async fn wait_for_orders(&self, host: &str, generation: u64, wait: Duration) -> AgentOrders {
        let mut changed = self.host(host, |h| h.generation.subscribe());
        let mut stopping = self.stopping.subscribe();
        let later = changed.wait_for(|now| *now > generation);
        tokio::select! {
            _ = tokio::time::timeout(wait.min(MAX_WAIT), later) => {}
            _ = stopping.wait_for(|s| *s) => {}
        }
        self.host(host, |h| AgentOrders {
            generation: *h.generation.borrow(),
            orders: std::mem::take(&mut h.orders),
        })
    }

    /// Orders a move. The receiver returns the agent's result.
    pub fn order(&self, host: &str, vm: VmId, target: Placement) -> (u64, oneshot::Receiver<OrderDone>) {
        self.order_kind(host, vm, target, OrderKind::Move)
    }

    /// Queues an order for the agent of a host. The receiver returns the result.
    pub(super) fn order_kind(
        &self,
        host: &str,
        vm: VmId,
        target: Placement,
        kind: OrderKind,
    ) -> (u64, oneshot::Receiver<OrderDone>) {
        let number = self.next_order.fetch_add(1, Ordering::Relaxed);
        (number, self.order_numbered(number, host, vm, target, kind))
    }

    pub(super) fn order_numbered(
        &self,
        number: u64,
        host: &str,
        vm: VmId,
        target: Placement,
        kind: OrderKind,
    ) -> oneshot::Receiver<OrderDone> {
        let (answer, answered) = oneshot::channel();
        self.awaited_orders.lock().ignore_poison().insert(number, AwaitedOrder { host: host.into(), answer });
        self.host(host, |h| h.orders.push(Order { number, vm, target, kind }));
        self.notify(host);
        answered
    }

    /// Drops the orders that an agent had fetched before it was restarted: their results are lost.
    pub(super) fn drop_fetched_orders(&self, host: &str) {
        let queued: Vec<u64> = self.host(host, |h| h.orders.iter().map(|order| order.number).collect());
        let mut awaited_orders = self.awaited_orders.lock().ignore_poison();
        awaited_orders.retain(|number, order| order.host != host || queued.contains(number));
    }

    /// Passes the result of an order on to the request that waits for it. Ignores results of other hosts' orders: an
    /// agent may only answer for its own host.
    pub(super) fn complete(&self, host: &str, done: OrderDone) {
        let mut awaited_orders = self.awaited_orders.lock().ignore_poison();
        if awaited_orders.get(&done.number).is_none_or(|order| order.host != host) {
            return;
        }
        if let Some(order) = awaited_orders.remove(&done.number) {
            // Fails if the waiting request was dropped.
            let _ = order.answer.send(done);
        }
    }

    /// Cancels an order. Returns whether the agent had not fetched the order yet.
    pub fn cancel(&self, host: &str, number: u64) -> bool {
        self.awaited_orders.lock().ignore_poison().remove(&number);
        self.host(host, |h| {
            let before = h.orders.len();
            h.orders.retain(|o| o.number != number);
            h.orders.len() < before
        })
    }

    /// Orders a move that balances the host's load, if one is due.
    pub(super) fn balance(&self, name: &str, vm_cpus: BTreeMap<VmId, f64>) -> Result<(), StoreError> {
        let host = self.store.host(name)?.host;
        let vms = self.store.host_vms(name)?;
        let now = self.started_at.elapsed().as_secs();
        let switcher = self.host(name, |h| h.switcher.clone());
        let (send, planned) = std::sync::mpsc::channel();
        self.worker.submit(move |allocator| {
            let _ = send.send(switcher.plan(now, &host, &vms, &vm_cpus, allocator.scheduler()));
        });
        // If the scheduler is too busy to plan, the next report tries again.
        if let Ok(Some(plan)) = planned.recv_timeout(Duration::from_secs(1)) {
            (self.log)(&format!(
                "{name}: virtual machine {} is to move: the load of the nodes differs by {:.2}",
                plan.vm, plan.imbalance.0
            ));
            self.host(name, |h| h.switcher.moved(now, plan.vm));
            // The result is not awaited: it appears in the agent's report and the store's events.
            drop(self.order(name, plan.vm, plan.target));
        }
        Ok(())
    }

    /// Records the owner's intent through a store that records the actor, and notifies the host's agent.
    pub fn set_intent(&self, store: &dyn Store, vm: &Vm, intent: Intent) -> Result<Vm, StoreError> {
        let changed = store.set_intent(vm.id, intent)?;
        self.notify_host_of(&changed);
        Ok(changed)
    }

    /// Notifies the agent of a virtual machine's host.
    pub fn notify_host_of(&self, vm: &Vm) {
        if let Some(placement) = &vm.placement {
            self.notify(&placement.host);
        }
    }
}
