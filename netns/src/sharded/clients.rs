//! The clients of one node: one for each entity, which writes and reads, and records the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use greylag::Node;
use greylag::prelude::{AskError, EntityRef};
use tokio::task::JoinSet;

use super::entity::{Command, KINDS, Kind};
use crate::record::{Record, RecordedEvent};
use crate::report::At;

/// The time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failed call. It is short, so that a process that wakes calls again soon: stale state would then
/// show.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// All clients of one node.
pub(super) struct Clients {
    node: Node,
    shared: Arc<ClientState>,
    /// For each client, the round of its last answer.
    answered: Vec<Arc<AtomicU64>>,
    running: JoinSet<()>,
    /// The last round that was reported as served.
    told: u64,
}

struct ClientState {
    record: Arc<Record>,
    /// The number of the next call; the upper half is the process id, so a call's number is also a unique value to
    /// write.
    calls: AtomicU64,
    /// The current round; an answer counts for the round in which its call began.
    round: AtomicU64,
    has_ended: AtomicBool,
}

impl Clients {
    pub(super) fn new(node: Node, record: Arc<Record>) -> Self {
        let calls = AtomicU64::new(u64::from(std::process::id()) << 32);
        let shared = ClientState { record, calls, round: AtomicU64::new(0), has_ended: AtomicBool::new(false) };
        Self { node, shared: Arc::new(shared), answered: Vec::new(), running: JoinSet::new(), told: 0 }
    }

    /// Starts a client for every entity, once the coordinators know the regions of all nodes.
    pub(super) async fn go(&mut self) {
        for kind in &KINDS {
            while !self.is_hosted_everywhere(kind).await {
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
        KINDS.iter().for_each(|kind| kind.ids().for_each(|id| self.begin(kind, id)));
        self.next_round();
    }

    /// Whether the type's coordinator knows the regions of all members.
    async fn is_hosted_everywhere(&self, kind: &Kind) -> bool {
        let Ok(region) = self.node.sharding().region(kind.key()) else { return false };
        let members = self.node.cluster().view().members.len();
        region.inspect().current_regions(TIMEOUT).await.addresses.len() == members
    }

    /// Starts clients for the newcomers too, which no client has called before, and begins a round.
    pub(super) fn go_to_newcomers(&mut self) {
        KINDS.iter().for_each(|kind| kind.newcomer_ids().for_each(|id| self.begin(kind, id)));
        self.next_round();
    }

    /// Begins a new round, in which every client must be answered again.
    pub(super) fn next_round(&mut self) {
        self.shared.round.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(&mut self, kind: &'static Kind, id: String) {
        let answered = Arc::new(AtomicU64::new(0));
        self.answered.push(Arc::clone(&answered));
        let entity = kind.entity(&id);
        let register = self.node.entity_ref(kind.key(), id);
        let client = Client { register, entity, pace: kind.pace, shared: Arc::clone(&self.shared), answered };
        self.running.spawn(client.run());
    }

    /// The current round if every client has been answered in it; reported only once per round.
    pub(super) fn served(&mut self) -> Option<u64> {
        let round = self.shared.round.load(Ordering::SeqCst);
        let is_served = round > self.told && self.answered.iter().all(|last| last.load(Ordering::SeqCst) == round);
        is_served.then(|| {
            self.told = round;
            round
        })
    }

    /// Stops all clients, and waits until their pending calls have ended.
    pub(super) async fn stop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        while self.running.join_next().await.is_some() {}
    }

    /// Records the log of each entity. The clients of all nodes have ended before.
    pub(super) async fn survey(&self) {
        for kind in &KINDS {
            for id in kind.ids().chain(kind.newcomer_ids()) {
                let entity = kind.entity(&id);
                let register = self.node.entity_ref(kind.key(), id);
                let (since, values) = loop {
                    let since = At::now();
                    match register.ask(Command::Log).timeout(TIMEOUT).await {
                        Ok(values) => break (since, values),
                        Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
                    }
                };
                self.shared.record.note(&entity, RecordedEvent::Logged { since, values });
            }
        }
    }
}

/// A client that calls one entity from one node.
struct Client {
    register: EntityRef<Command>,
    entity: String,
    pace: Duration,
    shared: Arc<ClientState>,
    answered: Arc<AtomicU64>,
}

impl Client {
    async fn run(self) {
        for turn in 0_u32.. {
            if self.shared.has_ended.load(Ordering::SeqCst) {
                return;
            }
            let round = self.shared.round.load(Ordering::SeqCst);
            let call = self.shared.calls.fetch_add(1, Ordering::SeqCst);
            // Two writes, then three reads, again and again.
            let outcome = if turn % 5 < 2 { self.write(call).await } else { self.read(call).await };
            if self.note(call, outcome) {
                self.answered.store(round, Ordering::SeqCst);
                // Wait 50 to 150 % of the pace, so that the clients do not run in step.
                let part = u32::try_from(call.wrapping_mul(37) % 100).unwrap_or_default();
                tokio::time::sleep(self.pace / 2 + self.pace * part / 100).await;
            } else {
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }

    async fn write(&self, call: u64) -> Result<(u64, Option<u64>), AskError> {
        self.shared.record.note(&self.entity, RecordedEvent::Called { call, write: Some(call) });
        let write = |reply_to| Command::Write { value: call, reply_to };
        self.register.ask(write).timeout(TIMEOUT).await.map(|version| (version, None))
    }

    async fn read(&self, call: u64) -> Result<(u64, Option<u64>), AskError> {
        self.shared.record.note(&self.entity, RecordedEvent::Called { call, write: None });
        self.register.ask(Command::Read).timeout(TIMEOUT).await.map(|(version, value)| (version, Some(value)))
    }

    /// Records the outcome of a call; returns whether the call was answered.
    fn note(&self, call: u64, outcome: Result<(u64, Option<u64>), AskError>) -> bool {
        let is_answer = outcome.is_ok();
        let what = match outcome {
            Ok((version, value)) => RecordedEvent::Answered { call, version, value },
            Err(error) => RecordedEvent::Failed { call, may_have_run: error.may_have_run(), error: error.to_string() },
        };
        self.shared.record.note(&self.entity, what);
        is_answer
    }
}
