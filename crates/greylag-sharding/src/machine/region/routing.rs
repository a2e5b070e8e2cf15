//! Where messages go: sends, frames from other regions, homes, and the path left behind.
//!
//! A route is left and opened in one place each. Leaving closes the table, keeps the route as the
//! old path and sends a probe along it unless a flush mark does that work; opening waits until the
//! old path is known to be empty, then empties the buffer into the new route before other senders
//! can use it. So a timeout costs a gap, never a swap.
//!
//! Source: sharding §2.4, §2.6.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::buffer::{Content, Rank, Waiting};
use super::protocol::{Effect, MessageInfo, RegionEvent, Route};
use super::slot::{Hosting, Next, OldPath, Slot, State, Task};
use super::{Provenance, Region, RegionState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Home, Mark, PeerMessage, Stamp};
use crate::settings::HandoffStraggler;

/// Forwarded so often, a message suggests that homes known here are wrong.
const SUSPICIOUS_HOPS: u8 = 4;
/// Forwarded so often, a message runs in a circle.
const MAX_HOPS: u8 = 8;

/// Messages that leave one buffer in one turn, under the lock of all shards of the type.
pub(super) const FLUSH_TURN: usize = 512;

impl Region {
    pub(super) fn on_local_send(&mut self, now: Instant, shard: ShardId, message: MessageInfo, out: &mut Vec<Effect>) {
        self.counters.submitted += 1;
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
        self.with_slot(&shard, |region, slot| region.route(now, &shard, slot, waiting, out));
    }

    /// Sends an entry along the open route, or keeps it.
    fn route(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, waiting: Waiting, out: &mut Vec<Effect>) {
        match slot.published.clone() {
            Route::Closed => self.keep(now, shard, slot, waiting, out),
            Route::Local { generation } if waiting.stamped > Some(generation) => {
                // A newer allocation to this region is on its way.
                self.keep(now, shard, slot, waiting, out);
            }
            Route::Local { .. } => self.deliver(shard, slot, waiting, out),
            Route::Remote { region, generation } => self.forward(shard, &region, generation, waiting, out),
        }
    }

    /// Hands an entry to the local shard if its sender's order allows.
    fn deliver(&mut self, shard: &ShardId, slot: &mut Slot, waiting: Waiting, out: &mut Vec<Effect>) {
        let own = waiting.origin == self.config.id;
        let State::Hosted(hosting) = &mut slot.state else { return };
        let Content::Message(MessageInfo { token, .. }) = waiting.content else {
            if let Content::Probe { nonce } = waiting.content {
                self.echo(shard, slot, waiting.origin, nonce, out);
            }
            return;
        };
        let generation = hosting.generation;
        if let Err(reason) = self.check_floor(hosting, &waiting) {
            // Where it was submitted the older home may still be in use: a region that kept it for want of a home knew no newer
            // one to tell of.
            if waiting.first.is_some_and(|first| first < generation) && !own {
                self.note_stale(waiting.origin.node.clone(), shard, generation);
            }
            return self.drop_waiting(shard, &waiting, reason, out);
        }
        let provenance = match waiting.first {
            None if own => Provenance::Own,
            first => Provenance::Travelled { origin: waiting.origin.clone(), first: first.unwrap_or(generation) },
        };
        self.counters.delivered += 1;
        out.push(Effect::Deliver { shard: shard.clone(), generation, token, provenance });
        let straight = waiting.hops == 1 && waiting.first == Some(generation) && waiting.rank == Rank::Plain;
        if straight && slot.published == (Route::Local { generation }) && !hosting.admitted.contains(&waiting.origin) {
            hosting.admitted.insert(waiting.origin.clone());
            out.push(Effect::Admit { shard: shard.clone(), origin: waiting.origin });
        }
    }

    /// The floor: of each origin nothing older is taken than was taken before (sharding §2.6). Leftovers pass it, since they
    /// were checked where they were made, and raise it for what follows.
    pub(super) fn check_floor(&self, hosting: &mut Hosting, waiting: &Waiting) -> Result<(), DeadLetterReason> {
        let first = waiting.first.unwrap_or(hosting.generation);
        let relaxed = self.config.settings.handoff_straggler == HandoffStraggler::Forward
            || self.sabotage == Some(Sabotage::Floor);
        let floor = hosting.floors.get(&waiting.origin).copied();
        match &waiting.rank {
            // The allocation of this hosting must be the one that these leftovers were kept for.
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

    fn forward(
        &mut self,
        shard: &ShardId,
        to: &RegionId,
        generation: Generation,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        let leftover = match &waiting.rank {
            Rank::Leftover { .. } => true,
            // The message was kept for a home of this region that has come to nothing.
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
                self.counters.forwarded += 1;
                out.push(Effect::SendData { to, shard, token, stamp });
            }
            Content::Probe { nonce } => {
                out.push(Effect::SendMark { to, shard, mark: Mark::Probe { nonce, stamp } });
            }
        }
    }

    fn echo(&mut self, shard: &ShardId, slot: &mut Slot, to: RegionId, nonce: u64, out: &mut Vec<Effect>) {
        if to == self.config.id {
            Self::on_own_echo(slot, nonce);
            return;
        }
        let node = to.node.clone();
        out.push(Effect::SendPeer { to: node, message: PeerMessage::FlushEcho { shard: shard.clone(), nonce, to } });
    }

    /// The old path is empty now.
    fn on_own_echo(slot: &mut Slot, nonce: u64) {
        if slot.old_path.as_ref().is_some_and(|path| path.probe == Some(nonce)) {
            slot.old_path = None;
        }
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
        self.with_slot(shard, |region, slot| {
            if let Some(reason) = region.refusal(slot, stamp.hops, &waiting) {
                return region.refuse(node, shard, stamp.generation, &waiting, reason, out);
            }
            slot.hear(stamp.generation);
            // A probe that comes back to its sender is its echo.
            if let (Content::Probe { nonce }, true) = (&waiting.content, own) {
                Self::on_own_echo(slot, *nonce);
                return region.try_open(now, shard, slot, out);
            }
            match &slot.state {
                State::Remote { generation, .. } if *generation < stamp.generation => {
                    region.leave_remote(now, shard, slot, true, out);
                }
                State::Remote { .. } if stamp.hops > SUSPICIOUS_HOPS => {
                    region.leave_remote(now, shard, slot, true, out);
                }
                State::Remote { generation, .. } => region.note_stale(node, shard, *generation),
                State::Hosted(hosting) if hosting.generation > stamp.generation => {
                    region.note_stale(node, shard, hosting.generation);
                }
                // The sender need not wait for a home here to hear that it has an older one.
                State::NoRoute => {
                    if let Some(heard) = slot.heard.filter(|heard| *heard > stamp.generation) {
                        region.note_stale(node, shard, heard);
                    }
                }
                _ => {}
            }
            region.route(now, shard, slot, waiting, out);
        });
    }

    /// Drops a frame. A sender whose route ends at a region that has stopped hears so: as long as this node is a
    /// member, no change of members and no home that it did not ask for would make it leave that route.
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

    /// Why a frame cannot even wait here.
    fn refusal(&self, slot: &Slot, hops: u8, waiting: &Waiting) -> Option<DeadLetterReason> {
        match self.state {
            RegionState::Stopped | RegionState::Stopping => return Some(DeadLetterReason::RegionStopped),
            RegionState::Refused => return Some(DeadLetterReason::Refused),
            _ => {}
        }
        if hops > MAX_HOPS {
            return Some(DeadLetterReason::RouteLoop);
        }
        let Rank::Handed { addressed, .. } = &waiting.rank else { return None };
        // Leftovers are good for the home that they were sent to, until it serves.
        let timely = match &slot.state {
            State::Hosted(hosting) if hosting.ending.is_none() && hosting.generation >= *addressed => {
                hosting.generation == *addressed && !hosting.has_served
            }
            _ => Some(*addressed) > slot.ended && Some(*addressed) >= slot.heard,
        };
        (!timely).then_some(DeadLetterReason::HandOffStraggler)
    }

    fn note_stale(&mut self, node: UniqueAddress, shard: &ShardId, generation: Generation) {
        let routes = self.collected.stale.entry(node).or_default();
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
            Mark::Flush { attempt, from, .. } if from.node == node => self.with_slot(shard, |region, slot| {
                let largest = slot.marks.entry(from).or_insert(attempt);
                *largest = attempt.max(*largest);
                region.try_drain(now, shard, slot, out);
            }),
            Mark::Leftover { generation, from } if from.node == node => self.with_slot(shard, |region, slot| {
                if slot.ended < Some(generation) {
                    slot.leftover_marks.insert((generation, from));
                }
                region.try_drain(now, shard, slot, out);
                region.try_open(now, shard, slot, out);
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
                    self.with_slot(&shard, |region, slot| {
                        region.on_stale_route(now, node, &shard, slot, generation, out);
                    });
                }
            }
            PeerMessage::FlushEcho { shard, nonce, to } if to == self.config.id => {
                self.with_slot(&shard, |region, slot| {
                    Self::on_own_echo(slot, nonce);
                    region.try_open(now, &shard, slot, out);
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

    fn on_stale_route(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        shard: &ShardId,
        slot: &mut Slot,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        slot.hear(generation);
        match &slot.state {
            State::Remote { generation: known, .. } if *known < generation => {
                self.leave_remote(now, shard, slot, true, out);
            }
            // The owner itself says so of its own generation: it has stopped.
            State::Remote { region, generation: known } if *known == generation && region.node == *node => {
                self.leave_remote(now, shard, slot, true, out);
            }
            State::Hosted(hosting) if hosting.generation < generation && hosting.ending.is_none() => {
                self.collected.asks.push(shard.clone());
            }
            _ => {}
        }
        self.ask_home(now, shard, slot);
    }

    /// A home from the coordinator: an answer, a push, or an order to host.
    pub(super) fn on_home(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        home: Home,
        out: &mut Vec<Effect>,
    ) {
        let checked = self.sabotage != Some(Sabotage::GenerationCheck);
        if home.region == self.config.id {
            return self.on_host(now, shard, slot, home, out);
        }
        if checked && Some(home.generation) < slot.heard || self.state == RegionState::Refused {
            return;
        }
        if self.is_from_before_ack(slot, &home) {
            return;
        }
        slot.hear(home.generation);
        slot.pending_host = None;
        if self.is_gone(&home.region.node) {
            return;
        }
        let reachable = !self.dead_ends.contains(&home.region.node);
        let next = reachable.then(|| Next { region: home.region.clone(), generation: home.generation });
        match &slot.state {
            State::Remote { region, generation } => {
                if *region == home.region && *generation == home.generation {
                    return;
                }
                if *generation < home.generation || !checked {
                    self.leave_remote(now, shard, slot, true, out);
                    slot.next = next;
                }
            }
            State::Hosted(hosting) if hosting.ending.is_some() => slot.next = next,
            State::Hosted(hosting) if hosting.generation < home.generation => {
                let generation = hosting.generation;
                out.push(Effect::Event(RegionEvent::OwnershipConflict { shard: shard.clone(), generation }));
                slot.next = next;
                self.kill(now, shard, slot, super::slot::Ending::Dropped, out);
            }
            State::Hosted(_) => {}
            State::NoRoute => {
                self.clear_flushed(slot, &home);
                slot.next = next;
            }
        }
        if !reachable && slot.wants_home() {
            slot.asking.later(now, self.config.settings.retry_interval);
        }
        self.prove_old_path(now, shard, slot, out);
        self.try_open(now, shard, slot, out);
    }

    /// Whether a home was told before this region closed its route to it for a handoff that may still be under way. What
    /// would be sent by it now comes to the owner behind the mark, and would be too late.
    fn is_from_before_ack(&self, slot: &Slot, home: &Home) -> bool {
        slot.acked.is_some_and(|acked| {
            acked.generation == home.generation
                && acked.attempt.epoch() == self.registration.highest_epoch()
                && home.given_up < Some(acked.attempt)
        })
    }

    /// The coordinator says which of this region's marks the former owner waited for.
    pub(super) fn clear_flushed(&self, slot: &mut Slot, home: &Home) {
        let Some(path) = &slot.old_path else { return };
        let flushed = path.flushed.is_some() && path.flushed == home.flushed;
        let same = path.region == home.region && path.generation == home.generation;
        if flushed || same || self.sabotage == Some(Sabotage::OldPath) {
            slot.old_path = None;
        }
    }

    /// The new home is known and the old path is not known to be empty: probe it, and set the time
    /// after which the new route opens all the same.
    pub(super) fn prove_old_path(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let due = slot.next.is_some() || slot.hosting().is_some_and(|hosting| hosting.ending.is_none());
        let Some(path) = &mut slot.old_path else { return };
        if path.probe.is_none() {
            self.nonce += 1;
            path.probe = Some(self.nonce);
            let (to, generation) = (path.region.clone(), path.generation);
            let origin = self.config.id.clone();
            let stamp = Stamp { generation, origin, first: generation, hops: 0, leftover: false };
            let mark = Mark::Probe { nonce: self.nonce, stamp };
            out.push(Effect::SendMark { to, shard: shard.clone(), mark });
        }
        if due && path.deadline.is_none() {
            path.deadline = Some(now + self.config.settings.flush_timeout);
        }
    }

    /// Closes a remote route and keeps it as the old path. `probe` at once, unless a flush mark is sent.
    ///
    /// A flush in turns that has begun ends first, as if all had left in one: of what waits here a part would else be on the
    /// old path while the rest, probes of other regions among it, waits for a new home that may wait for their echo.
    pub(super) fn leave_remote(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        probe: bool,
        out: &mut Vec<Effect>,
    ) {
        if slot.published == Route::Closed && !self.suspect {
            self.flush_remote(now, shard, slot, usize::MAX, out);
        }
        let State::Remote { region, generation } = std::mem::replace(&mut slot.state, State::NoRoute) else { return };
        self.publish(shard, slot, Route::Closed, out);
        slot.old_path = Some(OldPath { region, generation, flushed: None, probe: None, deadline: None });
        if probe {
            self.prove_old_path(now, shard, slot, out);
        }
        self.ask_home(now, shard, slot);
    }

    fn is_gone(&self, node: &UniqueAddress) -> bool {
        self.members.removed.contains_key(node) && !self.members.contains(node)
    }

    /// Opens the route that is known, if nothing stands against it any more.
    pub(super) fn try_open(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        if self.suspect || slot.hand_back.is_some() {
            return;
        }
        if matches!(self.state, RegionState::Refused | RegionState::Stopping | RegionState::Stopped) {
            return;
        }
        if slot.old_path.is_some() {
            return self.send_leftovers_ahead(now, shard, slot, out);
        }
        match (&slot.state, &slot.next) {
            (State::NoRoute, Some(_)) => {
                if let Some(Next { region, generation }) = slot.next.take() {
                    slot.state = State::Remote { region, generation };
                    self.open_remote(now, shard, slot, out);
                }
            }
            (State::Remote { .. }, _) if slot.published == Route::Closed => self.open_remote(now, shard, slot, out),
            (State::Hosted(hosting), _) if slot.published == Route::Closed => {
                let awaited = hosting.leftover_deadline.is_some() && !self.leftovers_are_in(slot, hosting);
                let busy = hosting.handoff.is_some() || hosting.ending.is_some() || hosting.task != Task::Ready;
                if !busy && !awaited {
                    self.open_local(now, shard, slot, out);
                }
            }
            _ => {}
        }
    }

    /// Leftovers first, then the mark that says so, then everything else, then the table. Until then the table has no route,
    /// so what is sent meanwhile waits behind.
    fn open_remote(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let State::Remote { region, generation } = &slot.state else { return };
        let (region, generation) = (region.clone(), *generation);
        self.send_leftovers(now, shard, slot, &region, generation, out);
        self.flush_remote(now, shard, slot, self.flush_turn, out);
        if !slot.buffer.is_empty() {
            return Self::continue_later(shard, slot, out);
        }
        slot.asking.end();
        self.publish(shard, slot, Route::Remote { region, generation }, out);
    }

    /// Passes the leftovers to a new home that may not be opened yet, since own messages may still be on the old path.
    /// Leftovers have come from there or never were there, so what is still on it is not to go first. The new home waits
    /// for them; so may, through it, the probe whose echo this region waits for.
    fn send_leftovers_ahead(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let (State::NoRoute, Some(Next { region, generation })) = (&slot.state, &slot.next) else { return };
        let (region, generation) = (region.clone(), *generation);
        self.send_leftovers(now, shard, slot, &region, generation, out);
    }

    /// Passes all leftovers to the home that follows, and the mark behind them. In one turn, however many: leftovers are
    /// good for this home alone, and a route left in their midst would strand the rest.
    fn send_leftovers(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        region: &RegionId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        while let Some(waiting) = slot.buffer.pop_leftover() {
            self.empty(now, shard, waiting, out, |this, waiting, out| {
                this.forward(shard, region, generation, waiting, out);
            });
        }
        if std::mem::take(&mut slot.owes_leftover_mark) {
            let mark = Mark::Leftover { generation, from: self.config.id.clone() };
            out.push(Effect::SendMark { to: region.clone(), shard: shard.clone(), mark });
        }
    }

    /// Passes at most so many entries of the buffer to the home elsewhere.
    fn flush_remote(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, limit: usize, out: &mut Vec<Effect>) {
        let State::Remote { region, generation } = &slot.state else { return };
        let (region, generation) = (region.clone(), *generation);
        for _ in 0..limit {
            let Some(waiting) = slot.buffer.pop() else { break };
            self.empty(now, shard, waiting, out, |this, waiting, out| {
                this.forward(shard, &region, generation, waiting, out);
            });
        }
    }

    fn open_local(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let own = self.config.id.clone();
        slot.owes_leftover_mark = false;
        let Some(hosting) = slot.hosting_mut() else { return };
        let generation = hosting.generation;
        hosting.leftover_deadline = None;
        // The shard has messages from here on: leftovers that come now are too late, and it is not to be killed unserved.
        hosting.has_served = true;
        hosting.is_flushing = true;
        for _ in 0..self.flush_turn {
            let Some(waiting) = slot.buffer.pop_for(generation) else { break };
            self.empty(now, shard, waiting, out, |this, waiting, out| this.deliver(shard, slot, waiting, out));
        }
        if slot.buffer.has_more() {
            return Self::continue_later(shard, slot, out);
        }
        slot.buffer.end_flush();
        if let Some(hosting) = slot.hosting_mut() {
            hosting.is_flushing = false;
            // Senders push without asking from now on, so anything of this region that left earlier
            // must be taken for older than what they push.
            hosting.floors.insert(own, generation);
        }
        slot.asking.end();
        self.publish(shard, slot, Route::Local { generation }, out);
        self.ask_home(now, shard, slot);
    }

    /// Goes on with the flush when others have had their turn: many messages for one shard hold up no other.
    fn continue_later(shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut slot.is_turn_asked, true) {
            out.push(Effect::Continue { shard: shard.clone() });
        }
    }

    /// Takes one entry out of the buffer's count and passes it on, unless its asker waits no more.
    fn empty(
        &mut self,
        now: Instant,
        shard: &ShardId,
        waiting: Waiting,
        out: &mut Vec<Effect>,
        pass: impl FnOnce(&mut Self, Waiting, &mut Vec<Effect>),
    ) {
        if let Content::Message(message) = waiting.content {
            self.count_out(&waiting.content);
            if message.expires_at.is_some_and(|at| at <= now) {
                return self.drop_waiting(shard, &waiting, DeadLetterReason::Expired, out);
            }
        }
        pass(self, waiting, out);
    }

    /// Nodes were removed: their homes, marks, echoes and leftovers will not come.
    pub(super) fn on_nodes_gone(&mut self, now: Instant, gone: &BTreeSet<UniqueAddress>, out: &mut Vec<Effect>) {
        let mut regions = BTreeSet::new();
        let hold = now + self.config.settings.flush_timeout;
        for shard in self.shards_where(|_| true) {
            self.with_slot(&shard, |region, slot| {
                if let State::Remote { region: owner, .. } = &slot.state
                    && gone.contains(&owner.node)
                {
                    slot.hand_back = region.awaits_hand_back(&owner.node, hold);
                    regions.insert(owner.clone());
                    slot.state = State::NoRoute;
                    region.publish(&shard, slot, Route::Closed, out);
                }
                if slot.next.as_ref().is_some_and(|next| gone.contains(&next.region.node)) {
                    slot.next = None;
                }
                if let Some(path) = slot.old_path.take_if(|path| gone.contains(&path.region.node)) {
                    slot.hand_back = region.awaits_hand_back(&path.region.node, hold);
                }
                slot.marks.retain(|from, _| !gone.contains(&from.node));
                slot.leftover_marks.retain(|(_, from)| !gone.contains(&from.node));
                region.on_hosting_nodes_gone(now, &shard, slot, gone, out);
                region.ask_home(now, &shard, slot);
                region.try_open(now, &shard, slot, out);
            });
        }
        self.dead_ends.retain(|node| !gone.contains(node));
        out.extend(regions.into_iter().map(|region| Effect::Event(RegionEvent::ShardRegionDown { region })));
    }

    /// Whether, and until when, a new route waits for what the transport still holds for a removed node. What came
    /// back before the removal was all.
    fn awaits_hand_back(&self, node: &UniqueAddress, hold: Instant) -> Option<(UniqueAddress, Instant)> {
        (!self.dead_ends.contains(node)).then(|| (node.clone(), hold))
    }

    /// Leaves every route to a node to which the transport writes nothing any more.
    fn leave_dead_end(&mut self, now: Instant, node: &UniqueAddress, out: &mut Vec<Effect>) {
        if self.members.contains(node) {
            self.dead_ends.insert(node.clone());
        }
        let routed = |slot: &Slot| matches!(&slot.state, State::Remote { region, .. } if region.node == *node);
        let planned = |slot: &Slot| slot.next.as_ref().is_some_and(|next| next.region.node == *node);
        for shard in self.shards_where(|slot| routed(slot) || planned(slot)) {
            self.with_slot(&shard, |region, slot| {
                if routed(slot) {
                    slot.state = State::NoRoute;
                    region.publish(&shard, slot, Route::Closed, out);
                }
                slot.next.take_if(|next| next.region.node == *node);
                region.ask_home(now, &shard, slot);
            });
        }
    }

    /// The transport gives up frames for a node: they wait again, in front of later ones. A hand-back adds no hop,
    /// since no other region has seen the frame.
    pub(super) fn on_handed_back(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        frames: Vec<(ShardId, Stamp, MessageInfo)>,
        out: &mut Vec<Effect>,
    ) {
        self.leave_dead_end(now, node, out);
        for (shard, stamp, message) in frames {
            self.counters.submitted += 1;
            let has_left = stamp.hops > 0 || stamp.origin != self.config.id;
            // A frame that was a leftover stays one for the owner it was kept for, which is gone.
            let waiting = Waiting {
                content: Content::Message(message),
                origin: stamp.origin,
                // A message that never left takes the generation of the route that it leaves by.
                first: has_left.then_some(stamp.first),
                stamped: None,
                hops: stamp.hops,
                rank: Rank::Back,
                kept_at: None,
            };
            self.with_slot(&shard, |region, slot| {
                if matches!(region.state, RegionState::Stopped | RegionState::Stopping) {
                    return region.drop_waiting(&shard, &waiting, DeadLetterReason::RegionStopped, out);
                }
                if stamp.leftover {
                    return region.drop_waiting(&shard, &waiting, DeadLetterReason::HandOffStraggler, out);
                }
                region.route(now, &shard, slot, waiting, out);
            });
        }
        let held = |slot: &Slot| slot.hand_back.as_ref().is_some_and(|(held, _)| held == node);
        for shard in self.shards_where(held) {
            self.with_slot(&shard, |region, slot| {
                slot.hand_back = None;
                region.try_open(now, &shard, slot, out);
            });
        }
    }

    pub(super) fn on_suspect(&mut self, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.suspect, true) {
            return;
        }
        out.push(Effect::HoldShards);
        for shard in self.shards_where(|slot| slot.published != Route::Closed) {
            self.with_slot(&shard, |region, slot| region.publish(&shard, slot, Route::Closed, out));
        }
    }

    pub(super) fn on_trusted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.suspect, false) {
            return;
        }
        out.push(Effect::ReleaseShards);
        for shard in self.shards_where(|_| true) {
            self.with_slot(&shard, |region, slot| region.try_open(now, &shard, slot, out));
        }
    }
}
