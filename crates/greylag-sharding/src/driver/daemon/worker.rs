//! One worker as hosted by its shard: its revision is checked before any user code runs.
//!
//! A late message can start a worker of an old revision, on a node that has not heard of the next revision. So each
//! incarnation first asks a majority of the nodes for the record. The shard goes on meanwhile, and a request to start
//! the worker is acked at once: if the worker waited with the request in its queue, the request would start it again
//! after its end.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::init::DaemonInit;
use super::store::RecordStore;
use crate::entity::{Entity, EntityInit, Failure, PlainEntity};
use crate::host::{HostedEntity, ShardCx, Signal};
use crate::machine::daemon::{DaemonRecord, ProcessId};

/// Bound on messages kept while a worker's revision is checked. Workers have no public reference, so few messages are
/// expected; the bound keeps a mistake from costing memory.
const MOST_KEPT: usize = 1_000;

/// Decides which workers may live.
#[derive(Debug, Clone)]
pub(super) struct Latest {
    store: RecordStore,
    initial: u32,
    retry_interval: Duration,
}

impl Latest {
    pub(super) fn new(store: RecordStore, initial: u32, retry_interval: Duration) -> Self {
        Self { store, initial, retry_interval }
    }

    /// The program's number of workers.
    pub(super) fn initial(&self) -> u32 {
        self.initial
    }

    /// The latest record known to a majority; repeated until a majority answers.
    pub(super) async fn record(&self) -> DaemonRecord {
        loop {
            match self.store.read().await {
                Ok(record) => return record.unwrap_or_else(|| DaemonRecord::initial(self.initial, 0)),
                Err(error) => tracing::debug!(%error, "the revision of a worker is not known yet"),
            }
            tokio::time::sleep(self.retry_interval).await;
        }
    }
}

/// Whether the worker may live.
struct Verdict(bool);

/// See the module's description.
pub(super) struct Worker<E: Entity, F> {
    id: Option<ProcessId>,
    entity: EntityInit,
    latest: Latest,
    factory: Arc<F>,
    life: Life<E>,
}

enum Life<E: Entity> {
    /// The revision is being checked; messages are kept meanwhile.
    Checked(Vec<E::Message>),
    Running(PlainEntity<E>),
}

impl<E, F> Worker<E, F>
where
    E: Entity,
    F: Fn(&DaemonInit) -> Result<E, Failure> + Send + Sync + 'static,
{
    pub(super) fn new(entity: &EntityInit, latest: Latest, factory: Arc<F>) -> Self {
        let id = ProcessId::read(entity.id.as_str(), latest.initial());
        Self { id, entity: entity.clone(), latest, factory, life: Life::Checked(Vec::new()) }
    }

    fn on_verdict(&mut self, may_live: bool, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        let Some(ProcessId { revision, count, index }) = self.id.filter(|_| may_live) else {
            tracing::info!(worker = %self.entity.id, "worker of an old revision is stopped before its user code runs");
            cx.stop();
            return Ok(());
        };
        let entity = self.entity.clone();
        let made = (self.factory)(&DaemonInit { index, count, revision, entity })?;
        let former = std::mem::replace(&mut self.life, Life::Running(PlainEntity(made)));
        let Life::Running(running) = &mut self.life else { return Ok(()) };
        running.on_start(cx)?;
        if let Life::Checked(kept) = former {
            for message in kept {
                running.receive(message, cx)?;
            }
        }
        Ok(())
    }
}

impl<E, F> HostedEntity for Worker<E, F>
where
    E: Entity,
    F: Fn(&DaemonInit) -> Result<E, Failure> + Send + Sync + 'static,
{
    type Message = E::Message;

    fn on_start(&mut self, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        // Fail, instead of stopping: a failed start is not repeated for the message that caused it.
        let id = self.id.ok_or_else(|| Failure::new("no revision has a worker of this id"))?;
        let latest = self.latest.clone();
        cx.spawn_for(async move { Verdict(latest.record().await.allows(&id)) });
        Ok(())
    }

    fn receive(&mut self, message: E::Message, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        match &mut self.life {
            Life::Running(running) => running.receive(message, cx),
            Life::Checked(kept) => {
                if kept.len() < MOST_KEPT {
                    kept.push(message);
                }
                Ok(())
            }
        }
    }

    fn on_stop(&mut self, stop: Option<E::Message>, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        match &mut self.life {
            Life::Running(running) => running.on_stop(stop, cx),
            Life::Checked(_) => {
                cx.stop();
                Ok(())
            }
        }
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        match &mut self.life {
            Life::Running(running) => running.on_signal(signal, cx),
            Life::Checked(_) => Ok(()),
        }
    }

    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        match value.downcast::<Verdict>() {
            Ok(verdict) => self.on_verdict(verdict.0, cx),
            Err(_) => Ok(()),
        }
    }
}
