//! Judges a frame by its sender: it is taken, parked, answered, or dropped.
//!
//! The order of the questions in [`ConsumerLink::on_frame`] is the protocol. A frame that is refused
//! never changes state beyond the list of replaced producers, so a late frame of a dead producer
//! cannot keep a link for itself.
//!
//! Source: delivery C2 to C6, §1.4.

use std::time::Instant;

use super::{ConsumerLink, Effect, Life, Producer, Replaced, Sender};
use crate::dedupe::Watermarks;
use crate::ids::{ControllerRef, Epoch, NUMBER_LIMIT};
use crate::message::{BatchHeader, Content, SequencedMessage, Upstream};

/// How many displaced producers are remembered. Source: delivery §1.3.
const MAX_REPLACED: usize = 8;

impl<P: Content> ConsumerLink<P> {
    /// C2.
    pub(super) fn on_frame(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        // An epoch beyond all others would shut out every producer of its stream, a total beyond all others every message.
        let numbers = [message.frame.seq_nr, message.frame.total.get(), header.epoch.0];
        if numbers.iter().any(|number| !(1..NUMBER_LIMIT).contains(number)) || header.lowest >= NUMBER_LIMIT {
            self.counters.unexpected += 1;
            return;
        }
        let registering_here = self.registering.as_ref() == Some(&header.controller);
        let registering_elsewhere = self.registering.is_some() && !registering_here;
        if self.producer.as_ref().is_some_and(|producer| producer.sender.sent(header)) {
            // C2c.
            if !registering_elsewhere {
                self.receive(now, header, message, watermarks, out);
            }
            return;
        }
        let newest = watermarks.epoch(header.stream_id);
        if header.epoch < newest {
            // C2a.
            answer(header, Upstream::Fenced { stream_id: header.stream_id, newer: newest }, out);
            return;
        }
        if !registering_here && self.is_replaced(header) {
            self.on_replaced(header, out);
            return;
        }
        if message.first || self.settings.only_flow_control {
            // C2d. A stop gives way to a living producer.
            if !registering_elsewhere {
                if self.life == Life::Draining {
                    self.life = Life::Running;
                }
                self.switch_or_park(now, header, message, watermarks, out);
            }
        } else if registering_here || !self.is_replaced(header) {
            // C2e.
            answer(header, Upstream::Resend { from: 0, to: 0 }, out);
        } else {
            self.counters.unexpected += 1;
        }
    }

    fn is_replaced(&self, header: &BatchHeader) -> bool {
        self.replaced.iter().any(|replaced| match replaced {
            Replaced::ByFirst(sender) => sender.sent(header),
            Replaced::ByRegistration(controller) => *controller == header.controller,
        })
    }

    /// C2b: a producer that a `first` displaced may be the living one, and the `first` a dead one's.
    /// Asked to start over, a dead one does not answer.
    fn on_replaced(&mut self, header: &BatchHeader, out: &mut Vec<Effect<P>>) {
        let for_good = self.replaced.iter().any(
            |replaced| matches!(replaced, Replaced::ByRegistration(controller) if *controller == header.controller),
        );
        if for_good || self.is_busy() {
            self.counters.unexpected += 1;
            return;
        }
        self.replaced.retain(|replaced| !matches!(replaced, Replaced::ByFirst(sender) if sender.sent(header)));
        answer(header, Upstream::Resend { from: 0, to: 0 }, out);
    }

    fn switch_or_park(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        if self.producer.is_some() && self.is_busy() {
            self.park(header, message, out);
        } else {
            self.switch(now, header, message, watermarks, out);
        }
    }

    /// C4: messages that a producer managed to hand over are delivered before its successor's.
    fn park(&mut self, header: &BatchHeader, message: SequencedMessage<P>, out: &mut Vec<Effect<P>>) {
        let confirmed_none = Upstream::Request {
            confirmed: 0,
            up_to: message.frame.seq_nr,
            support_resend: !self.settings.only_flow_control,
            via_timeout: false,
        };
        answer(header, confirmed_none, out);
        let outranked = (self.parked.as_ref())
            .is_some_and(|(parked, _)| parked.stream_id == header.stream_id && parked.epoch > header.epoch);
        if !outranked {
            self.parked = Some((header.clone(), message));
        }
    }

    pub(super) fn unpark(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        if !self.is_busy()
            && let Some((header, message)) = self.parked.take()
        {
            self.switch(now, &header, message, watermarks, out);
            self.deliver(now, watermarks, out);
        }
    }

    /// C3.
    fn switch(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let by_registration = self.registering.as_ref() == Some(&header.controller);
        if by_registration {
            self.registering = None;
        }
        if let Some(old) = self.producer.take() {
            if old.sender.controller != header.controller {
                let (former, by) = (old.sender.controller.clone(), header.controller.clone());
                out.push(Effect::Replaced { former, by });
            }
            self.displace(if by_registration && old.sender.controller != header.controller {
                Replaced::ByRegistration(old.sender.controller)
            } else {
                Replaced::ByFirst(old.sender)
            });
        }
        let sender = Sender::of(header);
        self.replaced.retain(|replaced| match replaced {
            Replaced::ByFirst(displaced) => *displaced != sender,
            Replaced::ByRegistration(controller) => *controller != sender.controller,
        });
        self.producer = Some(Producer {
            sender,
            producer_id: header.producer_id.clone(),
            stream: header.stream_id,
            ordered: header.ordered,
        });
        watermarks.switch(now, &header.producer_id, header.stream_id, header.epoch);
        let before = message.frame.seq_nr - 1;
        self.clear_buffer(before);
        self.confirmed = 0;
        self.window.start_over();
        self.requested = before + self.window.size();
        self.answers.start_over(now, &self.settings);
        self.send_request(now, out);
        self.receive(now, header, message, watermarks, out);
    }

    fn displace(&mut self, replaced: Replaced) {
        self.replaced.retain(|known| *known != replaced);
        self.replaced.push_back(replaced);
        if self.replaced.len() > MAX_REPLACED {
            self.replaced.pop_front();
        }
    }

    fn clear_buffer(&mut self, received: u64) {
        self.buffer.clear();
        self.assembly = None;
        self.received = received;
        self.highest_seen = received;
        self.delivered = received;
        self.lost_from = None;
    }

    /// C5.
    fn receive(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let missed_frames = self.misses_frames();
        self.answers.heard(now, missed_frames, &self.settings);
        self.window.heard(now);
        if header.lowest > self.received + 1 {
            self.skip_to(now, header.lowest, out);
        }
        let seq_nr = message.frame.seq_nr;
        let position = self.buffer.partition_point(|other| other.frame.seq_nr < seq_nr);
        let is_buffered = self.buffer.get(position).is_some_and(|other| other.frame.seq_nr == seq_nr);
        if seq_nr <= self.received || is_buffered {
            self.on_duplicate(now, message.first, out);
            return;
        }
        let in_reach = if self.settings.only_flow_control {
            (self.buffer.len() as u64) < self.window.size()
        } else {
            // A window that became smaller does not take back what was granted before.
            seq_nr <= self.requested.max(self.received + self.window.size())
        };
        if in_reach {
            self.buffer.insert(position, message);
            if seq_nr > self.highest_seen + 1 && !self.settings.only_flow_control {
                // C6: out-of-order frames are kept, only the missing ones are asked for.
                self.counters.gaps += 1;
                self.reply(Upstream::Resend { from: self.highest_seen + 1, to: seq_nr - 1 }, out);
            }
            self.highest_seen = self.highest_seen.max(seq_nr);
        } else {
            self.counters.beyond_window += 1;
            if !self.settings.only_flow_control && self.lost_from.is_none_or(|lost| seq_nr < lost) {
                self.lost_from = Some(seq_nr);
                self.lost_asked = false;
            }
        }
        self.deliver(now, watermarks, out);
        if missed_frames {
            self.answers.put_off(now, self.misses_frames());
        }
    }

    /// Skips numbers that an earlier consumer confirmed: no producer holds these messages any more.
    fn skip_to(&mut self, now: Instant, lowest: u64, out: &mut Vec<Effect<P>>) {
        while self.buffer.pop_front_if(|message| message.frame.seq_nr < lowest).is_some() {}
        self.assembly = None;
        self.received = lowest - 1;
        self.delivered = self.received;
        self.confirmed = self.received;
        self.highest_seen = self.highest_seen.max(self.received);
        self.requested = self.requested.max(self.received + self.window.size());
        self.send_request(now, out);
        self.ask_for_lost(out);
    }

    /// C10.
    fn on_duplicate(&mut self, now: Instant, first: bool, out: &mut Vec<Effect<P>>) {
        self.counters.duplicates += 1;
        if self.answers.duplicate(now, first) {
            self.send_ack(out);
        }
    }

    /// §1.4.
    pub(super) fn on_register_to(&mut self, now: Instant, controller: ControllerRef, out: &mut Vec<Effect<P>>) {
        self.replaced.retain(|replaced| match replaced {
            Replaced::ByFirst(sender) => sender.controller != controller,
            Replaced::ByRegistration(displaced) => *displaced != controller,
        });
        if let Some(superseded) = self.registering.take_if(|registering| *registering != controller) {
            self.displace(Replaced::ByRegistration(superseded));
        }
        self.parked.take_if(|(header, _)| header.controller != controller);
        if self.producer.as_ref().is_some_and(|producer| producer.sender.controller == controller) {
            return;
        }
        self.clear_buffer(self.delivered);
        self.answers.heard(now, false, &self.settings);
        out.push(Effect::Reply { to: controller.clone(), epoch: None, message: Upstream::RegisterConsumer });
        self.registering = Some(controller);
    }
}

/// Answers the controller that sent the frame, which need not be the producer listened to.
fn answer<P>(header: &BatchHeader, message: Upstream, out: &mut Vec<Effect<P>>) {
    let epoch: Option<Epoch> = Some(header.epoch);
    out.push(Effect::Reply { to: header.controller.clone(), epoch, message });
}
