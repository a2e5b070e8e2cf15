//! The definition of a singleton: what a node must know to host it, or to send to it.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use greylag_core::Codec;

use super::instance::{JobFactory, SingletonContext, StopToken};
use super::mailbox::Mailbox;
use crate::driver::future::BoxFuture;
use crate::settings::SingletonSettings;

/// The factory of instances.
pub(crate) type Factory<M> = Arc<dyn Fn(SingletonContext, Mailbox<M>) -> BoxFuture<'static, ()> + Send + Sync>;

/// The default limit of messages that wait for an instance.
const MAILBOX_CAPACITY: NonZeroUsize = NonZeroUsize::new(10_000).expect("not 0");

/// The message type of singletons that take no messages; it has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMessages {}

/// The work of the hosting node.
pub(crate) enum Runs<M: Send + 'static> {
    /// No work: this node only sends.
    Nothing,
    Job(JobFactory),
    Messages(Factory<M>),
}

/// A singleton: a name, a factory of its instance, and how messages reach it.
///
/// Give the same value to [`crate::Cluster::singleton`] on every node; role, codec and settings must agree between
/// nodes. On a node without the role the factory is never called.
pub struct Singleton<M: Send + 'static> {
    pub(crate) name: String,
    pub(crate) runs: Runs<M>,
    pub(crate) codec: Option<Arc<dyn Codec<M>>>,
    pub(crate) settings: SingletonSettings,
    pub(crate) mailbox_capacity: NonZeroUsize,
}

impl<M: Send + 'static> Singleton<M> {
    /// A singleton that takes messages. An instance is a future; it runs until its mailbox yields `None`, then ends in
    /// its own time, and only after that the next one starts elsewhere. An instance that ends by itself, or panics, is
    /// not started again on this node. Before work other than its messages, an instance should check
    /// [`Cluster::pulse`](crate::Cluster::pulse), as the mailbox does by itself.
    pub fn new<I: Future<Output = ()> + Send + 'static>(
        name: impl Into<String>,
        factory: impl Fn(SingletonContext, Mailbox<M>) -> I + Send + Sync + 'static,
    ) -> Self {
        let factory: Factory<M> = Arc::new(move |context, mailbox| Box::pin(factory(context, mailbox)));
        Self { runs: Runs::Messages(factory), ..Self::proxy(name) }
    }

    /// A singleton of other nodes, to which this node only sends. Its role, if it has one, must be set.
    pub fn proxy(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            runs: Runs::Nothing,
            codec: None,
            settings: SingletonSettings::default(),
            mailbox_capacity: MAILBOX_CAPACITY,
        }
    }

    /// Sets the codec by which messages travel between nodes. Without a codec messages reach only an instance on this
    /// node, and messages to another node are dead letters `SerializeFailed`.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec<M>) -> Self {
        self.codec = Some(Arc::new(codec));
        self
    }

    /// Sets the limit of messages that wait for the instance; messages beyond are dead letters `MailboxFull`. Default
    /// 10 000.
    #[must_use]
    pub fn mailbox_capacity(mut self, messages: NonZeroUsize) -> Self {
        self.mailbox_capacity = messages;
        self
    }
}

impl Singleton<NoMessages> {
    /// A singleton that takes no messages: it runs until its token is stopped.
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

    /// Sets all other settings. Replaces the role set by [`Singleton::role`] before.
    #[must_use]
    pub fn settings(mut self, settings: SingletonSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The singleton's name.
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
