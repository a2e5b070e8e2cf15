//! Types of downing: a resolver's possible verdicts, the record of a decision, and the trait by which a provider of
//! your own replaces the resolver.
//!
//! Source: cluster S5, S17, S18.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::event::ClusterEvent;
use crate::reachability::Reachability;
use crate::view::MembershipView;

/// The members that a decision downs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The other side.
    DownUnreachable,
    /// The own side, self last.
    DownReachable,
    /// All members.
    DownAll,
    /// The members that are indirectly connected (some reach them and others do not), and of the rest those that the
    /// strategy selects.
    DownIndirectlyConnected,
    /// This node.
    DownSelf,
    /// Acquire the lease after `delay`: the lease holder downs the other side; a side that is denied downs itself.
    AcquireLeaseAndDownUnreachable {
        /// How long this side waits to let the other one go first.
        delay: Duration,
    },
    /// Acquire the lease at once: a node that gets it downs the indirectly connected members.
    AcquireLeaseAndDownIndirectlyConnected,
    /// The members that the user's own provider named.
    Custom,
    /// The lease was denied: down the indirectly connected members and the own side.
    ReverseDownIndirectlyConnected,
}

impl Verdict {
    /// How long to wait before requesting the lease; `None` if no lease is needed. Source: cluster S10.
    pub fn lease_delay(self) -> Option<Duration> {
        match self {
            Self::AcquireLeaseAndDownUnreachable { delay } => Some(delay),
            Self::AcquireLeaseAndDownIndirectlyConnected => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// The verdict to carry out once the lease was granted; the verdict itself if it needs none.
    #[must_use]
    pub fn granted(self) -> Self {
        match self {
            Self::AcquireLeaseAndDownUnreachable { .. } => Self::DownUnreachable,
            Self::AcquireLeaseAndDownIndirectlyConnected => Self::DownIndirectlyConnected,
            other => other,
        }
    }

    /// The verdict to carry out when the lease was denied, or the request failed: the reverse. The verdict itself if it
    /// needs none.
    #[must_use]
    pub fn denied(self) -> Self {
        match self {
            Self::AcquireLeaseAndDownUnreachable { .. } => Self::DownReachable,
            Self::AcquireLeaseAndDownIndirectlyConnected => Self::ReverseDownIndirectlyConnected,
            other => other,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcquireLeaseAndDownUnreachable { delay } => {
                write!(f, "AcquireLeaseAndDownUnreachable after {delay:?}")
            }
            other => fmt::Debug::fmt(other, f),
        }
    }
}

/// A decision, with its grounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DowningDecision {
    /// The strategy that decided.
    pub strategy: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// The members that the verdict downs, in this order.
    pub downed: Vec<UniqueAddress>,
    /// The members that were unreachable.
    pub unreachable: BTreeSet<UniqueAddress>,
    /// The members that the strategy counted.
    pub counted: BTreeSet<UniqueAddress>,
    /// The members that are indirectly connected: some members reach them and others do not.
    pub indirectly_connected: BTreeSet<UniqueAddress>,
    /// Why, and why now: a sentence with the numbers, for the operator.
    pub reason: String,
}

/// Writes the log line of a decision, with its grounds.
impl fmt::Display for DowningDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, nodes: &mut dyn Iterator<Item = &UniqueAddress>| {
            let nodes: Vec<String> = nodes.map(ToString::to_string).collect();
            match nodes.len() {
                0 => write!(f, "; {name}: none"),
                count => write!(f, "; {name} ({count}): {}", nodes.join(", ")),
            }
        };
        write!(f, "{} decides {}: {}", self.strategy, self.verdict, self.reason)?;
        list(f, "downed", &mut self.downed.iter())?;
        list(f, "unreachable", &mut self.unreachable.iter())?;
        list(f, "counted", &mut self.counted.iter())?;
        list(f, "indirectly connected", &mut self.indirectly_connected.iter())
    }
}

/// An input to a [`DowningProvider`]: an event of the cluster, or that its deadline has come.
#[derive(Debug, Clone, Copy)]
pub enum DowningInput<'a> {
    /// An event of the cluster. The first one is a [`ClusterEvent::Snapshot`].
    Event(&'a ClusterEvent),
    /// The provider's deadline has come, or this node may decide again after a pause.
    Tick,
}

/// The present state that a [`DowningProvider`] may read, after all events it was given.
#[derive(Debug, Clone, Copy)]
pub struct DowningContext<'a> {
    /// The membership as this node sees it.
    pub view: &'a MembershipView,
    /// The table of which member finds which unreachable.
    pub reachability: &'a Reachability,
}

impl DowningContext<'_> {
    /// Whether this node leads its side. Each side of a partition has a leader, so not every node needs to act.
    pub fn is_leader(&self) -> bool {
        self.view.leader.as_ref() == Some(&self.view.self_address)
    }
}

/// Members to declare dead, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownCommand {
    /// Downed in this order. A provider that ends its own side names its own node last.
    pub targets: Vec<UniqueAddress>,
    /// A clause with the numbers, for the log and for [`DowningDecision::reason`].
    pub reason: String,
}

/// Decides in the resolver's stead which members are declared dead. One per node, made by [`CustomDowning`].
///
/// A provider is a machine like all others here: it holds no clock and no task, and the node asks it again
/// when its deadline comes, at most ten times a second. Providers must promise fitting decisions on both
/// sides of a partition: without them, two writers run for everything that must have one. The node does not
/// carry out a decision that it gets when it has just woken from a pause (cluster F9); it asks the provider
/// again, with [`DowningInput::Tick`], once the node may decide.
///
/// A provider that keeps the side with an arbiter, a member that stands where both sides reach it or
/// neither does:
///
/// ```
/// use std::time::{Duration, Instant};
/// use greylag_cluster::{
///     ClusterEvent, ClusterSettings, CustomDowning, DownCommand, DowningContext, DowningInput, DowningProvider,
/// };
///
/// const PATIENCE: Duration = Duration::from_secs(10);
///
/// #[derive(Default)]
/// struct KeepArbiter {
///     decide_at: Option<Instant>,
/// }
///
/// impl DowningProvider for KeepArbiter {
///     fn handle(
///         &mut self,
///         now: Instant,
///         input: DowningInput<'_>,
///         cluster: &DowningContext<'_>,
///         out: &mut Vec<DownCommand>,
///     ) {
///         let view = cluster.view;
///         match input {
///             // Every change of reachability starts the wait anew.
///             DowningInput::Event(ClusterEvent::UnreachableMember(_) | ClusterEvent::ReachableMember(_)) => {
///                 self.decide_at = (!view.unreachable.is_empty()).then(|| now + PATIENCE);
///             }
///             DowningInput::Tick if self.decide_at.is_some_and(|at| at <= now) && cluster.is_leader() => {
///                 self.decide_at = None;
///                 let arbiter = view.members.iter().find(|member| member.has_role("arbiter"));
///                 let here = arbiter.is_some_and(|member| !view.unreachable.contains(&member.address));
///                 let side = view.members.iter().map(|member| &member.address);
///                 let mut targets: Vec<_> =
///                     side.filter(|address| view.unreachable.contains(*address) == here).cloned().collect();
///                 targets.sort_by_key(|address| *address == view.self_address); // this node last
///                 let reason = format!("the arbiter is {}", if here { "here" } else { "out of reach" });
///                 out.push(DownCommand { targets, reason });
///             }
///             _ => {}
///         }
///     }
///
///     fn next_deadline(&self) -> Option<Instant> {
///         self.decide_at
///     }
/// }
///
/// let custom = CustomDowning::new("keep_arbiter", 2 * PATIENCE, |_this_node| KeepArbiter::default());
/// let settings = ClusterSettings::default().with_custom_downing(custom);
/// assert_eq!(settings.removal_margin(), Duration::from_secs(20));
/// assert_eq!(settings.validate(), Ok(()));
/// ```
///
/// Source: cluster S18.
pub trait DowningProvider: Send {
    /// Handles one input.
    fn handle(
        &mut self,
        now: Instant,
        input: DowningInput<'_>,
        cluster: &DowningContext<'_>,
        out: &mut Vec<DownCommand>,
    );

    /// When the next `Tick` has work to do, or `None` if only an event can wake it.
    fn next_deadline(&self) -> Option<Instant>;
}

type MakeProvider = dyn Fn(&UniqueAddress) -> Box<dyn DowningProvider> + Send + Sync;

/// A [`DowningProvider`] for the settings.
#[derive(Clone)]
pub struct CustomDowning {
    name: Arc<str>,
    removal_margin: Duration,
    make: Arc<MakeProvider>,
}

impl CustomDowning {
    /// Wraps `make`, which is called once on each node, with its own address. The name must be the same on all nodes
    /// (cluster S15). `removal_margin` is how long a member that the others gave up may go on: after an unclean
    /// removal, singletons and shards of the removed member start elsewhere only that much later.
    pub fn new<P: DowningProvider + 'static>(
        name: &str,
        removal_margin: Duration,
        make: impl Fn(&UniqueAddress) -> P + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), removal_margin, make: Arc::new(move |node| Box::new(make(node))) }
    }

    /// The provider's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// See [`CustomDowning::new`].
    pub fn removal_margin(&self) -> Duration {
        self.removal_margin
    }

    pub(crate) fn make(&self, node: &UniqueAddress) -> Box<dyn DowningProvider> {
        (self.make)(node)
    }
}

impl fmt::Debug for CustomDowning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CustomDowning");
        debug.field("name", &self.name).field("removal_margin", &self.removal_margin).finish_non_exhaustive()
    }
}

/// Equal if the factory is the same object, not only its name.
impl PartialEq for CustomDowning {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.removal_margin == other.removal_margin && Arc::ptr_eq(&self.make, &other.make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider that never downs anything.
    struct Never;

    impl DowningProvider for Never {
        fn handle(&mut self, _: Instant, _: DowningInput<'_>, _: &DowningContext<'_>, _: &mut Vec<DownCommand>) {}

        fn next_deadline(&self) -> Option<Instant> {
            None
        }
    }

    /// cluster S15: two settings are equal if their factory, name and margin are.
    #[test]
    fn custom_providers_are_the_same_by_all_that_they_are() {
        let never = || CustomDowning::new("never", Duration::from_secs(9), |_| Never);
        let custom = never();
        assert_eq!(custom, custom.clone());
        let renamed = CustomDowning { name: "other".into(), ..custom.clone() };
        let sooner = CustomDowning { removal_margin: Duration::from_secs(8), ..custom.clone() };
        for other in [renamed, sooner, never()] {
            assert_ne!(custom, other);
        }
    }
}
