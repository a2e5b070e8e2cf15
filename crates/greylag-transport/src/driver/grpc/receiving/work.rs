//! The work of the workers: each hands the messages of its inbox to their receivers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Uid, UniqueAddress};

use super::workers::{Delivery, Local, WorkerReceiver, WorkerReceivers};
use crate::association::Input;
use crate::driver::grpc::sending::SharedPort;
use crate::driver::grpc::shared::TransportInner;
use crate::endpoints::endpoint::{LastReceiver, Reply};
use crate::lanes::lane::Lane;
use crate::messages::envelope::Inbound;
use crate::wire::{Arrived, ArrivedContent};

/// Starts the workers: the one of control messages on the control runtime, the others on the data runtime.
pub(crate) fn start_workers(receivers: WorkerReceivers, shared: &Arc<TransportInner>) {
    let runtimes = &shared.node.runtimes;
    runtimes.control().spawn(work(shared.clone(), receivers.control));
    for receiver in receivers.data {
        runtimes.data().spawn(work(shared.clone(), receiver));
    }
}

async fn work(shared: Arc<TransportInner>, mut receiver: WorkerReceiver) {
    const LOCAL_AT_ONCE: usize = 256;
    let mut last = LastReceiver::default();
    let mut locals = Vec::with_capacity(LOCAL_AT_ONCE);
    loop {
        tokio::select! {
            delivery = receiver.remote.recv() => match delivery {
                Some(delivery) => take(&shared, delivery, &mut last),
                None => return,
            },
            count = receiver.local.recv_many(&mut locals, LOCAL_AT_ONCE) => {
                receiver.taken_out(count);
                let mut locals = locals.drain(..);
                last.isolated(|last| locals.by_ref().for_each(|local| match local {
                    Local::Message { lane, message, _share } => {
                        let (now, none) = (Instant::now(), std::iter::empty());
                        shared.refuse(shared.node.endpoint.deliver(now, lane, None, message, none, last));
                    }
                    Local::Mark(mark) => mark.pass(),
                }));
                receiver.wake_waiting();
            }
        }
    }
}

fn take(shared: &Arc<TransportInner>, delivery: Delivery, last: &mut LastReceiver) {
    let Delivery { from, lane, arrived, read_at, mark } = delivery;
    if let Some(mark) = mark {
        mark.pass();
    }
    if arrived.is_empty() {
        return;
    }
    let now = Instant::now();
    let waited = now.saturating_duration_since(read_at);
    if shared.node.is_blocked(&from) {
        // Report messages of a blocked process by their kind: its heartbeats, which may go on for as long as it runs,
        // are neither published nor logged.
        for arrived in arrived {
            drop_arrived(shared, now, (&from, lane), arrived.content, DeadLetterReason::Quarantined);
        }
        shared.input(&shared.peer(from.address()), Input::Intruded { uid: from.uid() });
        return;
    }
    let is_stranger = shared.node.is_stranger(&from);
    let mut arrived = arrived.into_iter();
    last.isolated(|last| {
        while let Some(Arrived { target_uid, content }) = arrived.next() {
            match content {
                // Drop the question: its asker has given up by now (cluster T38).
                ArrivedContent::Message(message) if has_expired(&message, waited) => {
                    shared.node.endpoint.refuse(now, Some(lane), &message, DeadLetterReason::Expired);
                }
                ArrivedContent::Message(message) => {
                    if is_stranger && let Some(reason) = shared.node.closed_to_strangers(&message.recipient) {
                        let refusal = shared.node.endpoint.refuse(now, Some(lane), &message, reason);
                        // Refuse only to processes that were reached: an answer would dial the address that the
                        // stranger named (cluster T21).
                        shared.refuse(refusal.filter(|refusal| shared.node.has_reached(&refusal.to)));
                        continue;
                    }
                    // Hand over the messages that follow to the same receiver too: the checks above hold for them as
                    // well.
                    let next = Following::new(&mut arrived, &message, target_uid, waited);
                    shared.refuse(shared.node.endpoint.deliver(now, lane, target_uid, message, next, last));
                }
                ArrivedContent::Reply { ask_id, reply } => {
                    take_reply(shared, now, (&from, lane), (target_uid, is_stranger), ask_id, reply);
                }
            }
        }
    });
}

/// The messages of a delivery that follow one message to the same receiver of the same process, up to the first that
/// does not.
struct Following<'a> {
    arrived: &'a mut std::vec::IntoIter<Arrived>,
    path: Arc<str>,
    instance: u64,
    target_uid: Option<Uid>,
    waited: Duration,
}

impl<'a> Following<'a> {
    fn new(
        arrived: &'a mut std::vec::IntoIter<Arrived>,
        message: &Inbound,
        target_uid: Option<Uid>,
        waited: Duration,
    ) -> Self {
        let (path, instance) = (message.recipient.path.clone(), message.recipient.instance);
        Self { arrived, path, instance, target_uid, waited }
    }

    fn follows(&self, Arrived { target_uid, content }: &Arrived) -> bool {
        let ArrivedContent::Message(message) = content else { return false };
        // Compare pointers: equal names of one frame share one text.
        Arc::ptr_eq(&message.recipient.path, &self.path)
            && (message.recipient.instance, *target_uid) == (self.instance, self.target_uid)
            && !has_expired(message, self.waited)
    }
}

impl Iterator for Following<'_> {
    type Item = Inbound;

    fn next(&mut self) -> Option<Inbound> {
        if !self.follows(self.arrived.as_slice().first()?) {
            return None;
        }
        match self.arrived.next()?.content {
            ArrivedContent::Message(message) => Some(message),
            ArrivedContent::Reply { .. } => None,
        }
    }
}

/// Whether an asker has given up by now: its question has waited here for all the time that was left.
fn has_expired(message: &Inbound, waited: Duration) -> bool {
    message.ask.is_some_and(|ask| ask.budget <= waited)
}

fn take_reply(
    shared: &Arc<TransportInner>,
    now: Instant,
    (from, lane): (&UniqueAddress, Lane),
    (target_uid, is_stranger): (Option<Uid>, bool),
    ask_id: u64,
    reply: Reply,
) {
    let endpoint = &shared.node.endpoint;
    let reason = if target_uid != Some(endpoint.self_address.uid()) {
        // An answer to the process that ran here before, whose numbers are not ours.
        DeadLetterReason::StaleIncarnation
    } else if is_stranger && !endpoint.asks.was_sent_to(ask_id, from) {
        shared.node.stranger_reason()
    } else {
        endpoint.accept_reply(now, from, ask_id, reply, || Arc::new(SharedPort(shared.clone())));
        return;
    };
    let what = || format!("the answer of {from} to question {ask_id}");
    endpoint.count_dead_letter(now, reason, Some(lane), Some(from.address()), 1, what);
}

/// Counts a message that arrived and is not delivered, under its path and manifest, so that a message that its protocol
/// repeats causes no warning (cluster T41). An ask is not answered: its asker is quarantined (cluster T18), has a newer
/// stream, or learns by its link that this node ends.
pub(crate) fn drop_arrived(
    shared: &TransportInner,
    now: Instant,
    (from, lane): (&UniqueAddress, Lane),
    content: ArrivedContent,
    reason: DeadLetterReason,
) {
    match content {
        ArrivedContent::Message(message) => {
            let _unanswered = shared.node.endpoint.refuse(now, Some(lane), &message, reason);
        }
        ArrivedContent::Reply { ask_id, .. } => {
            let what = || format!("the answer of {from} to question {ask_id}");
            shared.node.endpoint.count_dead_letter(now, reason, Some(lane), Some(from.address()), 1, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::envelope::Recipient;

    /// Cluster T38, T39: the messages that follow to the same receiver are handed over with the first, in order, and
    /// nothing else: no answer, no question whose asker has given up, no message for another receiver, instance or
    /// process.
    #[test]
    fn later_messages_to_the_same_receiver_are_handed_over_with_the_first() {
        let from: UniqueAddress = "a:1#1".parse().unwrap();
        let (inbox, other): (Arc<str>, Arc<str>) = ("inbox".into(), "other".into());
        let message = |path: &Arc<str>, number: u8| Inbound {
            from: from.clone(),
            recipient: Recipient { path: path.clone(), sub_path: None, instance: 0 },
            codec: greylag_core::CodecId::JSON,
            manifest: "m".into(),
            payload: vec![number].into(),
            ask: None,
        };
        let arrived = |message| Arrived { target_uid: Uid::new(7), content: ArrivedContent::Message(message) };
        let waited = Duration::from_secs(1);
        let ask = |seconds| Some(crate::messages::envelope::AskHeader { id: 1, budget: Duration::from_secs(seconds) });
        let late = Inbound { ask: ask(1), ..message(&inbox, 9) };
        let in_time = Inbound { ask: ask(2), ..message(&inbox, 4) };
        let mut of_an_instance = message(&inbox, 9);
        of_an_instance.recipient.instance = 3;
        let reply = Reply::Dropped(DeadLetterReason::Expired);
        for stranger in [
            arrived(message(&other, 9)),
            arrived(late),
            arrived(of_an_instance),
            Arrived { target_uid: Uid::new(8), ..arrived(message(&inbox, 9)) },
            Arrived { target_uid: Uid::new(7), content: ArrivedContent::Reply { ask_id: 1, reply } },
        ] {
            let alike = [message(&inbox, 2), message(&inbox, 3), in_time.clone()].map(arrived);
            let all = alike.into_iter().chain([stranger, arrived(message(&inbox, 5))]);
            let mut rest = all.collect::<Vec<_>>().into_iter();
            let following = Following::new(&mut rest, &message(&inbox, 1), Uid::new(7), waited);
            assert_eq!(following.map(|message| message.payload[0]).collect::<Vec<_>>(), [2, 3, 4]);
            assert_eq!(rest.len(), 2, "the others wait for their turn");
        }
    }
}
