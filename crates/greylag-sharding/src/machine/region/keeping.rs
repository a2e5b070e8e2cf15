//! Waiting messages: taking messages into a shard's buffer, and ending their wait without a delivery.
//!
//! Source: sharding §2.3 (`no_host_timeout`), §2.5.

use std::time::Instant;

use greylag_core::DeadLetterReason;

use super::Region;
use super::buffer::{Content, Rank, Waiting};
use super::place::Place;
use super::protocol::Effect;
use super::report::RegionEvent;
use crate::ids::ShardId;
use crate::settings::BufferOverflow;

impl Region {
    /// Keeps an entry until its shard has a route.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        let is_message = matches!(waiting.content, Content::Message(_));
        if is_message && !self.make_room(shard, place, &waiting, out) {
            return;
        }
        self.host_watch.kept(now, shard);
        let waiting = Waiting { kept_at: Some(now), ..waiting };
        self.message_counters.count_in(&waiting.content);
        place.buffer.insert(waiting);
        self.hasten_restart(now, place);
        self.ask_home(now, shard, place);
    }

    /// Whether one message more may wait. Marks, and messages that were accepted before, always may.
    fn make_room(&mut self, shard: &ShardId, place: &mut Place, waiting: &Waiting, out: &mut Vec<Effect>) -> bool {
        let size = waiting.content.size();
        if waiting.rank != Rank::Plain {
            return true;
        }
        let drops_old = self.config.settings.buffer_overflow == BufferOverflow::DropOld;
        while self.message_counters.is_full(size, &self.config.settings) {
            if self.message_counters.overflow() {
                let buffered = self.message_counters.counters.buffered;
                out.push(Effect::Event(RegionEvent::BufferFull { buffered }));
            }
            let Some(dropped) = drops_old.then(|| place.buffer.take_oldest_plain()).flatten() else {
                self.drop_waiting(shard, waiting, DeadLetterReason::BufferFull, out);
                return false;
            };
            self.message_counters.count_out(&dropped.content);
            self.drop_waiting(shard, &dropped, DeadLetterReason::BufferFull, out);
        }
        true
    }

    /// Ends the wait of an entry that is in no buffer any more: a message becomes a dead letter. A probe vanishes
    /// silently, since the region that sent the probe has a timeout.
    pub(super) fn drop_waiting(
        &mut self,
        shard: &ShardId,
        waiting: &Waiting,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        if let Content::Message(message) = waiting.content {
            self.message_counters.counters.dead_lettered += 1;
            out.push(Effect::DeadLetter { shard: shard.clone(), token: message.token, reason });
        }
    }

    /// Empties one shard's buffer into dead letters.
    pub(super) fn drop_buffer(
        &mut self,
        shard: &ShardId,
        place: &mut Place,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        for waiting in place.buffer.take() {
            self.message_counters.count_out(&waiting.content);
            self.drop_waiting(shard, &waiting, reason, out);
        }
        place.owes_leftover_mark = false;
    }

    /// Reports that no member hosts the type, and ends the messages that have waited for too long.
    pub(super) fn on_host_watch(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = self.host_watch.tick(now);
        if due.tell {
            out.push(Effect::Event(RegionEvent::NoHost { role: self.config.fingerprint.role.clone() }));
        }
        let Some(cutoff) = now.checked_sub(self.host_watch.timeout()) else { return };
        for shard in due.shards {
            self.with_place(&shard, |region, place| {
                for waiting in place.buffer.take_older(cutoff) {
                    region.message_counters.count_out(&waiting.content);
                    region.drop_waiting(&shard, &waiting, DeadLetterReason::NoHost, out);
                }
                if let Some(since) = place.buffer.oldest() {
                    region.host_watch.waits_on(now, &shard, since);
                }
            });
        }
    }
}
