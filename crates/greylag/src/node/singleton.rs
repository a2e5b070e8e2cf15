//! Singletons: one live instance in the whole cluster, a value that takes messages and is made anew where it runs next.
//!
//! ```text
//! oldest node: factory --> run, which takes messages --> returns --> factory on the next oldest node
//!                 ^             |
//!                 '-- back-off -' fails or panics; messages wait meanwhile
//! ```
//!
//! Source: cluster P1 to P8.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use greylag_cluster::{
    Cluster, Mailbox, Singleton, SingletonContext, SingletonError, SingletonRef, SingletonSettings, StopToken,
};
use greylag_core::Codec;

use crate::error::{Error, Result};

use super::handle::Node;

/// First and longest wait before a failed instance is made again, unless the builder sets others.
const DEFAULT_RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The behaviour of a singleton's instance.
///
/// ```
/// use greylag::prelude::*;
///
/// #[derive(Serialize, Deserialize)]
/// enum Bill {
///     Send { cents: u64 },
///     Total(ReplyTo<u64>),
/// }
///
/// struct Biller {
///     cents: u64,
/// }
///
/// impl SingletonInstance for Biller {
///     type Message = Bill;
///
///     async fn run(&mut self, mailbox: &mut Mailbox<Bill>) -> greylag::Result {
///         while let Some(bill) = mailbox.recv().await {
///             match bill {
///                 Bill::Send { cents } => self.cents += cents,
///                 Bill::Total(reply_to) => reply_to.reply(self.cents),
///             }
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> greylag::Result {
/// # let node = Node::builder("billing").start().await?;
/// // On every node; the instance runs on the oldest.
/// let biller = node.singleton("biller", |_| Ok(Biller { cents: 0 })).codec(json("bill")).start().await?;
/// biller.tell(Bill::Send { cents: 990 })?;
/// assert_eq!(biller.ask(Bill::Total, std::time::Duration::from_secs(5)).await?, 990);
/// # node.shutdown().await
/// # }
/// ```
pub trait SingletonInstance: Sized + Send + 'static {
    /// The messages of the instance; [`NoMessages`](greylag_cluster::NoMessages) if it takes none.
    type Message: Send + 'static;

    /// Runs the instance: takes messages until the mailbox yields `None`, which tells that the instance must end, then
    /// ends in its own time. The next instance starts elsewhere only after this has returned. An instance with other
    /// work besides its messages waits for both in a `select!`.
    ///
    /// An instance that returns before it must is not made again on this node.
    ///
    /// # Errors
    /// Any error is logged, and after a back-off the factory makes another instance on the same node; a panic has the
    /// same effect. Messages wait in the mailbox meanwhile; the one being handled is lost.
    fn run(&mut self, mailbox: &mut Mailbox<Self::Message>) -> impl Future<Output = Result> + Send;
}

impl Node {
    /// A singleton: `factory` makes its instance on the oldest node of the cluster. Call it on every node; the
    /// reference that the builder's start returns sends to the instance wherever it runs. Settings are those of
    /// `cluster.singleton.*` and `cluster.singleton_proxy.*`.
    pub fn singleton<I: SingletonInstance>(
        &self,
        name: impl Into<String>,
        factory: impl Fn(SingletonContext) -> Result<I> + Send + Sync + 'static,
    ) -> StartSingleton<I::Message> {
        let factory = Arc::new(factory);
        StartSingleton::new(self, name.into(), move |name, restart| {
            Singleton::new(name, move |cx, mailbox| run_with_restarts(factory.clone(), cx, mailbox, restart))
        })
    }

    /// A singleton that runs on other nodes; this node only sends to it.
    pub fn singleton_proxy<M: Send + 'static>(&self, name: impl Into<String>) -> StartSingleton<M> {
        StartSingleton::new(self, name.into(), |name, _| Singleton::proxy(name))
    }
}

/// Makes the cluster's singleton, given its name and the shortest and longest wait before a restart.
type Define<M> = Box<dyn FnOnce(String, (Duration, Duration)) -> Singleton<M> + Send>;

/// A singleton that is not started yet.
#[must_use = "a singleton is set up by start()"]
pub struct StartSingleton<M: Send + 'static> {
    cluster: Cluster,
    name: String,
    define: Define<M>,
    settings: SingletonSettings,
    codec: Option<Box<dyn FnOnce(Singleton<M>) -> Singleton<M> + Send>>,
    mailbox_capacity: Option<NonZeroUsize>,
    restart: (Duration, Duration),
}

impl<M: Send + 'static> StartSingleton<M> {
    fn new(
        node: &Node,
        name: String,
        define: impl FnOnce(String, (Duration, Duration)) -> Singleton<M> + Send + 'static,
    ) -> Self {
        Self {
            cluster: node.cluster().clone(),
            name,
            define: Box::new(define),
            settings: node.settings().singleton.clone(),
            codec: None,
            mailbox_capacity: None,
            restart: DEFAULT_RESTART,
        }
    }

    /// The codec of messages between nodes. Without one only an instance on this node can be reached.
    pub fn codec(mut self, codec: impl Codec<M>) -> Self {
        self.codec = Some(Box::new(|singleton| singleton.codec(codec)));
        self
    }

    /// Runs the singleton on the oldest member with this role. Default: the setting `cluster.singleton.role`.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.settings.role = Some(role.into());
        self
    }

    /// Changes other settings of the singleton.
    pub fn configure(mut self, change: impl FnOnce(&mut SingletonSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Limit of messages that wait for the instance; further ones are dead letters `MailboxFull`. Default 10 000.
    pub fn mailbox_capacity(mut self, messages: NonZeroUsize) -> Self {
        self.mailbox_capacity = Some(messages);
        self
    }

    /// First and longest wait before a failed instance is made again; each failure doubles the wait until an instance
    /// has lived for longer than the longest wait. Default 1 s and 30 s.
    pub fn restart_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.restart = (first, longest.max(first));
        self
    }

    /// Sets the singleton up on this node. A second call with the same name returns the same singleton.
    ///
    /// # Errors
    /// [`SingletonError`]; then nothing was started.
    // A future, like the other starts, so that it may have to wait in a later version.
    pub fn start(self) -> std::future::Ready<std::result::Result<SingletonRef<M>, SingletonError>> {
        let Self { cluster, name, define, settings, codec, mailbox_capacity, restart } = self;
        let mut singleton = define(name, restart).settings(settings);
        if let Some(codec) = codec {
            singleton = codec(singleton);
        }
        if let Some(messages) = mailbox_capacity {
            singleton = singleton.mailbox_capacity(messages);
        }
        std::future::ready(cluster.singleton(singleton))
    }
}

impl<M: Send + 'static> fmt::Debug for StartSingleton<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartSingleton")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Runs one instance after the other, until one ends without a failure or the singleton must end on this node.
async fn run_with_restarts<I, F>(
    factory: Arc<F>,
    cx: SingletonContext,
    mut mailbox: Mailbox<I::Message>,
    (first, longest): (Duration, Duration),
) where
    I: SingletonInstance,
    F: Fn(SingletonContext) -> Result<I> + Send + Sync + 'static,
{
    let mut stop = mailbox.stop_token();
    let mut wait = first;
    loop {
        let began = Instant::now();
        let Err(error) = run_once(&*factory, cx.clone(), &mut mailbox).await else { return };
        if began.elapsed() > longest {
            wait = first;
        }
        tracing::error!(singleton = cx.name, ?error, restart_in = ?wait, "the instance of a singleton failed");
        if !wait_to_restart(&mut stop, wait).await {
            return;
        }
        wait = (wait * 2).min(longest);
    }
}

/// Waits; answers false if the singleton must end on this node meanwhile.
async fn wait_to_restart(stop: &mut StopToken, wait: Duration) -> bool {
    tokio::select! {
        () = stop.stopped() => false,
        () = tokio::time::sleep(wait) => true,
    }
}

/// Makes and runs one instance. A panic of the user's code counts as a failure.
async fn run_once<I, F>(factory: &F, cx: SingletonContext, mailbox: &mut Mailbox<I::Message>) -> Result
where
    I: SingletonInstance,
    F: Fn(SingletonContext) -> Result<I> + Send + Sync + 'static,
{
    let mut instance =
        catch_unwind(AssertUnwindSafe(|| factory(cx))).unwrap_or_else(|panic| Err(panic_error(&*panic)))?;
    let mut run = pin!(instance.run(mailbox));
    poll_fn(|task| match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(task))) {
        Ok(outcome) => outcome,
        Err(panic) => Poll::Ready(Err(panic_error(&*panic))),
    })
    .await
}

fn panic_error(panic: &(dyn Any + Send)) -> Error {
    let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(format!("the instance panicked: {}", words.unwrap_or("without a message")))
}
