//! Sends and takes numbered messages between the nodes of a process, over links that a cut may swallow.

use super::*;
use crate::messages::envelope::EncodedMessage;
use crate::reliable::{ReceiverEffect, SenderEffect, SenderInput};
use crate::settings::OnReliableGiveUp;

impl MemoryNode {
    pub(super) fn send_numbered(&self, to: &UniqueAddress, envelope: Envelope) -> Result<(), SendRejected> {
        let envelope = envelope.to_uid(to.uid());
        let reject = |error, envelope| Err(SendRejected { error, envelope: Box::new(envelope) });
        if self.closed.load(Ordering::Acquire) {
            return reject(SendError::ShuttingDown, envelope);
        }
        if self.is_quarantined(to) {
            return reject(SendError::Quarantined, envelope);
        }
        if to.address() == self.endpoint.self_address.address() {
            return self.send_checked(Instant::now(), &Destination::from(to.clone()), envelope);
        }
        let Ok(encoded) = EncodedMessage::new(&envelope) else {
            let reason = DeadLetterReason::SerializeFailed;
            self.endpoint.drop_unsent(Instant::now(), Lane::CONTROL, to.address(), &envelope, reason);
            return Ok(());
        };
        let input = SenderInput::Send { target: to.uid(), message: Arc::new(encoded) };
        self.sender_input(Instant::now(), to.address(), input);
        // Wake the thread that repeats the message: its deadlines changed.
        self.inbox.send(NodeInput::Wake).ok();
        Ok(())
    }

    pub(super) fn resend_deadline(&self) -> Option<Instant> {
        self.numbered.lock().expect(NO_PANIC).values().filter_map(Numbered::next_deadline).min()
    }

    pub(super) fn resend(&self, now: Instant) {
        let is_due = |(peer, numbered): (&NodeAddress, &Numbered)| {
            numbered.next_deadline().is_some_and(|at| at <= now).then(|| peer.clone())
        };
        let due: Vec<_> = self.numbered.lock().expect(NO_PANIC).iter().filter_map(is_due).collect();
        for peer in due {
            self.sender_input(now, &peer, SenderInput::Tick);
        }
    }

    pub(super) fn forget_numbered(&self, peer: &UniqueAddress) {
        self.sender_input(Instant::now(), peer.address(), SenderInput::Quarantined { uid: peer.uid() });
    }

    pub(super) fn take_acknowledged(&self, now: Instant, from: &UniqueAddress, seq: u64, is_gap: bool) {
        let uid = from.uid();
        let input = if is_gap { SenderInput::Nack { from: uid, seq } } else { SenderInput::Ack { from: uid, seq } };
        self.sender_input(now, from.address(), input);
    }

    pub(super) fn take_numbered(&self, now: Instant, from: &UniqueAddress, seq: u64, message: Option<Inbound>) {
        if self.is_quarantined(from) {
            return;
        }
        if let Some(message) = &message
            && self.is_stranger(from)
            && !self.endpoint.membership.is_open(&message.recipient.path)
        {
            // Refuse, without an acknowledgement: the sender repeats the message, and it is taken once the sender is a
            // member.
            self.endpoint.refuse(now, Some(Lane::CONTROL), message, DeadLetterReason::NotAMember);
            return;
        }
        let effects = {
            let mut all = self.numbered.lock().expect(NO_PANIC);
            self.entry(&mut all, from.address()).arrived(from.uid(), seq, message)
        };
        for effect in effects {
            let own = self.endpoint.self_address.clone();
            match effect {
                ReceiverEffect::Deliver(message) => {
                    let target = Some(own.uid());
                    self.take(now, NodeInput::Message { lane: Lane::CONTROL, target, message });
                }
                ReceiverEffect::Ack { seq } => self.acknowledge(from, own, seq, false),
                ReceiverEffect::Nack { seq } => self.acknowledge(from, own, seq, true),
            }
        }
    }

    fn acknowledge(&self, to: &UniqueAddress, from: UniqueAddress, seq: u64, is_gap: bool) {
        self.carry(to.address(), |runs| (runs == to).then_some(NodeInput::Acknowledged { from, seq, is_gap })).ok();
    }

    fn entry<'a>(&self, all: &'a mut BTreeMap<NodeAddress, Numbered>, peer: &NodeAddress) -> &'a mut Numbered {
        all.entry(peer.clone()).or_insert_with(|| Numbered::new(&self.settings))
    }

    fn sender_input(&self, now: Instant, peer: &NodeAddress, input: SenderInput<Arc<EncodedMessage>>) {
        let effects = {
            let mut all = self.numbered.lock().expect(NO_PANIC);
            let is_cut = self.net.is_cut(self.endpoint.self_address.address(), peer);
            let reached = if is_cut { None } else { self.net.port(peer).map(|port| port.address.uid()) };
            let mut effects = self.entry(&mut all, peer).feed(now, reached, input);
            // Written under the lock, so that the effects of two inputs cannot cross.
            effects.retain(|effect| !self.write_numbered(peer, effect));
            effects
        };
        for effect in effects {
            self.finish_numbered(now, peer, effect);
        }
    }

    /// Writes an effect for the wire; false if the effect is another one.
    fn write_numbered(&self, peer: &NodeAddress, effect: &SenderEffect<Arc<EncodedMessage>>) -> bool {
        let (seq, encoded) = match effect {
            SenderEffect::Write { seq, message } => (*seq, Some(message)),
            SenderEffect::WriteSkip { seq } => (*seq, None),
            _ => return false,
        };
        let from = self.endpoint.self_address.clone();
        let message = encoded.map(|encoded| Inbound {
            from: from.clone(),
            recipient: encoded.recipient.clone(),
            codec: encoded.codec,
            manifest: encoded.manifest.clone(),
            payload: encoded.payload.clone(),
            ask: encoded.ask,
        });
        let target = encoded.and_then(|encoded| encoded.target_uid);
        let is_meant = |runs: &UniqueAddress| target.is_none_or(|uid| uid == runs.uid());
        self.carry(peer, |runs| is_meant(runs).then_some(NodeInput::Numbered { from, seq, message })).ok();
        true
    }

    fn finish_numbered(&self, now: Instant, peer: &NodeAddress, effect: SenderEffect<Arc<EncodedMessage>>) {
        match effect {
            SenderEffect::Drop { message, reason } => {
                self.endpoint.drop_unsent(now, Lane::CONTROL, peer, &message.to_envelope(), reason);
            }
            SenderEffect::GaveUp { uid, dropped } => {
                let peer = UniqueAddress::new(peer.clone(), uid);
                let event = TransportEvent::ReliableGaveUp { peer: peer.clone(), dropped };
                self.inbox.send(NodeInput::Event(event)).ok();
                if self.settings.on_reliable_give_up == OnReliableGiveUp::Quarantine {
                    self.quarantine(&peer, QuarantineReason::DeliveryGaveUp, false);
                }
            }
            _ => {}
        }
    }
}
