//! The joiner's search for a member that lets this node in.
//!
//! Only the first seed node may form a cluster, and only when enough of the others answer that they know of none. A
//! process at the address of a member waits until that member is removed; see `address_claims.rs`.
//!
//! Source: cluster M23 to M25b.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::RejectCode;

use super::identity::Identity;
use super::seeds::{Input as SeedInput, Seeds};
use crate::core::{Effect, LogLevel};
use crate::error::JoinError;
use crate::error::seed_report::SeedAnswer;
use crate::membership::message::{Message, PROTOCOL};
use crate::settings::ClusterSettings;

/// How often the first seed node asks the others (cluster M24).
const FIRST_SEED_INTERVAL: Duration = Duration::from_secs(1);

/// A join under way.
#[derive(Debug)]
pub(in crate::core) struct JoinProcess {
    seeds: Vec<NodeAddress>,
    others: Vec<NodeAddress>,
    is_first: bool,
    nacks: BTreeSet<NodeAddress>,
    /// Seeds that refused this node for good, with their answers.
    refusals: BTreeMap<NodeAddress, (RejectCode, String)>,
    /// Nodes that were asked to let this node in, since the start.
    contacts: BTreeSet<NodeAddress>,
    cluster_id: u128,
    ask_at: Instant,
    /// When `Join` is sent again, and its target.
    join_at: Option<(Instant, NodeAddress)>,
    /// When the search starts over.
    restart_at: Option<Instant>,
    self_join_at: Instant,
    warn_at: Instant,
    give_up_at: Option<Instant>,
    /// Decides when the log names the seed nodes that do not let this node in, and their answers.
    found: Seeds,
}

/// The step that the core takes after the search for a cluster has handled an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Next {
    /// Go on searching.
    Search,
    /// Form a cluster.
    Form,
    /// End: the time for the search is over.
    GiveUp(JoinError),
}

impl JoinProcess {
    /// A search that begins now, by the node at address `own`.
    pub(in crate::core) fn new(
        now: Instant,
        own: &NodeAddress,
        seeds: Vec<NodeAddress>,
        settings: &ClusterSettings,
    ) -> Self {
        let others: BTreeSet<&NodeAddress> = seeds.iter().filter(|seed| *seed != own).collect();
        let others: Vec<NodeAddress> = others.into_iter().cloned().collect();
        let patience = settings.seed_node_timeout;
        Self {
            is_first: seeds.first() == Some(own),
            found: Seeds::new(now, &others),
            seeds,
            others,
            nacks: BTreeSet::new(),
            refusals: BTreeMap::new(),
            contacts: BTreeSet::new(),
            cluster_id: 0,
            ask_at: now,
            join_at: None,
            restart_at: None,
            self_join_at: now + patience,
            warn_at: now + patience,
            give_up_at: settings.shutdown_after_unsuccessful_join_seed_nodes.map(|after| now + after),
        }
    }

    pub(in crate::core) fn gives_up_at(&self) -> Option<Instant> {
        self.give_up_at
    }

    pub(in crate::core) fn next_deadline(&self) -> Instant {
        let asking = self.restart_at.is_none().then_some(self.ask_at);
        let alone = (self.is_first && self.restart_at.is_none()).then_some(self.warn_at);
        let join_at = self.join_at.as_ref().map(|(at, _)| *at);
        let line_at = self.found.next_deadline();
        [asking, alone, join_at, line_at, self.restart_at, self.give_up_at]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.ask_at)
    }

    pub(in crate::core) fn is_seed(&self, address: &NodeAddress) -> bool {
        self.seeds.contains(address)
    }

    /// Whether this address was asked to let this node in.
    pub(in crate::core) fn has_contacted(&self, address: &NodeAddress) -> bool {
        self.contacts.contains(address)
    }

    /// Whether an Ack is taken now: the first acceptable one is, and later ones are ignored until the search starts
    /// over.
    pub(in crate::core) fn takes_acks(&self) -> bool {
        self.restart_at.is_none()
    }

    /// Does what is due. `heard_of_cluster`: whether this process ever heard of a cluster.
    pub(in crate::core) fn on_tick(
        &mut self,
        now: Instant,
        heard_of_cluster: bool,
        identity: &Identity,
        settings: &ClusterSettings,
        out: &mut Vec<Effect>,
    ) -> Next {
        if self.give_up_at.is_some_and(|at| at <= now) {
            return Next::GiveUp(JoinError::Unsuccessful(self.found.reports()));
        }
        if identity.awaits_app_version() {
            return Next::Search;
        }
        if self.may_form(now, heard_of_cluster, settings.self_join_alone) {
            return Next::Form;
        }
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            self.join_at = None;
            self.ask_at = now;
        }
        if self.restart_at.is_none() && self.ask_at <= now {
            let patience = settings.seed_node_timeout;
            self.ask_at = now + if self.is_first { FIRST_SEED_INTERVAL.min(patience) } else { patience };
            self.ask_seeds(identity, settings, out);
        }
        self.warn_of_waiting(now, heard_of_cluster, settings, out);
        let mut lines = Vec::new();
        self.found.handle(now, SeedInput::Tick, &mut lines);
        out.extend(lines.into_iter().map(|line| Effect::Log(LogLevel::Warn, line)));
        if let Some((at, to)) = self.join_at.clone()
            && at <= now
        {
            self.join_at = None;
            self.send_join(&to, identity, settings, out);
        }
        Next::Search
    }

    /// Whether this first seed may form a cluster: the seeds that know of none, with this one, are a majority of the
    /// list, and the rest answered the same or had their time. With `alone` (`self_join_alone`) no majority is needed
    /// once the time is over. Source: cluster M24.
    fn may_form(&self, now: Instant, heard_of_cluster: bool, alone: bool) -> bool {
        if self.others.is_empty() {
            return true;
        }
        if !self.is_first || heard_of_cluster {
            return false;
        }
        let patience_over = now >= self.self_join_at;
        let all = self.nacks.len() == self.others.len();
        let majority = 2 * (self.nacks.len() + 1) > self.seeds.len();
        (majority && (all || patience_over)) || (alone && patience_over)
    }

    fn ask_seeds(&mut self, identity: &Identity, settings: &ClusterSettings, out: &mut Vec<Effect>) {
        let config = identity.checked_config(settings);
        for to in &self.others {
            let message = Message::InitJoin { to: to.clone(), protocol: PROTOCOL, config: config.clone() };
            out.push(Effect::Send { to: to.clone().into(), message });
        }
    }

    /// Warns that this first seed node waits for others, and for how many. Source: cluster M24.
    fn warn_of_waiting(
        &mut self,
        now: Instant,
        heard_of_cluster: bool,
        settings: &ClusterSettings,
        out: &mut Vec<Effect>,
    ) {
        if !self.is_first || self.restart_at.is_some() || self.warn_at > now {
            return;
        }
        self.warn_at = now + settings.seed_node_timeout;
        let why = if heard_of_cluster {
            "this process once heard of a cluster, so it never forms one, whatever self_join_alone says; restart it if \
             that cluster is gone"
        } else {
            "with fewer than half of the list, itself counted, it forms no cluster (see self_join_alone)"
        };
        let text = format!(
            "{} of {} other seed nodes answered that they know of no cluster: {why}",
            self.nacks.len(),
            self.others.len()
        );
        out.push(Effect::Log(LogLevel::Warn, text));
    }

    /// Source: cluster M24, M25.
    pub(in crate::core) fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let is_other = |seed: &NodeAddress| self.others.contains(seed);
        assert!(self.nacks.iter().all(is_other), "only the other seed nodes count for a majority");
        assert!(self.refusals.keys().all(is_other), "only the other seed nodes can refuse this one");
        let gives_up = !self.others.is_empty() && self.refusals.len() == self.others.len();
        assert!(!gives_up, "a join that all seed nodes refuse for good is over");
        assert!(self.contacts.iter().all(|asked| self.is_seed(asked)), "only seed nodes are asked to let this node in");
        if let Some((at, to)) = &self.join_at {
            assert!(self.contacts.contains(to), "a Join is sent again only to a node that got one");
            assert!(self.restart_at.is_some_and(|restart| *at <= restart), "the search goes on after a Join");
        }
    }

    fn send_join(&mut self, to: &NodeAddress, identity: &Identity, settings: &ClusterSettings, out: &mut Vec<Effect>) {
        self.contacts.insert(to.clone());
        let message = identity.join_message(settings, self.cluster_id);
        out.push(Effect::Send { to: to.clone().into(), message });
    }

    // --- answers to the joiner ------------------------------------------------------------------

    /// Notes the outcome of asking a seed node, for the log and the error of the join.
    pub(in crate::core) fn on_answer(&mut self, now: Instant, seed: NodeAddress, answer: SeedAnswer) {
        self.found.handle(now, SeedInput::Answered(seed, answer), &mut Vec::new());
    }

    /// Notes that a seed node knows of no cluster. Returns true if this node may form one by that.
    pub(in crate::core) fn on_nack(
        &mut self,
        now: Instant,
        from: &NodeAddress,
        heard_of_cluster: bool,
        alone: bool,
    ) -> bool {
        self.on_answer(now, from.clone(), SeedAnswer::NoMember);
        if !self.others.contains(from) {
            return false;
        }
        self.nacks.insert(from.clone());
        self.may_form(now, heard_of_cluster, alone)
    }

    /// Takes the Ack of a seed node: asks it to let this node in, and searches anew if nothing comes of that.
    pub(in crate::core) fn on_ack(
        &mut self,
        now: Instant,
        from: &NodeAddress,
        cluster_id: u128,
        identity: &Identity,
        settings: &ClusterSettings,
        out: &mut Vec<Effect>,
    ) {
        self.cluster_id = cluster_id;
        self.restart_at = Some(now + settings.retry_unsuccessful_join_after);
        self.send_join(from, identity, settings, out);
    }

    /// Waits while the older incarnation of this node is taken out, then sends the Join again; `retry` after that, the
    /// search starts over.
    pub(in crate::core) fn on_deferred(
        &mut self,
        now: Instant,
        from: &NodeAddress,
        retry_after: Duration,
        retry: Duration,
    ) {
        if self.contacts.contains(from) {
            let at = now + retry_after.min(retry);
            self.join_at = Some((at, from.clone()));
            self.restart_at = Some(at + retry);
        }
    }

    /// Notes that a seed node refuses this node for good. Returns the error once all other seed nodes do. Source:
    /// cluster M24, §7.
    pub(in crate::core) fn on_refused(
        &mut self,
        address: &NodeAddress,
        code: RejectCode,
        detail: &str,
    ) -> Option<JoinError> {
        let for_good = matches!(code, RejectCode::WrongCluster | RejectCode::VersionUnsupported);
        if !for_good || !self.others.contains(address) {
            return None;
        }
        self.refusals.insert(address.clone(), (code, detail.to_owned()));
        if self.refusals.len() < self.others.len() {
            return None;
        }
        Some(match code {
            RejectCode::WrongCluster => {
                let (ours, theirs) = cluster_names(detail);
                JoinError::WrongCluster { ours, theirs }
            }
            _ => JoinError::IncompatibleProtocol(detail.to_owned()),
        })
    }

    /// Whether a rejection of this process counts. Seed nodes refuse an InitJoin with the same message as a Join.
    pub(in crate::core) fn has_asked(&self, peer: &UniqueAddress) -> bool {
        self.seeds.contains(peer.address()) || self.contacts.contains(peer.address())
    }
}

/// Reads both cluster names from the text of a refusal: the caller's comes first, then the refuser's.
fn cluster_names(detail: &str) -> (String, String) {
    let mut quoted = detail.split('"').skip(1).step_by(2).map(str::to_owned);
    (quoted.next().unwrap_or_default(), quoted.next().unwrap_or_else(|| detail.to_owned()))
}
