//! The user's handle on the membership of this node; cheap to clone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::watch::WatchError;
use greylag_transport::{Recipient, Remoting};
use tokio::sync::oneshot;

use super::readiness::{Checks, Readiness};
use super::site::Site;
use super::witness::DeathWitness;
use crate::core::{Command, Input};
use crate::driver::events::ClusterEvents;
use crate::driver::input::DriverInput;
use crate::driver::singleton::Singletons;
use crate::driver::watch::{Watch, Watches};
use crate::error::{JoinError, MemberError, Terminated};
use crate::membership::app_version::AppVersion;
use crate::membership::event::{EventKind, InitialState};
use crate::membership::health::Health;
use crate::membership::member::Member;
use crate::membership::shutdown::ShutdownReason;
use crate::membership::view::MembershipView;
use crate::settings::ClusterSettings;

/// One process, or all processes that ever ran at an address (cluster M27).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// This incarnation.
    Incarnation(UniqueAddress),
    /// Every incarnation at the address.
    Address(NodeAddress),
}

impl From<UniqueAddress> for Target {
    fn from(address: UniqueAddress) -> Self {
        Self::Incarnation(address)
    }
}

impl From<NodeAddress> for Target {
    fn from(address: NodeAddress) -> Self {
        Self::Address(address)
    }
}

impl Target {
    fn matches(&self, address: &UniqueAddress) -> bool {
        match self {
            Self::Incarnation(target) => target == address,
            Self::Address(target) => target == address.address(),
        }
    }
}

/// The membership of this node. Clones are the same node.
///
/// A node whose last handle is dropped without [`Cluster::shutdown`] logs this and leaves in order, as if `shutdown`
/// had been called; its tasks, and its hold on the transport, end with it. A [`SingletonRef`](crate::SingletonRef) is a
/// handle too, and so is a callback given to [`Cluster::on_member_up`] that still waits.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) inner: Arc<Inner>,
}

/// What all clones of a handle share.
pub(crate) struct Inner {
    pub(crate) site: Site,
    pub(crate) singletons: Singletons,
    pub(crate) watches: Watches,
    pub(crate) checks: Checks,
}

impl Drop for Inner {
    /// Ends the node in order, since no handle is left that could end it. If its tasks were cut off instead, singletons
    /// and shards would go on running behind an open port while the others start them elsewhere.
    fn drop(&mut self) {
        self.site.input(DriverInput::HandlesGone);
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("self_address", self.self_address()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The address of this process.
    pub fn self_address(&self) -> &UniqueAddress {
        self.inner.site.remoting.self_address()
    }

    /// The settings of this node.
    pub fn settings(&self) -> &ClusterSettings {
        &self.inner.site.settings
    }

    /// The transport of this node.
    pub fn remoting(&self) -> &Arc<dyn Remoting> {
        &self.inner.site.remoting
    }

    /// Joins the cluster that one of these nodes belongs to. The first of the list may form a new cluster when the
    /// others know of none. Completes when this node is a member; until then it tries again for as long as the outcome
    /// may still change.
    ///
    /// # Errors
    /// [`JoinError`], which says whether this process may try again.
    pub async fn join_seed_nodes(&self, seeds: Vec<NodeAddress>) -> Result<(), JoinError> {
        if seeds.is_empty() {
            return Err(JoinError::NoSeeds);
        }
        let own = self.self_address().address();
        if greylag_transport::is_out_of_reach(own, &seeds) {
            tracing::warn!(%own, "this node's address is a loopback one, and seed nodes elsewhere cannot call it back");
        }
        let (reply, answer) = oneshot::channel();
        let join = DriverInput::Join { seeds, reply };
        if self.inner.site.inbox.send(join).await.is_err() {
            return Err(self.shutting_down());
        }
        // Wait for the end, too: a driver that has ended answers no later input. Prefer the answer, which comes before
        // the end.
        tokio::select! {
            biased;
            joined = answer => joined.unwrap_or_else(|_| Err(self.shutting_down())),
            _ended = self.terminated() => Err(self.shutting_down()),
        }
    }

    /// Joins the cluster that this node belongs to; with its own address it forms one. The same as
    /// [`Cluster::join_seed_nodes`] with a list of one.
    ///
    /// # Errors
    /// [`JoinError`].
    pub async fn join(&self, address: NodeAddress) -> Result<(), JoinError> {
        self.join_seed_nodes(vec![address]).await
    }

    /// Forms a cluster of this node alone.
    ///
    /// # Errors
    /// [`JoinError::AlreadyMember`], [`JoinError::ShuttingDown`].
    pub async fn join_self(&self) -> Result<(), JoinError> {
        self.join_seed_nodes(vec![self.self_address().address().clone()]).await
    }

    fn shutting_down(&self) -> JoinError {
        JoinError::ShuttingDown((*self.inner.site.terminated.borrow()).unwrap_or(ShutdownReason::Stopped))
    }

    /// Sets the version of the application that runs here, before this node joins. Source: cluster M31.
    ///
    /// # Errors
    /// [`JoinError::AlreadyMember`]: the version of a member never changes.
    pub fn set_app_version(&self, version: AppVersion) -> Result<(), JoinError> {
        self.before_joining(Command::SetAppVersion(version))
    }

    /// Sets the version of the application once `version` completes; until then joins wait, and so do answers to nodes
    /// that want to join through this node. The future runs on the runtime of the caller; if it panics, the version of
    /// the settings is taken. Source: cluster M31.
    ///
    /// # Errors
    /// [`JoinError::AlreadyMember`].
    pub fn set_app_version_later(
        &self,
        version: impl Future<Output = AppVersion> + Send + 'static,
    ) -> Result<(), JoinError> {
        self.before_joining(Command::AwaitAppVersion)?;
        let (inbox, fallback) = (self.inner.site.inbox.clone(), self.inner.site.settings.app_version.clone());
        let version = tokio::spawn(version);
        tokio::spawn(async move {
            let version = version.await.unwrap_or_else(|error| {
                tracing::error!(%error, "the application's version is unknown; the one of the settings is taken");
                fallback
            });
            let _node_has_ended = inbox.send(DriverInput::Command(Command::SetAppVersion(version))).await;
        });
        Ok(())
    }

    fn before_joining(&self, command: Command) -> Result<(), JoinError> {
        if self.self_member().is_some() {
            return Err(JoinError::AlreadyMember);
        }
        self.inner.site.input(DriverInput::Command(command));
        Ok(())
    }

    /// Registers a setting of a layer above that must be the same on all nodes that know the key, such as
    /// `sharding.number_of_shards`. It is compared when a node joins, so register it before. Keys under
    /// `sensitive_config_prefixes` are never sent. Source: cluster M25a.
    pub fn register_join_key(&self, key: impl Into<String>, value: impl ToString) {
        let command = Command::RegisterJoinKey { key: key.into(), value: value.to_string() };
        self.inner.site.input(DriverInput::Command(command));
    }

    /// Begins the shutdown of the whole cluster: no node joins or comes up any more, no shard or singleton moves, and
    /// members that leave from now on hand nothing over. Every member may then leave in any order.
    /// Source: cluster M30.
    ///
    /// # Errors
    /// [`MemberError::UnknownMember`] if this node is no member.
    pub fn prepare_for_full_shutdown(&self) -> Result<(), MemberError> {
        if self.self_member().is_none() {
            return Err(MemberError::UnknownMember(self.self_address().to_string()));
        }
        self.inner.site.input(DriverInput::Command(Command::PrepareForFullShutdown));
        Ok(())
    }

    /// Asks a member to leave in order; any node may ask for any other. A member that leaves already, or is Down,
    /// continues as before.
    ///
    /// # Errors
    /// [`MemberError::UnknownMember`].
    pub fn leave(&self, target: impl Into<Target>) -> Result<(), MemberError> {
        self.for_members(&target.into(), Command::Leave)
    }

    /// Declares a member dead, for good. The caller vouches that the member's process has ended.
    ///
    /// # Errors
    /// [`MemberError::UnknownMember`].
    pub fn down(&self, target: impl Into<Target>) -> Result<(), MemberError> {
        self.for_members(&target.into(), Command::Down)
    }

    /// Listens to a witness of deaths from now on, on the runtime of the caller.
    pub fn add_death_witness(&self, mut witness: impl DeathWitness) {
        let inbox = self.inner.site.inbox.clone();
        tokio::spawn(async move {
            while let Some(dead) = witness.next_death().await {
                if inbox.send(DriverInput::Core(Input::DeathWitnessed(dead))).await.is_err() {
                    return;
                }
            }
        });
    }

    fn for_members(&self, target: &Target, command: fn(UniqueAddress) -> Command) -> Result<(), MemberError> {
        let view = self.view();
        let addresses = view.members.iter().map(|member| &member.address);
        let found: BTreeSet<UniqueAddress> = addresses.filter(|address| target.matches(address)).cloned().collect();
        if found.is_empty() {
            let name = match target {
                Target::Incarnation(address) => address.to_string(),
                Target::Address(address) => address.to_string(),
            };
            return Err(MemberError::UnknownMember(name));
        }
        for address in found {
            self.inner.site.input(DriverInput::Command(command(address)));
        }
        Ok(())
    }

    /// The newest view of the cluster.
    pub fn view(&self) -> Arc<MembershipView> {
        self.inner.site.hub.view()
    }

    /// The same as [`Cluster::view`].
    pub fn state(&self) -> Arc<MembershipView> {
        self.view()
    }

    /// This node's own member; `None` before it joined and after it ended.
    pub fn self_member(&self) -> Option<Member> {
        self.view().self_member().cloned()
    }

    /// This node's health: whether it has joined, what keeps its leader from acting, which members are unreachable and
    /// which members report them so, whether another cluster of its name exists, and the messages dropped in the last
    /// minute. Source: cluster M36.
    pub async fn health(&self) -> Health {
        let (reply, health) = oneshot::channel();
        // Return if the input is refused: the refused input holds the reply, and a wait for it would never end.
        if self.inner.site.inbox.send(DriverInput::Health(reply)).await.is_err() {
            return Health::default();
        }
        // Wait for the end, too: a driver that has ended answers no later input.
        tokio::select! {
            health = health => health.unwrap_or_default(),
            _ended = self.terminated() => Health::default(),
        }
    }

    /// Subscribes to all events from now on, beginning with a snapshot.
    pub fn subscribe(&self) -> ClusterEvents {
        self.subscribe_to(EventKind::ALL, InitialState::Snapshot)
    }

    /// Subscribes to events of these kinds only, beginning as `initial` says. Snapshots, `Lagged` and
    /// `ClusterShuttingDown` reach every subscriber. Source: cluster M32.
    pub fn subscribe_to(&self, kinds: impl IntoIterator<Item = EventKind>, initial: InitialState) -> ClusterEvents {
        self.inner.site.hub.subscribe(kinds.into_iter().collect(), initial)
    }

    /// Waits until this node is, or was, a full member. A node that leaves or is downed before it came up never is.
    /// Source: cluster M34.
    ///
    /// # Errors
    /// [`Terminated`] if this node has ended instead.
    pub async fn wait_up(&self) -> Result<(), Terminated> {
        self.wait_for(|view| view.self_member().is_some_and(|member| member.up_number != Member::NOT_UP)).await
    }

    /// Waits until `wanted` accepts the view.
    ///
    /// # Errors
    /// [`Terminated`] if this node has ended before.
    pub async fn wait_for(&self, wanted: impl Fn(&MembershipView) -> bool) -> Result<(), Terminated> {
        let mut events = self.subscribe();
        loop {
            if events.next().await.is_none() {
                return Err(Terminated((*self.inner.site.terminated.borrow()).unwrap_or(ShutdownReason::Stopped)));
            }
            if wanted(&self.view()) {
                return Ok(());
            }
        }
    }

    /// How long singletons and shards of a removed member may go on after its unclean removal. Source: cluster S14.
    pub fn down_removal_margin(&self) -> Duration {
        self.inner.site.settings.removal_margin()
    }

    /// Whether this node should be given work: it is Up and not about to end, the others cannot have removed it, and no
    /// check of a layer above objects. Never waits.
    pub fn readiness(&self) -> Readiness {
        let days_left = self.remoting().certificate_days_left();
        self.inner.checks.judge(&self.view(), self.ended().is_some(), days_left)
    }

    /// Adds a layer's check to [`Cluster::readiness`]. The check runs at every call, and must neither wait nor call the
    /// cluster.
    pub fn add_readiness_check(&self, check: impl Fn() -> Readiness + Send + Sync + 'static) {
        self.inner.checks.add(check);
    }

    /// Watches the recipient that is registered under this path at a member: the watch reports the end of the
    /// recipient, or of its node, exactly once, and never before everything that the recipient sent to this node has
    /// been taken here. An unreachable node ends no watch. The sub-path is ignored.
    ///
    /// # Errors
    /// [`WatchError::NotAMember`]: membership would not report when such a node is gone.
    /// Source: cluster T30.
    pub async fn watch(&self, recipient: &Recipient, at: &UniqueAddress) -> Result<Watch, WatchError> {
        self.inner.watches.watch(recipient, at, false).await
    }

    /// Watches also at a node that is no member; such a node counts as gone once it is quarantined or another process
    /// has taken its address. For protocols that involve such nodes.
    ///
    /// # Errors
    /// No error occurs at present.
    pub async fn watch_anyone(&self, recipient: &Recipient, at: &UniqueAddress) -> Result<Watch, WatchError> {
        self.inner.watches.watch(recipient, at, true).await
    }
}
