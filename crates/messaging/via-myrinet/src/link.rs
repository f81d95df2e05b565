//! The link of a connected VI on the modelled network: passes posts to the NIC, and the NIC's results to the engine.
//!
//! Source: VIA, reliability levels, RDMA.

use super::job::{Content, Packet, Work};
use super::requests::{Shared, ViAddress};
use super::station::{HostEvent, Side};
use super::translation::Piece;
use longma_via::provider::{
    EndReason, Header, Link, Outgoing, Posted, Refusal, Request, Target, WakeSource, gather, scatter,
};
use longma_via::{Reliability, Segment, Status};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct MyrinetLink {
    shared: Arc<Shared>,
    own: ViAddress,
    peer: ViAddress,
    reliability: Reliability,
    /// Incomplete posts in order, with their status if known.
    pending: VecDeque<(u32, Option<Status>)>,
    /// Whether the connection is being set up, which takes no simulated time: the threads of both ends set it up
    /// concurrently, and their order must not affect simulated times.
    connecting: bool,
    waits: bool,
    over: bool,
}

impl MyrinetLink {
    pub(super) fn new(
        shared: Arc<Shared>,
        own: ViAddress,
        peer: ViAddress,
        reliability: Reliability,
    ) -> Self {
        let pending = VecDeque::new();
        Self { shared, own, peer, reliability, pending, connecting: true, waits: false, over: false }
    }

    fn packet(&self, token: u32, content: Content) -> Packet {
        Packet { to: self.peer, from: self.own, token, wants_acknowledgement: false, content }
    }

    fn content(&self, outgoing: &Outgoing<'_>) -> Content {
        let Outgoing { request, length, immediate, .. } = *outgoing;
        let header = Header { request, length, immediate };
        match request {
            Request::RdmaRead(_) => Content::ReadRequest(header),
            Request::Send | Request::RdmaWrite(_) => {
                let mut payload = Vec::with_capacity(length as usize);
                // SAFETY: the slices belong to this post.
                unsafe { gather(outgoing.slices, &mut payload) };
                Content::Message { header, payload }
            }
        }
    }

    /// Reports completions to the engine in order of posting.
    fn completed(&mut self, token: u32, status: Status, target: &mut dyn Target) {
        if let Some(entry) = self.pending.iter_mut().find(|entry| entry.0 == token) {
            entry.1 = Some(status);
        }
        while let Some((token, Some(status))) = self.pending.front().copied() {
            self.pending.pop_front();
            target.completed(token, status);
        }
    }

    fn arrived(&mut self, packet: Packet, target: &mut dyn Target) -> Result<(), EndReason> {
        let token = packet.token;
        match packet.content {
            Content::Message { header, payload } => match target.deliver(&header, &payload) {
                Ok(()) if packet.wants_acknowledgement => {
                    let acknowledgement = self.packet(token, Content::Acknowledgement(token));
                    self.shared.world().reply(self.own.0, acknowledgement, Vec::new());
                    Ok(())
                }
                Ok(()) => Ok(()),
                Err(refusal) => self.refused(token, packet.wants_acknowledgement, refusal),
            },
            Content::ReadRequest(header) => self.answer_read(token, &header, target),
            Content::ReadResponse { token, payload } => {
                if let Some(slices) = target.reading(token) {
                    // SAFETY: the target returned the slices during this poll.
                    unsafe { scatter(slices, &payload) };
                    self.completed(token, Status::DONE, target);
                }
                Ok(())
            }
            Content::Acknowledgement(_) => Ok(()),
        }
    }

    fn answer_read(&mut self, token: u32, header: &Header, target: &mut dyn Target) -> Result<(), EndReason> {
        let Request::RdmaRead(remote) = header.request else { return Ok(()) };
        match target.readable(remote, header.length) {
            Ok(slice) => {
                let mut payload = Vec::with_capacity(slice.length as usize);
                // SAFETY: the target returned the slice during this poll.
                unsafe { gather(&[slice], &mut payload) };
                let mut pieces: Vec<Piece> = Vec::new();
                let mut world = self.shared.world();
                let regions = &world.station(self.own.0).regions;
                regions.pieces(remote.handle.0, remote.address, slice.length, &mut pieces);
                let response = self.packet(token, Content::ReadResponse { token, payload });
                world.reply(self.own.0, response, pieces);
                Ok(())
            }
            Err(refusal) => self.refused(token, true, refusal),
        }
    }

    /// Handles a message that the engine refused: informs the peer as its reliability level requires.
    fn refused(&mut self, token: u32, waits: bool, refusal: Refusal) -> Result<(), EndReason> {
        if self.reliability == Reliability::Unreliable {
            return Ok(());
        }
        let status = waits.then(|| (token, refusal.remote_status()));
        self.end(status, EndReason::MessageRefused);
        Err(EndReason::MessageRefused)
    }

    fn end(&mut self, status: Option<(u32, Status)>, reason: EndReason) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let mut world = self.shared.world();
        world.drain(self.own.0, self.own.1);
        world.station(self.own.0).vis[self.own.1].active = false;
        let (station, slot) = self.peer;
        if world.station(station).vis[slot].active {
            world.notify_end(station, slot, status, reason);
        }
    }
}

impl Link for MyrinetLink {
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted {
        self.connecting = false;
        let mut work = Work { segments: outgoing.slices.len() as u32, ..Work::default() };
        let mut packet = self.packet(outgoing.token, self.content(outgoing));
        packet.wants_acknowledgement = self.reliability == Reliability::ReliableReception;
        work.packet = Some(packet);
        let mut world = self.shared.world();
        let regions = &world.station(self.own.0).regions;
        for slice in outgoing.slices {
            regions.pieces(slice.handle.0, slice.address as u64, slice.length, &mut work.pieces);
        }
        world.post(self.own.0, self.own.1, Side::Send, work);
        self.pending.push_back((outgoing.token, None));
        Posted::Pending
    }

    fn holds_receives(&self) -> bool {
        true
    }

    fn receive_posted(&mut self, segments: &[Segment]) {
        let mut work = Work { segments: segments.len() as u32, ..Work::default() };
        let mut world = self.shared.world();
        let regions = &world.station(self.own.0).regions;
        for segment in segments {
            regions.pieces(segment.handle.0, segment.address, segment.length, &mut work.pieces);
        }
        if self.connecting {
            world.place_receive(self.own.0, self.own.1, work);
        } else {
            world.post(self.own.0, self.own.1, Side::Receive, work);
        }
    }

    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), EndReason> {
        if std::mem::take(&mut self.connecting) {
            // This is the engine's poll at the end of the set-up. A later poll finds the arrived packets.
            return Ok(());
        }
        for turn in 0..budget.max(1) {
            // Only the first poll waits. Packets that arrive with it are processed, and then the program continues.
            let waits = self.waits && turn == 0;
            let event = self.shared.world().poll(self.own.0, self.own.1, waits);
            match event {
                None => return Ok(()),
                Some(HostEvent::Completed(token, status)) => self.completed(token, status, target),
                Some(HostEvent::Packet(packet)) => self.arrived(packet, target)?,
                Some(HostEvent::Disconnected(reason)) => {
                    self.over = true;
                    self.shared.world().station(self.own.0).vis[self.own.1].active = false;
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    fn arm(&mut self) -> WakeSource {
        self.waits = true;
        WakeSource::None
    }

    fn disarm(&mut self) {
        self.waits = false;
    }

    fn disconnect(&mut self) {
        self.end(None, EndReason::Disconnected);
    }
}

impl Drop for MyrinetLink {
    fn drop(&mut self) {
        self.end(None, EndReason::Disconnected);
    }
}
