//! Where messages go: sends, frames and marks of other regions, and which of them a shard's floor lets pass.
//!
//! Source: sharding §2.4, §2.6.

use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::buffer::{Content, Rank, Waiting};
use super::place::Place;
use super::protocol::{Effect, MessageInfo, Provenance, Route};
use super::slot::{Hosting, Local, Served, Slot, Table};
use super::{Region, RegionState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Mark, PeerMessage, Stamp};
use crate::settings::HandoffStraggler;

/// A message forwarded more often than this suggests that homes known here are wrong.
const SUSPICIOUS_HOPS: u8 = 4;
/// A message forwarded more often than this runs in a circle.
const MAX_HOPS: u8 = 8;

impl Region {
    pub(super) fn on_local_send(&mut self, now: Instant, shard: ShardId, message: MessageInfo, out: &mut Vec<Effect>) {
        self.message_counters.counters.submitted += 1;
        let waiting = Waiting {
            content: Content::Message(message),
            origin: self.config.id.clone(),
            first: None,
            stamped: None,
            hops: 0,
            rank: Rank::Plain,
            kept_at: None,
        };
        match self.state {
            RegionState::Stopping => return self.drop_waiting(&shard, &waiting, self.end_reason, out),
            RegionState::Stopped => {
                return self.drop_waiting(&shard, &waiting, DeadLetterReason::RegionStopped, out);
            }
            RegionState::Refused => return self.drop_waiting(&shard, &waiting, DeadLetterReason::Refused, out),
            _ => {}
        }
        self.with_place(&shard, |region, place| region.route(now, &shard, place, waiting, out));
    }

    /// Sends an entry along the open route, or keeps it in the buffer.
    pub(super) fn route(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        match place.slot.route() {
            Route::Closed => self.keep(now, shard, place, waiting, out),
            Route::Local { generation } if waiting.stamped > Some(generation) => {
                // Keep the message: a newer allocation to this region is on its way.
                self.keep(now, shard, place, waiting, out);
            }
            Route::Local { .. } => self.deliver(shard, place, waiting, out),
            Route::Remote { region, generation } => self.forward(shard, &region, generation, waiting, out),
        }
    }

    /// Hands an entry to the local shard if the floor of its origin allows.
    pub(super) fn deliver(&mut self, shard: &ShardId, place: &mut Place, waiting: Waiting, out: &mut Vec<Effect>) {
        let own = waiting.origin == self.config.id;
        let Content::Message(MessageInfo { token, .. }) = waiting.content else {
            if let Content::Probe { nonce } = waiting.content {
                self.echo(shard, place, waiting.origin, nonce, out);
            }
            return;
        };
        let Slot::Local(local) = &mut place.slot else { return };
        let Local { hosting, table, .. } = &mut **local;
        let generation = hosting.generation;
        if let Err(reason) = self.check_floor(hosting, &waiting) {
            // The origin may still use the older home, since a region that buffered the message for want of a home knew
            // no newer home to report. Report the generation before this one: enough to leave the older home, while a
            // route to here stays open.
            let newer = hosting.previous.filter(|previous| waiting.first.is_some_and(|first| first < *previous));
            if let Some(newer) = newer.filter(|_| !own) {
                self.note_stale(waiting.origin.node.clone(), shard, newer);
            }
            return self.drop_waiting(shard, &waiting, reason, out);
        }
        let provenance = match waiting.first {
            None if own => Provenance::Own,
            first => Provenance::Received { origin: waiting.origin.clone(), first: first.unwrap_or(generation) },
        };
        self.message_counters.counters.delivered += 1;
        out.push(Effect::Deliver { shard: shard.clone(), generation, token, provenance });
        let straight = waiting.hops == 1 && waiting.first == Some(generation) && waiting.rank == Rank::Plain;
        if let Table::Open { admitted } = table
            && straight
            && admitted.insert(waiting.origin.clone())
        {
            out.push(Effect::Admit { shard: shard.clone(), origin: waiting.origin });
        }
    }

    /// The floor: nothing older is taken from an origin than was taken from it before (sharding §2.6). Leftovers pass
    /// the floor, since they were checked where they were made, and raise it for later messages.
    pub(super) fn check_floor(&self, hosting: &mut Hosting, waiting: &Waiting) -> Result<(), DeadLetterReason> {
        let first = waiting.first.unwrap_or(hosting.generation);
        let relaxed =
            self.config.settings.handoff_straggler == HandoffStraggler::Forward || self.is_without(Sabotage::Floor);
        let floor = hosting.floors.get(&waiting.origin).copied();
        match &waiting.rank {
            // The leftovers must have been kept for the allocation of this hosting.
            Rank::Leftover { ended } if hosting.previous == Some(*ended) => {}
            Rank::Handed { by, addressed }
                if *addressed == hosting.generation
                    && hosting.leftovers_from.as_ref().is_some_and(|from| from.node == *by) => {}
            Rank::Leftover { .. } | Rank::Handed { .. } => return Err(DeadLetterReason::HandOffStraggler),
            Rank::Taken { generation } if *generation == hosting.generation => return Ok(()),
            Rank::Taken { .. } | Rank::Back | Rank::Plain => {
                let too_old = floor.max(hosting.previous).is_some_and(|floor| first < floor);
                if too_old && !relaxed {
                    return Err(DeadLetterReason::RouteStraggler);
                }
            }
        }
        hosting.floors.insert(waiting.origin.clone(), floor.max(Some(first)).unwrap_or(first));
        Ok(())
    }

    pub(super) fn forward(
        &mut self,
        shard: &ShardId,
        to: &RegionId,
        generation: Generation,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        let leftover = match &waiting.rank {
            Rank::Leftover { .. } => true,
            // The message was kept for a home of this region that was never hosted.
            Rank::Handed { .. } => {
                return self.drop_waiting(shard, &waiting, DeadLetterReason::HandOffStraggler, out);
            }
            Rank::Taken { .. } | Rank::Back | Rank::Plain => false,
        };
        let stamp = Stamp {
            generation,
            origin: waiting.origin,
            first: waiting.first.unwrap_or(generation),
            hops: waiting.hops,
            leftover,
        };
        let (to, shard) = (to.clone(), shard.clone());
        match waiting.content {
            Content::Message(MessageInfo { token, .. }) => {
                self.message_counters.counters.forwarded += 1;
                out.push(Effect::SendData { to, shard, token, stamp });
            }
            Content::Probe { nonce } => {
                out.push(Effect::SendMark { to, shard, mark: Mark::Probe { nonce, stamp } });
            }
        }
    }

    fn echo(&mut self, shard: &ShardId, place: &mut Place, to: RegionId, nonce: u64, out: &mut Vec<Effect>) {
        if to == self.config.id {
            Self::on_own_echo(place, nonce);
            return;
        }
        let node = to.node.clone();
        out.push(Effect::SendPeer { to: node, message: PeerMessage::FlushEcho { shard: shard.clone(), nonce, to } });
    }

    /// A message or probe from another region (sharding §2.6).
    pub(super) fn on_frame(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        shard: &ShardId,
        stamp: Stamp,
        content: Content,
        out: &mut Vec<Effect>,
    ) {
        let own = stamp.origin == self.config.id;
        let rank = match (stamp.leftover, own) {
            (true, _) => Rank::Handed { by: node.clone(), addressed: stamp.generation },
            (false, true) => Rank::Back,
            (false, false) => Rank::Plain,
        };
        let waiting = Waiting {
            content,
            origin: stamp.origin,
            first: Some(stamp.first),
            stamped: Some(stamp.generation),
            hops: stamp.hops.saturating_add(1),
            rank,
            kept_at: None,
        };
        self.with_place(shard, |region, place| {
            if let Some(reason) = region.refusal(place, stamp.hops, &waiting) {
                return region.refuse(node, shard, stamp.generation, &waiting, reason, out);
            }
            place.note_generation(stamp.generation);
            // A probe that comes back to its sender counts as its echo.
            if let (Content::Probe { nonce }, true) = (&waiting.content, own) {
                Self::on_own_echo(place, *nonce);
                return region.try_open(now, shard, place, out);
            }
            region.on_stamp(now, node, shard, place, (stamp.generation, stamp.hops), out);
            region.route(now, shard, place, waiting, out);
        });
    }

    /// Learns from a frame which generation its sender believed in: leaves an own route that is older, and tells a
    /// sender whose home is older.
    fn on_stamp(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        shard: &ShardId,
        place: &mut Place,
        (stamped, hops): (Generation, u8),
        out: &mut Vec<Effect>,
    ) {
        match &place.slot {
            Slot::Remote(remote) if remote.generation < stamped || hops > SUSPICIOUS_HOPS => {
                self.leave_remote(now, shard, place, true, out);
            }
            Slot::Remote(remote) => self.note_stale(node, shard, remote.generation),
            Slot::LocalStarting(_) | Slot::Local(_) | Slot::Draining(_) => {
                if let Some(hosted) = place.slot.hosted().filter(|hosted| *hosted > stamped) {
                    self.note_stale(node, shard, hosted);
                }
            }
            // Tell the sender that its home is older even if no home is known here.
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {
                if let Some(heard) = place.heard.filter(|heard| *heard > stamped) {
                    self.note_stale(node, shard, heard);
                }
            }
        }
    }

    /// Drops a frame. A sender whose route ends at a stopped region is told so: as long as this node is a member,
    /// neither a change of members nor an unrequested home would make the sender leave that route.
    fn refuse(
        &mut self,
        node: UniqueAddress,
        shard: &ShardId,
        generation: Generation,
        waiting: &Waiting,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        if self.state == RegionState::Stopped {
            self.note_stale(node, shard, generation);
        }
        self.drop_waiting(shard, waiting, reason, out);
    }

    /// Why a frame may not even wait here.
    fn refusal(&self, place: &Place, hops: u8, waiting: &Waiting) -> Option<DeadLetterReason> {
        match self.state {
            RegionState::Stopped | RegionState::Stopping => return Some(DeadLetterReason::RegionStopped),
            RegionState::Refused => return Some(DeadLetterReason::Refused),
            _ => {}
        }
        if hops > MAX_HOPS {
            return Some(DeadLetterReason::RouteLoop);
        }
        let Rank::Handed { addressed, .. } = &waiting.rank else { return None };
        // Leftovers are valid for the home that they were sent to, until it serves.
        let timely = match place.slot.hosting().filter(|hosting| hosting.generation >= *addressed) {
            Some(hosting) => {
                let has_served = match &place.slot {
                    Slot::LocalStarting(starting) => starting.served != Served::Never,
                    _ => true,
                };
                hosting.generation == *addressed && !has_served
            }
            None => Some(*addressed) > place.ended && Some(*addressed) >= place.heard,
        };
        (!timely).then_some(DeadLetterReason::HandOffStraggler)
    }

    fn note_stale(&mut self, node: UniqueAddress, shard: &ShardId, generation: Generation) {
        let routes = self.pending.stale.entry(node).or_default();
        if routes.last() != Some(&(shard.clone(), generation)) {
            routes.push((shard.clone(), generation));
        }
    }

    pub(super) fn on_mark(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        shard: &ShardId,
        mark: Mark,
        out: &mut Vec<Effect>,
    ) {
        match mark {
            Mark::Probe { nonce, stamp } => self.on_frame(now, node, shard, stamp, Content::Probe { nonce }, out),
            Mark::Flush { attempt, from, .. } if from.node == node => self.with_place(shard, |region, place| {
                let largest = place.marks.entry(from).or_insert(attempt);
                *largest = attempt.max(*largest);
                region.try_drain(now, shard, place, out);
            }),
            Mark::Leftover { generation, from } if from.node == node => self.with_place(shard, |region, place| {
                if place.ended < Some(generation) {
                    place.leftover_marks.insert((generation, from));
                }
                region.try_drain(now, shard, place, out);
                region.try_open(now, shard, place, out);
            }),
            Mark::Flush { .. } | Mark::Leftover { .. } => {}
        }
    }

    pub(super) fn on_peer(&mut self, now: Instant, node: &UniqueAddress, message: PeerMessage, out: &mut Vec<Effect>) {
        if !self.members.contains(node) {
            return;
        }
        match message {
            PeerMessage::StaleRoute(routes) => {
                for (shard, generation) in routes {
                    self.with_place(&shard, |region, place| {
                        region.on_stale_route(now, node, &shard, place, generation, out);
                    });
                }
            }
            PeerMessage::FlushEcho { shard, nonce, to } if to == self.config.id => {
                self.with_place(&shard, |region, place| {
                    Self::on_own_echo(place, nonce);
                    region.try_open(now, &shard, place, out);
                });
            }
            PeerMessage::FlushEcho { .. } => {}
            message @ (PeerMessage::AnnounceType { .. }
            | PeerMessage::TypeOk { .. }
            | PeerMessage::TypeConflict { .. }) => {
                self.agreement.on_message(now, node, message, out);
                self.follow_agreement(now, out);
            }
        }
    }
}
