//! Failures of an entity, and how its shard handles them.
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
    /// Whether the entity's state is lost, so that it cannot go on.
    state_lost: bool,
}

impl Failure {
    /// A failure with a text.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { error: reason.into().into(), state_lost: false }
    }

    /// A failure with a text, by which the entity's state is lost: see [`FailureCause::StateLost`].
    pub fn state_lost(reason: impl Into<String>) -> Self {
        Self { state_lost: true, ..Self::new(reason) }
    }

    /// The error from which the failure was made.
    pub fn error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.error
    }

    /// The cause passed to the supervision when a handler returned this failure.
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

/// Where and how an entity failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCause {
    /// The factory or `on_start` failed, or panicked.
    Start(String),
    /// A handler returned an error.
    Handler(String),
    /// A handler panicked: the state may be half changed and is never used again.
    Panic(String),
    /// The future of a suspension panicked.
    Suspension(String),
    /// A persistent entity lost its state: a handler of it panicked, or its store failed and the entity is not to
    /// recover by itself. Only a new value can go on. Source: persistence §2.6.
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

/// The reaction of a shard to a failed entity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Directive {
    /// Keep the entity and its state. If the state may be half changed (a panic) or is lost
    /// ([`FailureCause::StateLost`]), this means `Restart`.
    Resume,
    /// Make a new value with the factory; queued messages are kept, the failing one is not handled again.
    Restart,
    /// End the incarnation, and start a new one after a wait that grows from failure to failure. Messages are kept
    /// meanwhile, up to the entity's bound, and do not start it earlier.
    Backoff(Backoff),
    /// End the incarnation; queued messages start a new one.
    Stop,
    /// Escalate the failure to the shard: all its entities end without a stop request, and the shard starts again after
    /// `shard_failure_backoff`. Messages that were not handled wait in the region.
    Escalate,
}

/// The directive for an entity that failed, as it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The entity goes on with its state.
    Resumed,
    /// A new value takes the entity's place.
    Restarted,
    /// The entity's incarnation ended, and the next one starts after this wait.
    BacksOff(Duration),
    /// The entity's incarnation ended: by the directive, after too many restarts, or because it was to stop anyway.
    Stopped,
    /// The entity's shard ends, and starts again.
    Escalated,
}

/// Chooses the directive for a failure.
pub type Decider = Arc<dyn Fn(&FailureCause) -> Directive + Send + Sync>;

/// How a shard handles failing entities of one type.
///
/// The default stops an entity that cannot start and restarts after every other failure.
#[derive(Clone)]
pub struct Supervision {
    /// Chooses a directive for each failure.
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

    /// The directives of `decider`, with the default limits.
    pub fn decided_by(decider: impl Fn(&FailureCause) -> Directive + Send + Sync + 'static) -> Self {
        Self { decider: Arc::new(decider), ..Self::default() }
    }

    /// The directive for `cause`.
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
