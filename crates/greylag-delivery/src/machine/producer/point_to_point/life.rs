//! Start of the controller, start-over after its queue was loaded again, and end.
//!
//! Source: delivery P1, P14, P15, D7, D8.

use std::time::Instant;

use super::{Life, PointToPoint, Sent, new_link, to_recover};
use crate::machine::controller::{Controller, Effect, Failure, Refusal};
use crate::machine::producer_link::{self, Frames};
use crate::machine::storing;
use crate::message::{ProducerStopped, Upstream};
use crate::queue::QueueState;

impl<P: Clone> PointToPoint<P> {
    /// Handles a loaded queue, the first time or again. The load has raised the epoch, so frame numbers start over.
    pub(super) fn on_opened(&mut self, now: Instant, state: QueueState<Frames<P>>, out: &mut Vec<Effect<P>>) {
        self.stream = Some((state.stream_id, state.epoch));
        self.confirmed = self.confirmed.max(state.highest_confirmed_seq_nr);
        // Keep the consumer, whether registered at the link or before there was one.
        self.consumer = self.link.take().and_then(|link| link.consumer().cloned()).or(self.consumer.take());
        self.recovered = to_recover(state);
        self.open_link(now, out);
    }

    /// Opens the link once there are a producer and a stream (P1), with every recovered message.
    pub(super) fn open_link(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        let (true, None, Some(stream)) = (self.admission.is_started(), &self.link, self.stream) else { return };
        self.link = Some(new_link(&self.settings, stream, now));
        let tickets = self.unconfirmed.start_again(self.recovered.first().map(|(total, ..)| *total));
        if let Some(from) = self.consumer.clone() {
            let message = Upstream::RegisterConsumer;
            self.handle_input(now, producer_link::Input::Received { from, epoch: None, message }, out);
        }
        for (total, frames, ack) in std::mem::take(&mut self.recovered) {
            self.unconfirmed.add(now, Sent { total, ticket: tickets.get(&total).copied() });
            self.handle_input(now, producer_link::Input::Accept { total, frames, ack }, out);
        }
    }

    /// P15: ends the link; nothing more is sent.
    pub(super) fn close(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.end_link(out);
        self.life = Life::Closing;
        self.store(now, storing::Input::Close, out);
    }

    pub(super) fn fail(&mut self, now: Instant, failure: Failure, out: &mut Vec<Effect<P>>) {
        let is_fenced = matches!(failure, Failure::Fenced { .. });
        out.push(Effect::Failed(failure));
        if is_fenced {
            self.end_link(out);
            self.store(now, storing::Input::Fence, out);
            self.finish(out);
        } else {
            self.close(now, out);
        }
    }

    pub(super) fn on_storing_ended(&mut self, end: storing::End, out: &mut Vec<Effect<P>>) {
        out.push(Effect::Failed(Failure::from(end)));
        self.end_link(out);
        self.finish(out);
    }

    pub(super) fn on_storing_closed(&mut self, out: &mut Vec<Effect<P>>) {
        if self.life == Life::Closing {
            self.finish(out);
        }
    }

    fn finish(&mut self, out: &mut Vec<Effect<P>>) {
        if self.life != Life::Closed {
            self.life = Life::Closed;
            out.push(Effect::Closed);
        }
    }

    fn end_link(&mut self, out: &mut Vec<Effect<P>>) {
        self.admission.refuse_all(Refusal::Closed, out);
        let consumer = self.consumer().cloned();
        if let (Some(_), Some(to), Some((_, epoch))) = (&self.link, consumer, self.stream) {
            let message = ProducerStopped { controller: self.settings.controller.clone(), epoch };
            out.push(Effect::Stop { to, message });
        }
        self.link = None;
        self.recovered.clear();
        let unconfirmed = self.unconfirmed.drain();
        if self.storing.is_durable() {
            return;
        }
        out.extend(unconfirmed.map(|sent| Effect::Undelivered { ticket: sent.ticket, total: sent.total }));
    }
}
