//! How an entity fails, and what its shard does about it.
//!
//! Source: sharding §4.6.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;

/// Why a handler gave up.
///
/// Any error converts into it, so handlers may use `?`.
pub struct Failure {
    error: Box<dyn std::error::Error + Send + Sync>,
    /// There is nothing left that could go on.
    state_lost: bool,
}

impl Failure {
    /// A failure in words.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { error: reason.into().into(), state_lost: false }
    }

    /// A failure in words, with which the entity's state is gone: see [`FailureCause::StateLost`].
    pub fn state_lost(reason: impl Into<String>) -> Self {
        Self { state_lost: true, ..Self::new(reason) }
    }

    /// The error that it was made of.
    pub fn error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.error
    }

    /// What a handler that gave up with it tells the supervision.
    pub(crate) fn into_cause(self) -> FailureCause {
        let reason = self.to_string();
        if self.state_lost { FailureCause::StateLost(reason) } else { FailureCause::Handler(reason) }
    }
}

// `Failure` is no `Error` itself, so that this does not overlap with `From<T> for T`.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: Box::new(error), state_lost: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({})", self.error)
    }
}

/// Where an entity failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCause {
    /// The factory or `on_start` failed, or panicked.
    Start(String),
    /// A handler returned an error.
    Handler(String),
    /// A handler panicked: the state may be torn and is never used again.
    Panic(String),
    /// The future of a suspension panicked.
    Suspension(String),
    /// An entity that persists lost its state: a handler of it panicked, or its store failed it and it
    /// is not to recover by itself. Only a new value can go on. Source: persistence §2.6.
    StateLost(String),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(reason) => write!(f, "could not start: {reason}"),
            Self::Handler(reason) => write!(f, "handler failed: {reason}"),
            Self::Panic(reason) => write!(f, "handler panicked: {reason}"),
            Self::Suspension(reason) => write!(f, "suspended work failed: {reason}"),
            Self::StateLost(reason) => write!(f, "state lost: {reason}"),
        }
    }
}

/// What a shard does with an entity that failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Directive {
    /// Keep the entity and its state. Where the state may be torn (a panic) or is gone
    /// ([`FailureCause::StateLost`]), this means `Restart`.
    Resume,
    /// A new value from the factory; queued messages are kept, the failing one is not handled again.
    Restart,
    /// End the incarnation, and start a new one after a wait that grows from failure to failure. Messages are kept
    /// meanwhile, up to the entity's bound, and do not start it earlier.
    Backoff(Backoff),
    /// End the incarnation; queued messages start a new one.
    Stop,
    /// The failure is the shard's: all its entities end without a stop request, and the shard starts again after
    /// `shard_failure_backoff`. Messages that were not handled wait in the region.
    Escalate,
}

/// What became of an entity that failed: the directive, as it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on with its state.
    Resumed,
    /// A new value takes its place.
    Restarted,
    /// Its incarnation ended, and the next one starts after this wait.
    BacksOff(Duration),
    /// Its incarnation ended: by the directive, because it was restarted too often, or because it was to stop anyway.
    Stopped,
    /// Its shard ends, and starts again.
    Escalated,
}

/// Chooses the directive for a failure.
pub type Decider = Arc<dyn Fn(&FailureCause) -> Directive + Send + Sync>;

/// How a shard deals with failing entities of one type.
///
/// The default stops what cannot start and restarts everything else.
#[derive(Clone)]
pub struct Supervision {
    /// Failure to directive.
    pub decider: Decider,
    /// More restarts of one entity than this within [`Supervision::restart_window`] turn `Restart`
    /// into `Stop`. Default 10.
    pub max_restarts: u32,
    /// Default 1 min.
    pub restart_window: Duration,
}

impl Default for Supervision {
    fn default() -> Self {
        let decider = |cause: &FailureCause| match cause {
            FailureCause::Start(_) => Directive::Stop,
            _ => Directive::Restart,
        };
        Self { decider: Arc::new(decider), max_restarts: 10, restart_window: Duration::from_secs(60) }
    }
}

impl Supervision {
    /// Always the same directive, with the default limits.
    pub fn always(directive: Directive) -> Self {
        Self::decided_by(move |_| directive)
    }

    /// What `decider` says, with the default limits.
    pub fn decided_by(decider: impl Fn(&FailureCause) -> Directive + Send + Sync + 'static) -> Self {
        Self { decider: Arc::new(decider), ..Self::default() }
    }

    /// What to do about `cause`.
    pub(crate) fn decide(&self, cause: &FailureCause) -> Directive {
        let decided = catch_unwind(AssertUnwindSafe(|| (self.decider)(cause))).unwrap_or_else(|_| {
            tracing::error!(%cause, "the supervision's decider panicked; the entity is stopped");
            Directive::Stop
        });
        match (decided, cause) {
            (Directive::Resume, FailureCause::Panic(_) | FailureCause::Suspension(_) | FailureCause::StateLost(_)) => {
                Directive::Restart
            }
            (Directive::Resume | Directive::Restart, FailureCause::Start(_)) => Directive::Stop,
            (directive, _) => directive,
        }
    }
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervision")
            .field("max_restarts", &self.max_restarts)
            .field("restart_window", &self.restart_window)
            .finish_non_exhaustive()
    }
}
