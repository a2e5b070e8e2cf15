//! Runs the machine that chooses a founder: look-ups, messages, and the joins that it orders.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{CodecId, NodeAddress, Room, Share};
use greylag_transport::{Destination, Envelope, Inbound, Receiver, Recipient, Remoting};
use tokio::sync::mpsc;

use super::cluster::Cluster;
use super::discovery::{Discovery, DiscoveryError};
use crate::bootstrap::{Bootstrap, BootstrapEffect, BootstrapInput, BootstrapSettings, wire};
use crate::core::LogLevel;
use crate::driver::clock::sleep_until;
use crate::error::JoinError;

const PATH: &str = "control/bootstrap";
/// Messages that may wait; those beyond are dropped, and the protocol repeats itself.
const INBOX: usize = 1024;
/// Bytes of all messages in the inbox together; a message beyond them is dropped.
const INBOX_BYTES: usize = 1024 * 1024;
/// A look-up that takes longer has failed.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// An input of the loop.
enum Arrived {
    /// A message, with its share of [`INBOX_BYTES`].
    Message(BootstrapInput, Share),
    LookedUp(Result<Vec<NodeAddress>, DiscoveryError>),
    JoinEnded(Result<(), JoinError>),
}

/// Joins the cluster of the nodes that discovery finds, or founds it with them; see [`Cluster::bootstrap`].
pub(super) async fn bootstrap(
    cluster: &Cluster,
    discovery: Arc<dyn Discovery>,
    settings: BootstrapSettings,
) -> Result<(), JoinError> {
    if let Err(problems) = settings.validate() {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    }
    let (inbox, arrived) = mpsc::channel(INBOX);
    cluster.remoting().open_to_strangers(PATH, true);
    cluster.remoting().register(PATH, Arc::new(Mailbox { inbox: inbox.clone(), room: Room::new(INBOX, INBOX_BYTES) }));
    let machine = Bootstrap::new(cluster.self_address().clone(), settings, cluster.settings().clock.now());
    let runner = Runner { cluster: cluster.clone(), discovery, inbox, looking_up: false };
    runner.run(machine, arrived).await
}

struct Runner {
    cluster: Cluster,
    discovery: Arc<dyn Discovery>,
    inbox: mpsc::Sender<Arrived>,
    looking_up: bool,
}

impl Runner {
    async fn run(mut self, mut machine: Bootstrap, mut inbox: mpsc::Receiver<Arrived>) -> Result<(), JoinError> {
        let mut effects = Vec::new();
        let clock = self.cluster.settings().clock.clone();
        loop {
            let input = tokio::select! {
                () = sleep_until(&clock, machine.next_deadline()) => BootstrapInput::Tick,
                arrived = inbox.recv() => match arrived.expect("this loop holds a sender") {
                    Arrived::Message(input, _share) => input,
                    Arrived::LookedUp(answer) => self.on_answer(answer),
                    // A later call restarted the join; both calls end with the outcome of the last one.
                    Arrived::JoinEnded(Ok(()) | Err(JoinError::AlreadyMember)) => {
                        run_as_member(&self.cluster, machine, inbox);
                        return Ok(());
                    }
                    Arrived::JoinEnded(Err(error)) => {
                        self.cluster.remoting().unregister(PATH);
                        return Err(error);
                    }
                },
            };
            machine.handle(clock.now(), input, &mut effects);
            for effect in effects.drain(..) {
                self.execute(effect);
            }
        }
    }

    fn on_answer(&mut self, answer: Result<Vec<NodeAddress>, DiscoveryError>) -> BootstrapInput {
        self.looking_up = false;
        match answer {
            Ok(found) => BootstrapInput::Discovered(found),
            Err(error) => {
                tracing::warn!(node = %self.cluster.self_address(), %error, "a look-up failed");
                BootstrapInput::LookupFailed
            }
        }
    }

    fn execute(&mut self, effect: BootstrapEffect) {
        match effect {
            BootstrapEffect::Lookup => self.look_up(),
            BootstrapEffect::Join(seeds) | BootstrapEffect::Found(seeds) => self.join(seeds),
            effect => send(&**self.cluster.remoting(), effect),
        }
    }

    /// Starts a lookup, one at a time, so that an old answer never arrives after a newer one.
    fn look_up(&mut self) {
        if std::mem::replace(&mut self.looking_up, true) {
            return;
        }
        let (discovery, inbox) = (self.discovery.clone(), self.inbox.clone());
        tokio::spawn(async move {
            let answer = tokio::time::timeout(LOOKUP_TIMEOUT, discovery.lookup()).await;
            let answer = answer.unwrap_or_else(|_| {
                let why = format!("it took longer than {LOOKUP_TIMEOUT:?}");
                Err(DiscoveryError { by: format!("{discovery:?}"), why })
            });
            let _ended = inbox.send(Arrived::LookedUp(answer)).await;
        });
    }

    fn join(&self, seeds: Vec<NodeAddress>) {
        let (cluster, inbox) = (self.cluster.clone(), self.inbox.clone());
        tokio::spawn(async move {
            let outcome = cluster.join_seed_nodes(seeds).await;
            let _ended = inbox.send(Arrived::JoinEnded(outcome)).await;
        });
    }
}

/// Keeps the machine of a member running, so that it still gives votes back: a voter that wants its vote back may be
/// about to found a cluster with others. This task ends with the node, and does not keep it alive.
fn run_as_member(cluster: &Cluster, mut machine: Bootstrap, mut inbox: mpsc::Receiver<Arrived>) {
    let (remoting, mut terminated) = (cluster.remoting().clone(), cluster.inner.site.terminated.clone());
    let clock = cluster.settings().clock.clone();
    tokio::spawn(async move {
        let mut effects = Vec::new();
        machine.handle(clock.now(), BootstrapInput::Joined, &mut effects);
        loop {
            effects.drain(..).for_each(|effect| send(&*remoting, effect));
            let arrived = tokio::select! {
                arrived = inbox.recv() => arrived,
                _ended = terminated.wait_for(Option::is_some) => return remoting.unregister(PATH),
            };
            match arrived {
                Some(Arrived::Message(input, _share)) => machine.handle(clock.now(), input, &mut effects),
                Some(_) => {}
                // A later call has replaced this one's inbox.
                None => return,
            }
        }
    });
}

/// Carries out the effects that need only the transport.
fn send(remoting: &dyn Remoting, effect: BootstrapEffect) {
    let node = remoting.self_address();
    match effect {
        BootstrapEffect::Send { to, message } => {
            let mut envelope =
                Envelope::new(Recipient::new(PATH), CodecId::INTERNAL, wire::MANIFEST, wire::encode(message));
            if let Destination::Incarnation(address) = &to {
                envelope = envelope.to_uid(address.uid());
            }
            if let Err(rejected) = remoting.send(&to, envelope) {
                tracing::debug!(?to, error = %rejected.error, "not sent; it is repeated");
            }
        }
        BootstrapEffect::Log(LogLevel::Info, text) => tracing::info!(%node, "{text}"),
        BootstrapEffect::Log(LogLevel::Warn, text) => tracing::warn!(%node, "{text}"),
        BootstrapEffect::Log(LogLevel::Error, text) => tracing::error!(%node, "{text}"),
        // Ignore: a member looks for no other nodes.
        BootstrapEffect::Lookup | BootstrapEffect::Join(_) | BootstrapEffect::Found(_) => {}
    }
}

/// Decodes messages on the worker that carries them.
struct Mailbox {
    inbox: mpsc::Sender<Arrived>,
    room: Room,
}

impl Receiver for Mailbox {
    fn receive(&self, message: Inbound) {
        let Some(decoded) = wire::decode(&message.payload) else {
            tracing::warn!(from = %message.from, "an unreadable bootstrap message");
            return;
        };
        let share = self.room.take(message.size());
        let input = BootstrapInput::Received { from: message.from, message: decoded };
        if share.is_none_or(|share| self.inbox.try_send(Arrived::Message(input, share)).is_err()) {
            tracing::debug!("a bootstrap message is lost; it is repeated");
        }
    }
}
