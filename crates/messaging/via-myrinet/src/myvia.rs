//! The MyVIA firmware: up to four state machines that share buffers and engines, and rings written by the host.
//!
//! Source: Jiao Zhenqiang et al., state-machine soft pipeline, small and big ring. The fast path is not in the paper.

use super::Settings;
use super::job::{Job, Op, Packet};
use super::lanai::Engine;
use super::station::{Action, Next, Side, Station, scaled};
use super::steps;
use longma_sim::Time;

/// Continues the firmware at time `now`.
pub fn resume(station: &mut Station, now: Time, settings: &Settings, actions: &mut Vec<Action>) -> Next {
    if let Some(next) = station.continue_sequential(now, settings, actions) {
        return next;
    }
    if station.cursor < station.state_machines.len() {
        return visit(station, now, settings, actions);
    }
    if !station.visit_charged {
        // The end of a round: checks all rings and the receive engine. The cycles of these checks are spent first.
        station.visit_charged = true;
        let rings = 2 * station.active() as u32 * steps::POLL_SMALL_RING.cycles();
        let flagged = station.vis.iter().filter(|vi| vi.sends.flag || vi.receives.flag).count() as u32;
        let low = flagged * steps::LOW_WATER.cycles();
        let cycles = scaled(rings + low + steps::LOOP.cycles(), settings);
        return spend(station, cycles);
    }
    station.visit_charged = false;
    station.cursor = 0;
    let found = take_packets(station, settings) | take_descriptor(station, settings);
    refill(station, now, settings, actions);
    let moved = found | station.progressed | std::mem::take(&mut station.must_check_again);
    let round = std::mem::take(&mut station.round_cycles);
    station.progressed = false;
    if moved { spend(station, 1) } else { Next::Idle(station.card.cycles(round)) }
}

fn spend(station: &mut Station, cycles: u32) -> Next {
    station.round_cycles += cycles;
    Next::After(station.card.compute(cycles))
}

/// Visits the machine under the cursor, which continues until it has started an engine or needs one that is busy.
fn visit(station: &mut Station, now: Time, settings: &Settings, actions: &mut Vec<Action>) -> Next {
    let mut job = std::mem::replace(&mut station.state_machines[station.cursor], placeholder());
    let mut cycles = 0;
    if !station.visit_charged {
        station.visit_charged = true;
        cycles += scaled(steps::VISIT.cycles(), settings);
    }
    let mut stays = true;
    let mut leaves = false;
    if let Some(engine) = job.waits_for {
        if station.card.is_busy(engine) {
            leaves = true;
        } else {
            job.waits_for = None;
        }
    }
    while !leaves {
        match job.ops.front() {
            None => {
                (stays, leaves) = (false, true);
            }
            Some(Op::Cycles(more)) => {
                cycles += more;
                job.ops.pop_front();
                station.progressed = true;
            }
            Some(Op::Lock(engine)) => {
                cycles += scaled(steps::TRY_LOCK.cycles(), settings);
                if try_lock(station, *engine, job.id) {
                    job.ops.pop_front();
                    station.progressed = true;
                } else {
                    leaves = true;
                }
            }
            Some(Op::TakeReceive) => leaves = !take_receive(station, &mut job, settings),
            // Visible effects take place after the cycles before them have been spent.
            Some(_) if cycles > 0 => break,
            Some(Op::Unlock(engine)) => {
                station.locks[index(*engine)].pop_front();
                job.ops.pop_front();
                station.progressed = true;
            }
            Some(_) => {
                if let Some(op) = job.ops.pop_front() {
                    station.perform(now, &mut job, op, actions);
                }
                station.progressed = true;
                if job.waits_for.is_some() {
                    cycles += scaled(steps::CHANGE_STATE.cycles(), settings);
                    leaves = true;
                }
            }
        }
    }
    if stays {
        station.state_machines[station.cursor] = job;
    } else {
        station.state_machines.remove(station.cursor);
    }
    if leaves {
        station.visit_charged = false;
        station.cursor += usize::from(stays);
    }
    spend(station, cycles.max(1))
}

fn placeholder() -> Job {
    Job { id: 0, vi: 0, ops: Default::default(), waits_for: None, packet: None }
}

fn index(engine: Engine) -> usize {
    usize::from(engine == Engine::Send)
}

/// Locks are granted in order of request, so that messages of a VI keep their order.
fn try_lock(station: &mut Station, engine: Engine, job: u64) -> bool {
    let queue = &mut station.locks[index(engine)];
    if !queue.contains(&job) {
        queue.push_back(job);
    }
    queue.front() == Some(&job)
}

/// Takes the receive descriptor for the job's packet. Returns `false` if the descriptor is still in the big ring.
fn take_receive(station: &mut Station, job: &mut Job, settings: &Settings) -> bool {
    let vi = &mut station.vis[job.vi];
    let rings = &mut vi.receives;
    let Some(work) = rings.take() else {
        if vi.active && (rings.has_big() || rings.refilling) {
            return false;
        }
        job.ops.pop_front();
        return true;
    };
    job.ops.pop_front();
    station.progressed = true;
    let steps = station.planner(settings).take_receive(&work);
    steps.into_iter().rev().for_each(|op| job.ops.push_front(op));
    true
}

/// Whether a message of `bytes` can use the fast path, without a state machine and locks.
fn takes_fast_path(station: &Station, bytes: u32, settings: &Settings) -> bool {
    settings.fast_path > 0 && bytes <= settings.fast_path && station.state_machines.is_empty()
}

fn take_packets(station: &mut Station, settings: &Settings) -> bool {
    let mut found = false;
    while station.sequential.is_none()
        && let Some(packet) = station.arrivals.pop_front()
    {
        let slot = packet.to.1;
        let rings = station.vis.get(slot).filter(|_| packet.uses_receive());
        let pieces = station.pieces_for(&packet, rings.and_then(|vi| vi.receives.front()));
        let fast = takes_fast_path(station, packet.bytes(), settings);
        let planner = station.planner(settings);
        let planner = if fast { planner.on_fast_path() } else { planner };
        let ops = planner.receive(&packet, &pieces, None);
        let job = station.job(slot, ops, Some(packet));
        if fast {
            station.sequential = Some(job);
        } else {
            station.state_machines.push_back(job);
        }
        found = true;
    }
    found
}

/// Takes the next send, if a buffer is free.
fn take_descriptor(station: &mut Station, settings: &Settings) -> bool {
    if station.free_send_buffers == 0 || station.sequential.is_some() {
        return false;
    }
    if let Some((packet, pieces)) = station.replies.pop_front() {
        station.free_send_buffers -= 1;
        let mut ops = station.planner(settings).reply(&pieces);
        ops.push_back(Op::FreeSendBuffer);
        let job = station.job(packet.from.1, ops, Some(packet));
        station.state_machines.push_back(job);
        return true;
    }
    let count = station.vis.len();
    for turn in 0..count {
        let slot = (station.next_vi + turn) % count;
        let Some(work) = station.vis[slot].sends.take() else { continue };
        station.next_vi = slot + 1;
        station.free_send_buffers -= 1;
        let fast = takes_fast_path(station, work.packet.as_ref().map_or(0, Packet::bytes), settings);
        let planner = station.planner(settings);
        let planner = if fast { planner.on_fast_path() } else { planner };
        let ops = planner.send(&work);
        let job = station.job(slot, ops, work.packet);
        if fast {
            station.sequential = Some(job);
        } else {
            station.state_machines.push_back(job);
        }
        return true;
    }
    false
}

/// Interrupts the host to refill rings that are low.
fn refill(station: &mut Station, now: Time, settings: &Settings, actions: &mut Vec<Action>) {
    for slot in 0..station.vis.len() {
        for side in [Side::Send, Side::Receive] {
            if !station.vis[slot].rings(side).is_low(settings.low_water) {
                continue;
            }
            if !station.card.interrupt(now) {
                actions.extend(station.card.interrupt_allowed_at().map(Action::WakeAt));
                return;
            }
            station.vis[slot].rings(side).refilling = true;
            station.progressed = true;
            station.card.compute(scaled(steps::INTERRUPT.cycles(), settings));
            actions.push(Action::Refill(slot, side));
        }
    }
}
