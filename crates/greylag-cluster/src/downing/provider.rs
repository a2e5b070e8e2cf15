//! The trait by which a provider of the program's own replaces the resolver.
//!
//! Source: cluster S18.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::gossip::reachability::Reachability;
use crate::membership::event::ClusterEvent;
use crate::membership::view::MembershipView;

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
    /// A clause with the numbers, for the log and for [`DowningDecision::reason`](crate::DowningDecision::reason).
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
