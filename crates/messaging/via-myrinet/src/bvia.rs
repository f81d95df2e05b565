//! The Berkeley VIA firmware: a single loop that polls the doorbells and the receive engine, and handles each message
//! from start to end before the next. `job` defines the steps of a message.
//!
//! Source: Jiao Zhenqiang et al., BVIA as the baseline; Buonadonna, Geweke, Culler, "An Implementation and Analysis of
//! the Virtual Interface Architecture" (SC 1998).

use super::Settings;
use super::station::{Action, Next, Side, Station, scaled};
use super::steps;
use longma_sim::Time;

/// Continues the firmware at time `now`.
pub fn resume(station: &mut Station, now: Time, settings: &Settings, actions: &mut Vec<Action>) -> Next {
    if let Some(next) = station.continue_sequential(now, settings, actions) {
        return next;
    }
    let poll = scaled(steps::POLL_DOORBELL.cycles(), settings);
    let round = 2 * station.active() as u32 * poll + scaled(steps::LOOP.cycles(), settings);
    match find(station, settings, poll, round) {
        Some(cycles) => Next::After(station.card.compute(cycles)),
        None => Next::Idle(station.card.cycles(round)),
    }
}

/// Finds the next work. Rounds alternate between checking for packets first and checking the doorbells first. Returns
/// the number of cycles that the search took.
fn find(station: &mut Station, settings: &Settings, poll: u32, round: u32) -> Option<u32> {
    station.packets_first = !station.packets_first;
    if station.packets_first && take_packet(station, settings) {
        return Some(round);
    }
    if let Some(polls) = take_doorbell(station, settings) {
        return Some(polls * poll);
    }
    if take_packet(station, settings) {
        return Some(round);
    }
    let (packet, pieces) = station.replies.pop_front()?;
    let ops = station.planner(settings).reply(&pieces);
    let vi = packet.from.1;
    station.sequential = Some(station.job(vi, ops, Some(packet)));
    Some(round)
}

/// Starts a job for the next received packet. Returns whether there was one.
fn take_packet(station: &mut Station, settings: &Settings) -> bool {
    let Some(packet) = station.arrivals.pop_front() else { return false };
    let slot = packet.to.1;
    let mut has_doorbell = false;
    let mut receive = None;
    if packet.uses_receive()
        && let Some(vi) = station.vis.get_mut(slot)
    {
        receive = vi.receives.take();
        if receive.is_none() {
            // The loop may not have seen the doorbell yet: the firmware checks it before it drops a packet.
            receive = vi.receive_doorbells.pop_front();
            has_doorbell = receive.is_some();
        }
    }
    let pieces = station.pieces_for(&packet, receive.as_ref());
    let mut ops = station.planner(settings).receive(&packet, &pieces, receive.as_ref());
    if has_doorbell {
        let take = scaled(steps::TAKE_DOORBELL.cycles(), settings);
        ops.push_front(super::job::Op::Cycles(take));
    }
    station.sequential = Some(station.job(slot, ops, Some(packet)));
    true
}

/// Takes the next doorbell that was rung. Returns the number of doorbells polled to find it.
fn take_doorbell(station: &mut Station, settings: &Settings) -> Option<u32> {
    let count = station.vis.len();
    let mut polls = 0;
    for turn in 0..count {
        let slot = (station.next_vi + turn) % count;
        if !station.vis[slot].active {
            continue;
        }
        for side in [Side::Send, Side::Receive] {
            polls += 1;
            let job = match side {
                Side::Send => station.vis[slot].sends.take().map(|work| {
                    let ops = station.planner(settings).send(&work);
                    station.job(slot, ops, work.packet)
                }),
                Side::Receive => (!station.vis[slot].receive_doorbells.is_empty()).then(|| {
                    let ops = station.planner(settings).take_receive_doorbell();
                    station.job(slot, ops, None)
                }),
            };
            if job.is_some() {
                station.sequential = job;
                station.next_vi = slot + 1;
                return Some(polls);
            }
        }
    }
    None
}
