//! What a node must know to host a singleton, or to send to one.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use greylag_core::Codec;
use tokio::sync::watch;

use super::mailbox::Mailbox;
use crate::driver::handle::BoxFuture;
use crate::settings::SingletonSettings;

/// Makes an instance that takes no messages.
pub(crate) type JobFactory = Arc<dyn Fn(SingletonContext, StopToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Makes an instance.
pub(crate) type Factory<M> = Arc<dyn Fn(SingletonContext, Mailbox<M>) -> BoxFuture<'static, ()> + Send + Sync>;

/// How many messages wait for an instance unless its definition says otherwise.
const MAILBOX_CAPACITY: NonZeroUsize = NonZeroUsize::new(10_000).expect("not 0");

/// What an instance knows of itself, for fencing in storage of its own. Source: cluster P5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonContext {
    /// The singleton's name.
    pub name: String,
    /// Drawn for each instance; never 0.
    pub instance_id: u64,
    /// The age of the node it runs on.
    pub oldest_up_number: u32,
}

/// How an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// The instance may handle what waits for it: no node starts another one before it has ended.
    InOrder,
    /// The instance handles nothing more: another node may have started its own.
    AtOnce,
}

/// Tells an instance when it must end.
#[derive(Debug, Clone)]
pub struct StopToken(pub(super) watch::Receiver<Option<Stop>>);

impl StopToken {
    /// Completes when the instance must end.
    pub async fn stopped(&mut self) {
        // The sender is gone, so no stop would ever come: the node has ended.
        let _gone = self.0.wait_for(Option::is_some).await;
    }

    /// Completes when the instance may not even handle what waits for it.
    pub(super) async fn stopped_at_once(&mut self) {
        let _gone = self.0.wait_for(|stop| *stop == Some(Stop::AtOnce)).await;
    }

    pub(super) fn is_stopped_at_once(&self) -> bool {
        *self.0.borrow() == Some(Stop::AtOnce)
    }

    /// Whether the instance must end.
    pub fn is_stopped(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }
}

/// There is no such message: what singletons take that are not sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMessages {}

/// What runs on the node that hosts.
pub(crate) enum Runs<M: Send + 'static> {
    /// This node only sends.
    Nothing,
    Job(JobFactory),
    Messages(Factory<M>),
}

/// A singleton: a name, a way to make its instance, and how messages reach it.
///
/// The same value is given to [`crate::Cluster::singleton`] on every node; the role, the codec and
/// the settings must agree between them. Where a node has not the role, its factory is never called.
pub struct Singleton<M: Send + 'static> {
    pub(crate) name: String,
    pub(crate) runs: Runs<M>,
    pub(crate) codec: Option<Arc<dyn Codec<M>>>,
    pub(crate) settings: SingletonSettings,
    pub(crate) mailbox_capacity: NonZeroUsize,
}

impl<M: Send + 'static> Singleton<M> {
    /// A singleton that takes messages. An instance is a future; it runs until its mailbox yields
    /// `None`, then ends in its own time, and only after that the next one starts elsewhere. One that
    /// ends by itself, or panics, is not started again on this node. What it does besides its messages
    /// should look at [`Cluster::pulse`](crate::Cluster::pulse) first, as the mailbox does by itself.
    pub fn new<I: Future<Output = ()> + Send + 'static>(
        name: impl Into<String>,
        factory: impl Fn(SingletonContext, Mailbox<M>) -> I + Send + Sync + 'static,
    ) -> Self {
        let factory: Factory<M> = Arc::new(move |context, mailbox| Box::pin(factory(context, mailbox)));
        Self { runs: Runs::Messages(factory), ..Self::proxy(name) }
    }

    /// A singleton of other nodes, that this one only sends to. Its role, if it has one, must be said.
    pub fn proxy(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            runs: Runs::Nothing,
            codec: None,
            settings: SingletonSettings::default(),
            mailbox_capacity: MAILBOX_CAPACITY,
        }
    }

    /// How messages travel between nodes. Without one they reach an instance on this node only, and
    /// what would leave it is a dead letter `SerializeFailed`.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec<M>) -> Self {
        self.codec = Some(Arc::new(codec));
        self
    }

    /// How many messages wait for the instance at most; what comes beyond is a dead letter
    /// `MailboxFull`. Default 10 000.
    #[must_use]
    pub fn mailbox_capacity(mut self, messages: NonZeroUsize) -> Self {
        self.mailbox_capacity = messages;
        self
    }
}

impl Singleton<NoMessages> {
    /// A singleton that takes no messages: it runs until its token says stop.
    pub fn job<I: Future<Output = ()> + Send + 'static>(
        name: impl Into<String>,
        factory: impl Fn(SingletonContext, StopToken) -> I + Send + Sync + 'static,
    ) -> Self {
        let factory: JobFactory = Arc::new(move |context, stop| Box::pin(factory(context, stop)));
        Self { runs: Runs::Job(factory), ..Self::proxy(name) }
    }
}

impl<M: Send + 'static> Singleton<M> {
    /// Runs the singleton on the oldest member with this role. Default: the oldest of all.
    #[must_use]
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.settings.role = Some(role.into());
        self
    }

    /// Everything else that can be set. Replaces what [`Singleton::role`] said before.
    #[must_use]
    pub fn settings(mut self, settings: SingletonSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn can_host(&self) -> bool {
        !matches!(self.runs, Runs::Nothing)
    }
}

impl<M: Send + 'static> fmt::Debug for Singleton<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton")
            .field("name", &self.name)
            .field("can_host", &self.can_host())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
