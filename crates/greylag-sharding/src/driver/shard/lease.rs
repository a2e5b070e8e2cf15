//! Leases of shards: made by the node's provider, requested and released by the tasks of the shards.
//!
//! Source: sharding §4.12; cluster S16.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, FutureExt, OptionFuture};
use greylag_cluster::{ClusterSettings, GuardedLease, LeaseError, LeaseOutcome, LeaseSettings, Leases, OnLost};
use greylag_core::UniqueAddress;
use tokio::runtime::Handle;
use tokio::sync::broadcast;

use crate::driver::node::clock;
use crate::driver::region::event::Event;
use crate::driver::shard::control_item::Control;
use crate::ids::{EntityTypeName, ShardId, percent_encode};
use crate::inbox::Inbox;
use crate::machine::shard::{LeaseEffect, LeaseInput, ShardLease};
use crate::settings::ShardLeaseSettings;

/// The source of this node's leases.
#[derive(Debug, Clone)]
pub(crate) struct NodeLeases {
    leases: Leases,
    settings: LeaseSettings,
    /// `host:port`: a later process at the same address takes the leases over.
    owner: String,
}

impl NodeLeases {
    /// `None` if the cluster has no provider.
    pub(crate) fn of(settings: &ClusterSettings, node: &UniqueAddress) -> Option<Self> {
        let leases = settings.leases.clone()?;
        Some(Self { leases, settings: settings.lease, owner: node.address().to_string() })
    }
}

/// The leases of one type's shards on this node.
pub(crate) struct ShardLeases {
    node: NodeLeases,
    entity_type: EntityTypeName,
    settings: ShardLeaseSettings,
    runtime: Handle,
    /// The leases made so far: one for each shard in a process.
    made: Arc<Mutex<BTreeMap<ShardId, GuardedLease>>>,
}

impl ShardLeases {
    pub(crate) fn new(
        node: NodeLeases,
        entity_type: EntityTypeName,
        settings: ShardLeaseSettings,
        runtime: Handle,
    ) -> Self {
        Self { node, entity_type, settings, runtime, made: Arc::default() }
    }

    /// The lease of a shard, not requested yet.
    pub(crate) fn of(self: &Arc<Self>, shard: &ShardId, events: &broadcast::Sender<Event>) -> LeaseInUse {
        let machine = ShardLease::new(self.settings.retry_interval);
        LeaseInUse { leases: self.clone(), shard: shard.clone(), machine, lease: None, events: events.clone() }
    }

    fn name(&self, shard: &ShardId) -> String {
        let (entity_type, shard) = (self.entity_type.encoded(), percent_encode(shard.as_str()));
        self.node.leases.name_of(&format!("shard-{entity_type}/{shard}"))
    }

    /// The lease of a shard. The provider is user code, so it is called where it may block or panic; a lease that is
    /// made too late is kept for the next request.
    async fn make(&self, shard: &ShardId) -> Result<GuardedLease, LeaseError> {
        if let Some(known) = lock(&self.made).get(shard) {
            return Ok(known.clone());
        }
        let (node, runtime, made) = (self.node.clone(), self.runtime.clone(), self.made.clone());
        let (name, of) = (self.name(shard), shard.clone());
        let making = self.runtime.spawn_blocking(move || {
            let NodeLeases { leases, settings, owner } = node;
            let lease = leases.provider().lease(&name, &owner, &settings)?;
            let lease = GuardedLease::new(lease, settings.operation_timeout, runtime);
            Ok(lock(&made).entry(of).or_insert(lease).clone())
        });
        let (name, operation) = (self.name(shard), "making it");
        let after = self.node.settings.operation_timeout;
        match tokio::time::timeout(after, making).await {
            Ok(Ok(made)) => made,
            Ok(Err(_)) => Err(LeaseError::Panicked { name, operation }),
            Err(_) => Err(LeaseError::TimedOut { name, operation, after }),
        }
    }

    async fn acquire(self: Arc<Self>, shard: ShardId, on_lost: OnLost) -> Acquired {
        let lease = match self.make(&shard).await {
            Ok(lease) => lease,
            Err(error) => return Acquired { outcome: LeaseOutcome::Failed, lease: None, error: Some(error) },
        };
        let (outcome, error) = match lease.acquire(on_lost).await {
            Ok(true) => (LeaseOutcome::Granted, None),
            Ok(false) => (LeaseOutcome::Denied, None),
            Err(error) => (LeaseOutcome::Failed, Some(error)),
        };
        Acquired { outcome, lease: Some(lease), error }
    }
}

/// The outcome of a request.
struct Acquired {
    outcome: LeaseOutcome,
    lease: Option<GuardedLease>,
    error: Option<LeaseError>,
}

/// The lease of one shard in the hands of its task.
pub(crate) struct LeaseInUse {
    leases: Arc<ShardLeases>,
    shard: ShardId,
    machine: ShardLease,
    lease: Option<GuardedLease>,
    events: broadcast::Sender<Event>,
}

impl LeaseInUse {
    /// Requests the lease until it is held. False if the shard is told to end before: then the lease is not held. All
    /// control items that come meanwhile are put into `kept`.
    pub(crate) async fn obtain<M: Send + 'static>(
        &mut self,
        control: &Arc<Inbox<Control<M>>>,
        kept: &mut VecDeque<Control<M>>,
    ) -> bool {
        let mut request: OptionFuture<BoxFuture<'static, Acquired>> = None.into();
        let mut input = LeaseInput::Begin;
        loop {
            for effect in self.tell(input) {
                match effect {
                    LeaseEffect::Acquire => request = Some(self.request(control)).into(),
                    LeaseEffect::Refused(outcome) => {
                        let shard = self.shard.clone();
                        self.events.send(Event::LeaseRefused { shard, outcome }).ok();
                    }
                    LeaseEffect::Serve => return true,
                    LeaseEffect::Release => self.release().await,
                    LeaseEffect::Finished => return false,
                    LeaseEffect::Kill => unreachable!("no entity rests on a lease that was not granted"),
                }
            }
            input = self.next_input(&mut request, control, kept).await;
        }
    }

    async fn next_input<M>(
        &mut self,
        request: &mut OptionFuture<BoxFuture<'static, Acquired>>,
        control: &Inbox<Control<M>>,
        kept: &mut VecDeque<Control<M>>,
    ) -> LeaseInput {
        loop {
            let deadline = self.machine.next_deadline();
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let mut told = VecDeque::new();
            tokio::select! {
                Some(acquired) = &mut *request => {
                    *request = None.into();
                    return self.on_acquired(acquired);
                }
                () = due => return LeaseInput::Tick,
                () = poll_fn(|cx| control.poll_take(cx, &mut told)) => {
                    let ends = told.iter().any(|control| matches!(control, Control::Kill | Control::Stop));
                    kept.append(&mut told);
                    if ends {
                        return LeaseInput::Ended;
                    }
                }
            }
        }
    }

    fn on_acquired(&mut self, acquired: Acquired) -> LeaseInput {
        if let Some(error) = &acquired.error {
            tracing::warn!(lease = %self.leases.name(&self.shard), %error, "a shard's lease was not obtained");
        }
        self.lease = acquired.lease.or(self.lease.take());
        LeaseInput::Answered(acquired.outcome)
    }

    fn request<M: Send + 'static>(&self, control: &Arc<Inbox<Control<M>>>) -> BoxFuture<'static, Acquired> {
        let control = control.clone();
        let on_lost: OnLost = Box::new(move |error| control.push_anyway(Control::LeaseLost(error.to_string())));
        self.leases.clone().acquire(self.shard.clone(), on_lost).boxed()
    }

    /// Whether the shard may go on serving after its process slept: the lease may have ended meanwhile.
    pub(crate) fn is_certainly_held(&self) -> bool {
        self.machine.is_held() && self.lease.as_ref().is_some_and(GuardedLease::check)
    }

    /// Notes that the lease is lost, as reported by its provider or found by a check. True if entities run under it,
    /// which must end.
    pub(crate) fn on_lost(&mut self) -> bool {
        self.tell(LeaseInput::Lost).contains(&LeaseEffect::Kill)
    }

    /// Releases the lease, unless it is lost: no entity of the shard lives any more.
    pub(crate) async fn on_ended(&mut self) {
        if self.tell(LeaseInput::Ended).contains(&LeaseEffect::Release) {
            self.release().await;
            self.tell(LeaseInput::Released);
        }
    }

    fn tell(&mut self, input: LeaseInput) -> Vec<LeaseEffect> {
        let mut out = Vec::new();
        self.machine.handle(clock::now(), input, &mut out);
        out
    }

    async fn release(&self) {
        if let Some(lease) = &self.lease
            && let Err(error) = lease.release().await
        {
            let lease = self.leases.name(&self.shard);
            tracing::warn!(lease, %error, "a shard's lease was not given back; it ends by itself");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
