//! The rule by which unreachable members are downed: the resolver, or a user's provider, which gets every event that
//! this node publishes and gives commands. The core carries out the commands like decisions of the resolver. Also warns
//! of cluster sizes that do not fit a strategy or its wait.
//!
//! Source: cluster S4, S7, S17, S18.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::trust::SelfTrust;
use crate::core::state::State;
use crate::core::{Effect, LogLevel};
use crate::downing::sbr::{LeaseRequest, Sbr};
use crate::downing::{
    CustomDowning, DownCommand, DowningContext, DowningDecision, DowningInput, DowningProvider, Verdict,
};
use crate::membership::event::ClusterEvent;
use crate::membership::member::MemberStatus;
use crate::membership::view::MembershipView;
use crate::settings::{ClusterSettings, Downing, Strategy};
use crate::singleton::lease_outcome::LeaseOutcome;

/// The shortest time between two ticks of a provider.
const PACE: Duration = Duration::from_millis(100);

/// The provider of one node.
struct Provider {
    name: String,
    machine: Box<dyn DowningProvider>,
    has_snapshot: bool,
    /// The earliest time of the provider's next tick.
    tick_at: Instant,
    /// Whether a command of the provider was not carried out, so that the provider gets another tick.
    held_back: bool,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Provider {
    fn new(custom: &CustomDowning, node: &UniqueAddress, now: Instant) -> Self {
        let machine = custom.make(node);
        Self { name: custom.name().to_owned(), machine, has_snapshot: false, tick_at: now, held_back: false }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let wanted = if self.held_back { Some(self.tick_at) } else { self.machine.next_deadline() };
        wanted.map(|at| at.max(self.tick_at))
    }

    /// Gives the provider these effects' events, which this node has just published.
    fn on_published(&mut self, now: Instant, effects: &[Effect], state: &State) -> Vec<DownCommand> {
        let mut events: Vec<ClusterEvent> = effects.iter().filter_map(published).cloned().collect();
        if !self.has_snapshot {
            // Replace the earlier events by a snapshot, which includes them.
            self.has_snapshot = true;
            events = vec![ClusterEvent::Snapshot(state.view().clone())];
        }
        let context = DowningContext { view: state.view(), reachability: &state.gossip().reachability };
        let mut commands = Vec::new();
        for event in &events {
            self.machine.handle(now, DowningInput::Event(event), &context, &mut commands);
        }
        commands
    }

    /// Gives the provider a tick if one is due and this node takes decisions: not while they are `held`.
    fn on_tick(&mut self, now: Instant, held: bool, state: &State) -> Vec<DownCommand> {
        let mut commands = Vec::new();
        if !self.has_snapshot || self.next_deadline().is_none_or(|at| now < at) {
            return commands;
        }
        self.tick_at = now + PACE;
        if !held {
            self.held_back = false;
            let context = DowningContext { view: state.view(), reachability: &state.gossip().reachability };
            self.machine.handle(now, DowningInput::Tick, &context, &mut commands);
        }
        commands
    }
}

/// The downing rule of one node.
#[derive(Debug)]
pub(in crate::core) struct DowningRule {
    sbr: Option<Sbr>,
    /// The user's downing provider, which replaces the resolver.
    provider: Option<Provider>,
}

impl DowningRule {
    pub(in crate::core) fn new(settings: &ClusterSettings, node: &UniqueAddress, now: Instant) -> Self {
        let (sbr, provider) = match &settings.downing {
            Downing::None => (None, None),
            Downing::SplitBrainResolver(sbr) => {
                (Some(Sbr::new(node.clone(), sbr.clone(), now).omitting(settings.omissions)), None)
            }
            Downing::Custom(custom) => (None, Some(Provider::new(custom, node, now))),
        };
        Self { sbr, provider }
    }

    /// When the resolver or the provider next has work to do.
    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        let sbr = self.sbr.as_ref().and_then(Sbr::next_deadline);
        let provider = self.provider.as_ref().and_then(Provider::next_deadline);
        sbr.into_iter().chain(provider).min()
    }

    pub(in crate::core) fn check_invariants(&self) {
        if let Some(sbr) = &self.sbr {
            sbr.check_invariants();
        }
    }

    // --- the resolver ---------------------------------------------------------------------------

    /// Shows the resolver a new state.
    pub(in crate::core) fn on_state(&mut self, now: Instant, state: &State) {
        if let Some(sbr) = &mut self.sbr {
            sbr.on_state(now, state.gossip(), state.exits());
        }
    }

    /// Tells the resolver the outcome of acquiring its lease, or, with `None`, that the lease is lost. Returns true if
    /// there is a resolver.
    pub(in crate::core) fn on_lease(&mut self, outcome: Option<LeaseOutcome>) -> bool {
        match (&mut self.sbr, outcome) {
            (Some(sbr), Some(outcome)) => sbr.on_lease_outcome(outcome),
            (Some(sbr), None) => sbr.on_lease_lost(),
            (None, _) => {}
        }
        self.sbr.is_some()
    }

    /// The resolver's decision, if one is due.
    pub(in crate::core) fn resolve(
        &mut self,
        now: Instant,
        trust: &SelfTrust,
        out: &mut Vec<Effect>,
    ) -> Option<DowningDecision> {
        // Hold the decision while marks are deferred: a verdict on some of them would differ from that on all.
        let held = trust.pauses(now) || trust.defers(now);
        let sbr = self.sbr.as_mut()?;
        let decision = if trust.is_suspect() && !held { sbr.decide_against_self(now) } else { sbr.decide(now, held) };
        out.extend(sbr.lease_request(now).map(|request| match request {
            LeaseRequest::Acquire => Effect::AcquireLease,
            LeaseRequest::Release => Effect::ReleaseLease,
        }));
        decision
    }

    // --- the provider ---------------------------------------------------------------------------

    pub(in crate::core) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    /// The provider's commands after these effects, which hold what this node has just published.
    pub(in crate::core) fn on_published(
        &mut self,
        now: Instant,
        effects: &[Effect],
        state: &State,
    ) -> Vec<DownCommand> {
        self.provider.as_mut().map(|provider| provider.on_published(now, effects, state)).unwrap_or_default()
    }

    /// The provider's commands at a tick, if one is due.
    pub(in crate::core) fn on_tick(&mut self, now: Instant, held: bool, state: &State) -> Vec<DownCommand> {
        self.provider.as_mut().map(|provider| provider.on_tick(now, held, state)).unwrap_or_default()
    }

    /// Notes that commands of the provider are not carried out, so that it gets another tick.
    pub(in crate::core) fn on_held_back(&mut self) {
        if let Some(provider) = &mut self.provider {
            provider.held_back = true;
        }
    }

    /// The decision that a command of the provider amounts to, given whether this node is Down; `None` if there is no
    /// member left to be downed by it. Source: cluster S5, S17.
    pub(in crate::core) fn decision(
        &self,
        command: DownCommand,
        state: &State,
        downed: bool,
    ) -> Option<DowningDecision> {
        let DownCommand { targets, reason } = command;
        let status = |target: &UniqueAddress| state.gossip().members.get(target).map(|member| member.status);
        let downable = |target: &UniqueAddress| status(target).is_some_and(|status| status < MemberStatus::Exiting);
        let targets: Vec<UniqueAddress> = targets.into_iter().filter(downable).collect();
        if downed || targets.is_empty() {
            return None;
        }
        let view = state.view();
        Some(DowningDecision {
            strategy: self.provider.as_ref()?.name.clone(),
            verdict: Verdict::Custom,
            downed: targets,
            unreachable: BTreeSet::clone(&view.unreachable),
            counted: view.members.iter().filter(|m| m.status.is_settled()).map(|m| m.address.clone()).collect(),
            indirectly_connected: BTreeSet::new(),
            reason,
        })
    }
}

/// At every Up, warns if the cluster has outgrown its resolver's settings. Source: cluster S4, S7.
pub(in crate::core) fn warn_of_size(
    settings: &ClusterSettings,
    view: &MembershipView,
    events: &[ClusterEvent],
    out: &mut Vec<Effect>,
) {
    let Downing::SplitBrainResolver(sbr) = &settings.downing else { return };
    let ups = events.iter().filter(|event| matches!(event, ClusterEvent::MemberUp(_)));
    for _ in ups {
        let monitors = settings.failure_detector.monitored_by_nr_of_members;
        let members = view.members.len();
        if members > monitors + 1 && members < 2 * (monitors + 1) {
            let text = format!(
                "{members} members, each watched by {monitors}: the loss of many at once is found in stages, and \
                 stable_after of {:?} must outlast them; see failure_detector.monitored_by_nr_of_members",
                sbr.stable_after
            );
            out.push(Effect::Log(LogLevel::Warn, text));
        }
        if let Strategy::StaticQuorum { role, quorum_size } = &sbr.strategy {
            let counted = view.members.iter().filter(|m| m.status.is_settled());
            let counted = counted.filter(|m| m.has_role_or_any(role.as_deref())).count();
            if counted > 2 * (*quorum_size).max(1) - 1 {
                let text = format!(
                    "{counted} members count, more than the {} that a quorum of {quorum_size} can serve: the next \
                     partition or crash will end the whole cluster; raise quorum_size or remove members",
                    2 * (*quorum_size).max(1) - 1
                );
                out.push(Effect::Log(LogLevel::Warn, text));
            }
        }
    }
}

fn published(effect: &Effect) -> Option<&ClusterEvent> {
    match effect {
        Effect::Publish(event) => Some(event),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
