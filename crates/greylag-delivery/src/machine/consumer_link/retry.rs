//! The messages that a consumer repeats while its producer is silent.
//!
//! Every message of a link may be lost, so every state in which the consumer waits has something to
//! repeat: a registration, a gap, a confirmation, a grant. The interval grows, and every frame of the
//! current producer resets it, so a busy link never ticks.
//!
//! Source: delivery C11.

use std::time::Instant;

use super::{ConsumerLink, Effect, Life};
use crate::dedupe::Watermarks;
use crate::message::{Content, Upstream};

impl<P: Content> ConsumerLink<P> {
    pub(super) fn on_tick(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        self.redeliver_due(now, watermarks, out);
        if self.life == Life::Stopped {
            return;
        }
        self.report_overdue(now, out);
        if self.answers.is_ack_due(now) {
            self.send_ack(out);
        }
        if self.answers.is_retry_due(now) {
            self.retry(now, out);
        }
    }

    fn retry(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        let idle = self.outstanding.is_empty();
        let quiet = !self.settings.keeps_asking && !self.settings.only_flow_control && self.registering.is_none();
        if let Some(controller) = &self.registering {
            let message = Upstream::RegisterConsumer;
            out.push(Effect::Reply { to: controller.clone(), epoch: None, message });
        } else if let Some((from, to)) = self.lowest_gap() {
            self.reply(Upstream::Resend { from, to }, out);
        } else if !idle {
            // An ack that was lost would block its asker for as long as the next message takes.
            self.send_ack(out);
        } else {
            if self.settings.only_flow_control {
                self.requested = self.requested.max(self.received + (self.window.size() / 2).max(1));
            }
            self.reply(self.request(true), out);
            self.answers.told();
        }
        self.answers.repeated(now, quiet && idle, &self.settings);
    }

    /// Whether frames are missing that were asked for.
    pub(super) fn misses_frames(&self) -> bool {
        let has_gap = self.highest_seen - self.received > self.buffer.len() as u64;
        !self.settings.only_flow_control && (has_gap || self.lost_asked && self.lost_from.is_some())
    }

    /// The first missing range below something that arrived; an end of 0 means from there on.
    fn lowest_gap(&self) -> Option<(u64, u64)> {
        if self.settings.only_flow_control {
            return None;
        }
        let mut expected = self.received + 1;
        for message in &self.buffer {
            let seq_nr = message.frame.seq_nr;
            if seq_nr > expected {
                return Some((expected, seq_nr - 1));
            }
            expected = seq_nr + 1;
        }
        self.lost_from.filter(|lost| expected <= *lost).map(|_| (expected, 0))
    }

    /// C6: frames were dropped because the window was full, and the window has come to them.
    pub(super) fn ask_for_lost(&mut self, out: &mut Vec<Effect<P>>) {
        let Some(lost) = self.lost_from else { return };
        if self.received >= lost {
            self.lost_from = None;
        } else if self.received + 1 == lost && !self.is_next_buffered() && !self.lost_asked {
            self.lost_asked = true;
            self.reply(Upstream::Resend { from: lost, to: 0 }, out);
        }
    }
}
