//! Runs the manager of a daemon process wherever the cluster's singleton puts it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use greylag_cluster::{Mailbox, Pulse};
use greylag_core::ReplyTo;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::command::Command;
use super::store::{Commit, RecordStore};
use crate::driver::Region;
use crate::driver::node::clock;
use crate::ids::ShardId;
use crate::machine::daemon::{Answer, DaemonManager, DaemonManagerConfig, Effect, Input};

/// The resources of a manager. `M` is the workers' message type.
pub(super) struct ManagerDriver<M> {
    region: Region<M>,
    store: RecordStore,
    config: DaemonManagerConfig,
    pulse: Pulse,
}

impl<M> Clone for ManagerDriver<M> {
    fn clone(&self) -> Self {
        let Self { region, store, config, pulse } = self;
        Self { region: region.clone(), store: store.clone(), config: config.clone(), pulse: pulse.clone() }
    }
}

/// One run of a manager.
struct Life<M> {
    of: ManagerDriver<M>,
    /// Reads, writes and requests under way; dropping the set aborts them.
    work: JoinSet<()>,
    /// The latest request to stop shards.
    stopping: Option<AbortHandle>,
    /// Inputs that result from the work.
    results: mpsc::UnboundedSender<Input>,
    asked: BTreeMap<u64, ReplyTo<Answer>>,
}

impl<M: Send + 'static> ManagerDriver<M> {
    pub(super) fn new(region: Region<M>, store: RecordStore, config: DaemonManagerConfig, pulse: Pulse) -> Self {
        Self { region, store, config, pulse }
    }

    /// Keeps the workers until the singleton must end here.
    pub(super) async fn run(self, mut mailbox: Mailbox<Command>) {
        let (mut stop, pulse) = (mailbox.stop_token(), self.pulse.clone());
        let (results, mut inbox) = mpsc::unbounded_channel();
        let mut effects = Vec::new();
        let mut manager = DaemonManager::new(self.config.clone(), &mut effects);
        let (work, asked) = (JoinSet::new(), BTreeMap::new());
        let mut life = Life { of: self, work, stopping: None, results, asked };
        let mut request = 0;
        loop {
            for effect in std::mem::take(&mut effects) {
                life.execute(effect);
            }
            let deadline = manager.next_deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                command = mailbox.recv() => {
                    let Some(Command { question, reply_to }) = command else { return };
                    request += 1;
                    life.asked.insert(request, reply_to);
                    Input::Asked { request, question, wall_ms: wall_ms() }
                }
                Some(input) = inbox.recv() => input,
                Some(_) = life.work.join_next(), if !life.work.is_empty() => continue,
                () = due => Input::Tick,
            };
            // Check for a sleep of the process: another manager may have taken over, and stopped workers that this one
            // started.
            let may_go_on = tokio::select! {
                fresh = pulse.fresh() => fresh,
                () = stop.stopped() => false,
            };
            if !may_go_on {
                return;
            }
            manager.handle(clock::now(), input, &mut effects);
        }
    }
}

impl<M: Send + 'static> Life<M> {
    fn execute(&mut self, effect: Effect) {
        let (store, results) = (self.of.store.clone(), self.results.clone());
        match effect {
            Effect::Load => drop(self.work.spawn(async move {
                let input = match store.read().await {
                    Ok(record) => Input::Loaded { record, wall_ms: wall_ms() },
                    Err(error) => {
                        tracing::warn!(%error, "the number of processes of a daemon is not known yet; is sharding started on all nodes?");
                        Input::NotLoaded
                    }
                };
                results.send(input).ok();
            })),
            Effect::Commit(record) => drop(self.work.spawn(async move {
                let input = match store.commit(record).await {
                    Commit::Done => Input::Committed(record),
                    Commit::Unknown => Input::NotCommitted(record),
                    Commit::Superseded => Input::Superseded,
                };
                results.send(input).ok();
            })),
            Effect::Start(id) => {
                let started = self.of.region.start_entity(id.to_string());
                drop(self.work.spawn(async move {
                    if let Err(error) = started.await {
                        tracing::debug!(%id, %error, "start request to a worker failed; it will be repeated");
                    }
                }));
            }
            Effect::StopShards(shards) => self.stop_shards(shards),
            Effect::Reply { request, answer } => {
                if let Some(reply_to) = self.asked.remove(&request) {
                    reply_to.reply(answer);
                }
            }
        }
    }

    fn stop_shards(&mut self, shards: BTreeSet<u32>) {
        if let Some(former) = self.stopping.take() {
            former.abort();
        }
        let mut stopping = self.of.region.stop_shards(shards.into_iter().map(ShardId::from_index));
        let results = self.results.clone();
        self.stopping = Some(self.work.spawn(async move {
            while let Some(stopped) = stopping.next().await {
                match stopped.map(|shard| shard.index()) {
                    Ok(Some(shard)) => drop(results.send(Input::ShardStopped(shard))),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "workers of a former revision have not stopped yet"),
                }
            }
        }));
    }
}

fn wall_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}
