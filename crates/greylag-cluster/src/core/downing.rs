//! Runs a user's downing provider in the core: the provider gets every event that this node publishes, and the core
//! carries out its commands like decisions of the resolver. Also warns of cluster sizes that do not fit a strategy or
//! its wait.
//!
//! Source: cluster S4, S7, S17, S18.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::{ClusterCore, Effect, Life, LogLevel};
use crate::downing::{
    CustomDowning, DownCommand, DowningContext, DowningDecision, DowningInput, DowningProvider, Verdict,
};
use crate::event::ClusterEvent;
use crate::member::MemberStatus;
use crate::settings::{Downing, Strategy};

/// The shortest time between two ticks of a provider.
const PACE: Duration = Duration::from_millis(100);

/// The provider of one node.
pub(super) struct Provider {
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
    pub(super) fn new(custom: &CustomDowning, node: &UniqueAddress, now: Instant) -> Self {
        let machine = custom.make(node);
        Self { name: custom.name().to_owned(), machine, has_snapshot: false, tick_at: now, held_back: false }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let wanted = if self.held_back { Some(self.tick_at) } else { self.machine.next_deadline() };
        wanted.map(|at| at.max(self.tick_at))
    }
}

impl ClusterCore {
    /// Gives the provider the events published since `begin`, and carries out its commands, until it gives none.
    pub(super) fn tell_provider(&mut self, now: Instant, begin: usize, out: &mut Vec<Effect>) {
        if self.provider.is_none() || !matches!(self.life, Life::Member) {
            return;
        }
        let mut told = begin;
        while told < out.len() {
            let mut events: Vec<ClusterEvent> = out[told..].iter().filter_map(published).cloned().collect();
            told = out.len();
            let Some(provider) = &mut self.provider else { return };
            let context = DowningContext { view: &self.view, reachability: &self.gossip.reachability };
            let mut commands = Vec::new();
            if !provider.has_snapshot {
                // Replace the earlier events by a snapshot, which includes them.
                provider.has_snapshot = true;
                events = vec![ClusterEvent::Snapshot(self.view.clone())];
            }
            for event in &events {
                provider.machine.handle(now, DowningInput::Event(event), &context, &mut commands);
            }
            self.apply_commands(now, commands, out);
        }
    }

    pub(super) fn tick_provider(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let held = self.trust.holds(now);
        let Some(provider) = self.provider.as_mut().filter(|provider| provider.has_snapshot) else { return };
        if provider.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        provider.tick_at = now + PACE;
        if held {
            return;
        }
        provider.held_back = false;
        let context = DowningContext { view: &self.view, reachability: &self.gossip.reachability };
        let mut commands = Vec::new();
        provider.machine.handle(now, DowningInput::Tick, &context, &mut commands);
        self.apply_commands(now, commands, out);
    }

    /// Source: cluster S5, S17.
    fn apply_commands(&mut self, now: Instant, commands: Vec<DownCommand>, out: &mut Vec<Effect>) {
        let Some(provider) = &mut self.provider else { return };
        if commands.is_empty() {
            return;
        }
        if self.trust.holds(now) {
            provider.held_back = true;
            return;
        }
        let name = provider.name.clone();
        for DownCommand { targets, reason } in commands {
            let status = |target: &UniqueAddress| self.gossip.members.get(target).map(|member| member.status);
            let downable = |target: &UniqueAddress| status(target).is_some_and(|status| status < MemberStatus::Exiting);
            let downed: Vec<UniqueAddress> = targets.into_iter().filter(downable).collect();
            if self.downed.is_some() || downed.is_empty() {
                continue;
            }
            let decision = DowningDecision {
                strategy: name.clone(),
                verdict: Verdict::Custom,
                downed: downed.clone(),
                unreachable: BTreeSet::clone(&self.view.unreachable),
                counted: self
                    .view
                    .members
                    .iter()
                    .filter(|m| m.status.is_settled())
                    .map(|m| m.address.clone())
                    .collect(),
                indirectly_connected: BTreeSet::new(),
                reason,
            };
            out.push(Effect::Log(LogLevel::Warn, decision.to_string()));
            out.push(Effect::Publish(ClusterEvent::DowningDecision(Box::new(decision))));
            self.down(now, &downed, out);
        }
    }

    /// At every Up, warns if the cluster has outgrown its resolver's settings. Source: cluster S4, S7.
    pub(super) fn warn_of_size(&self, events: &[ClusterEvent], out: &mut Vec<Effect>) {
        let Downing::SplitBrainResolver(sbr) = &self.settings.downing else { return };
        let ups = events.iter().filter(|event| matches!(event, ClusterEvent::MemberUp(_)));
        for _ in ups {
            let monitors = self.settings.failure_detector.monitored_by_nr_of_members;
            let members = self.view.members.len();
            if members > monitors + 1 && members < 2 * (monitors + 1) {
                let text = format!(
                    "{members} members, each watched by {monitors}: the loss of many at once is found in stages, and \
                     stable_after of {:?} must outlast them; see failure_detector.monitored_by_nr_of_members",
                    sbr.stable_after
                );
                out.push(Effect::Log(LogLevel::Warn, text));
            }
            if let Strategy::StaticQuorum { role, quorum_size } = &sbr.strategy {
                let counted = self.view.members.iter().filter(|m| m.status.is_settled());
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
}

fn published(effect: &Effect) -> Option<&ClusterEvent> {
    match effect {
        Effect::Publish(event) => Some(event),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
