//! Answers (confirmations, demand, resend requests) from the entities of one type to producers on other nodes.
//!
//! The first answer is sent at once. Answers that arise while the runtime then works off its ready tasks are batched
//! into one message per node and recipient path. No timer delays a batch.
//!
//! Source: delivery §12.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_core::UniqueAddress;
use greylag_transport::Remoting;

use crate::driver::sending::{send_upstream_local, send_upstream_remote};
use crate::message::UpstreamMessage;

/// Limit of waiting answers; an answer beyond the limit is dropped, and its entity repeats it.
const MAX_WAITING: usize = 16 * 1024;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: BTreeMap<BatchKey, Group>,
    count: usize,
    /// An answer was sent, and a spawned task will send the answers that arise before that task runs.
    is_leaving: bool,
}

/// Key of a batch: sending node, receiving node, recipient path there.
type BatchKey = (UniqueAddress, UniqueAddress, Arc<str>);

struct Group {
    remoting: Arc<dyn Remoting>,
    messages: Vec<UpstreamMessage>,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an answer to a producer: at once if the producer is on this node, otherwise possibly batched with other
    /// answers.
    pub(super) fn enqueue(self: &Arc<Self>, remoting: &Arc<dyn Remoting>, message: UpstreamMessage) {
        let Some(message) = send_upstream_local(&**remoting, message) else { return };
        let Some(first) = self.hold(remoting, message) else { return };
        send_upstream_remote(&**remoting, &[first]);
        let answers = self.clone();
        tokio::spawn(async move {
            loop {
                // Let the other ready tasks run first; they may add answers to the batch.
                tokio::task::yield_now().await;
                if !answers.send() {
                    return;
                }
            }
        });
    }

    /// Queues a message for the sending task. If no such task runs, returns the message, and the caller must spawn the
    /// task.
    fn hold(&self, remoting: &Arc<dyn Remoting>, message: UpstreamMessage) -> Option<UpstreamMessage> {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_leaving, true) {
            return Some(message);
        }
        if state.count < MAX_WAITING {
            state.count += 1;
            let key = (message.from.node.clone(), message.to.node.clone(), message.to.path.clone());
            let new = || Group { remoting: remoting.clone(), messages: Vec::new() };
            state.waiting.entry(key).or_insert_with(new).messages.push(message);
        }
        None
    }

    /// Sends the waiting answers; `false` if there were none, so that the next answer is sent at once.
    fn send(&self) -> bool {
        let waiting = {
            let mut state = self.lock();
            state.count = 0;
            let waiting = std::mem::take(&mut state.waiting);
            state.is_leaving = !waiting.is_empty();
            waiting
        };
        let has_sent = !waiting.is_empty();
        waiting.into_values().for_each(|group| send_upstream_remote(&*group.remoting, &group.messages));
        has_sent
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("waiting", &self.lock().count).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;
    use greylag_transport::{Inbound, Receiver};
    use tokio::sync::mpsc;

    use super::*;
    use crate::driver::sending::register;
    use crate::ids::{ControllerRef, Epoch};
    use crate::message::Upstream;
    use crate::settings::LANE_MARGIN;
    use crate::wire;

    /// Forwards the answers of each transport message as one item.
    struct Listener(mpsc::UnboundedSender<Vec<UpstreamMessage>>);

    impl Receiver for Listener {
        fn receive(&self, message: Inbound) {
            self.0.send(wire::read_upstream(message.payload).unwrap()).ok();
        }
    }

    struct World {
        here: Arc<dyn Remoting>,
        /// Keeps the other node alive; the node ends with its last reference.
        _there: Arc<dyn Remoting>,
        /// Two producers on the other node.
        producers: [ControllerRef; 2],
        received: mpsc::UnboundedReceiver<Vec<UpstreamMessage>>,
        answers: Arc<Answers>,
    }

    impl World {
        fn new(network: &MemoryNetwork) -> Self {
            let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
            let (here, there) = (node("a:1#1"), node("b:1#2"));
            let (to, received) = mpsc::unbounded_channel();
            let producers = [(); 2].map(|()| register(&there, Arc::new(Listener(to.clone()))));
            Self { here, _there: there, producers, received, answers: Arc::default() }
        }

        /// An answer of entity number `entity` to a link of a producer.
        fn answer(&self, entity: u64, producer: usize) -> UpstreamMessage {
            UpstreamMessage {
                from: ControllerRef {
                    node: self.here.self_address().clone(),
                    path: format!("entity/{entity}").into(),
                    instance: entity,
                },
                to: ControllerRef { instance: 100 + entity, ..self.producers[producer].clone() },
                epoch: Some(Epoch::FIRST),
                message: Upstream::Ack { confirmed: entity, up_to: 20 },
            }
        }

        async fn receive_batch(&mut self) -> Vec<UpstreamMessage> {
            tokio::time::timeout(Duration::from_secs(20), self.received.recv()).await.expect("it arrives").unwrap()
        }
    }

    #[tokio::test]
    async fn answers_of_one_moment_are_batched_by_producer_in_order() {
        let mut world = World::new(&MemoryNetwork::new());
        for entity in 0..6 {
            let message = world.answer(entity, entity as usize % 2);
            world.answers.enqueue(&world.here.clone(), message);
        }
        assert_eq!(world.receive_batch().await, [world.answer(0, 0)], "the first waits for no other");
        let mut received = vec![world.receive_batch().await, world.receive_batch().await];
        received.sort_by_key(|messages| messages[0].from.instance);
        let to_second = [1, 3, 5].map(|entity| world.answer(entity, 1));
        assert_eq!(received, [to_second.to_vec(), vec![world.answer(2, 0), world.answer(4, 0)]]);
        // Once no answer waits, the next answer is sent at once again.
        while world.answers.lock().is_leaving {
            tokio::task::yield_now().await;
        }
        let message = world.answer(7, 0);
        world.answers.enqueue(&world.here.clone(), message.clone());
        assert_eq!(world.receive_batch().await, [message]);
        assert!(world.received.is_empty());
    }

    #[tokio::test]
    async fn answers_beyond_the_lane_limit_are_split() {
        let network = MemoryNetwork::new();
        network.limit_ordinary_lanes(LANE_MARGIN + 1_000);
        let mut world = World::new(&network);
        let sent: Vec<_> = (0..100).map(|entity| world.answer(entity, 0)).collect();
        sent.iter().for_each(|message| world.answers.enqueue(&world.here.clone(), message.clone()));
        let mut received: Vec<Vec<UpstreamMessage>> = Vec::new();
        while received.concat().len() < sent.len() {
            received.push(world.receive_batch().await);
        }
        assert!(received.iter().all(|messages| wire::write_upstream(messages).len() <= 1_000));
        assert!(received.len() < 15, "{} messages for 100 answers of 60 bytes", received.len());
        assert_eq!(received.concat(), sent);
    }

    #[tokio::test]
    async fn answers_beyond_the_queue_limit_are_dropped() {
        let world = World::new(&MemoryNetwork::new());
        let all = 0..MAX_WAITING as u64 + 2;
        let returned: Vec<_> =
            all.filter_map(|entity| world.answers.hold(&world.here, world.answer(entity, 0))).collect();
        assert_eq!(returned, [world.answer(0, 0)], "one task sends all but the first");
        assert_eq!(world.answers.lock().count, MAX_WAITING);
        assert!(world.answers.send());
        assert_eq!(world.answers.lock().count, 0);
        assert!(world.answers.hold(&world.here, world.answer(1, 0)).is_none(), "the task looks once more");
        assert!(world.answers.send() && !world.answers.send());
        assert!(world.answers.hold(&world.here, world.answer(1, 0)).is_some(), "it has ended");
    }
}
