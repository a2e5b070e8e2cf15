//! Clauses of cluster.md §2 and §3 that show in one membership machine alone: the tests make its inputs, and read its
//! effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::*;
use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::{DialFailure, QuarantineReason, RejectCode};

const SECOND: Duration = Duration::from_secs(1);

fn ua(text: &str) -> UniqueAddress {
    let (name, uid) = text.split_once('#').unwrap_or((text, "1"));
    format!("{name}:1#{uid}").parse().unwrap()
}

fn address(name: &str) -> NodeAddress {
    NodeAddress::new(name, 1).unwrap()
}

/// One machine, and its clock.
struct Machine {
    core: ClusterCore,
    now: Instant,
}

impl Machine {
    fn new(name: &str, settings: ClusterSettings) -> Self {
        let now = Instant::now();
        Self { core: ClusterCore::new(ua(name), settings, 7, now), now }
    }

    /// A machine that is Up and alone, the leader of its cluster.
    fn up(name: &str, settings: ClusterSettings) -> Self {
        let mut machine = Self::new(name, settings);
        machine.command(Command::JoinSeeds(vec![ua(name).address().clone()]));
        assert_eq!(machine.core.view().self_status(), Some(MemberStatus::Up));
        machine
    }

    /// A machine with these other members, all Up.
    fn with(name: &str, settings: ClusterSettings, others: &[&str]) -> Self {
        let mut machine = Self::up(name, settings);
        for other in others {
            machine.join(other);
        }
        machine.agree(others);
        machine.run(2 * SECOND, others);
        machine.agree(others);
        assert!(others.iter().all(|other| machine.status(other) == Some(MemberStatus::Up)));
        machine
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.core.handle(self.now, input, &mut out);
        if ticks {
            assert_moved("cluster core", self.now, self.core.next_deadline());
        }
        out
    }

    fn command(&mut self, command: Command) -> Vec<Effect> {
        self.input(Input::Command(command))
    }

    fn message(&mut self, from: &str, message: Message) -> Vec<Effect> {
        let received_at = self.now;
        self.input(Input::Message { from: ua(from), message, received_at })
    }

    fn join(&mut self, who: &str) -> Vec<Effect> {
        self.join_as(who, "worker")
    }

    fn join_as(&mut self, who: &str, role: &str) -> Vec<Effect> {
        self.join_on(who, role, Some("host"))
    }

    fn join_on(&mut self, who: &str, role: &str, host: Option<&str>) -> Vec<Effect> {
        let join = Message::Join {
            roles: vec![role.into(), "dc-elsewhere".into()],
            app_version: AppVersion::default(),
            protocol: PROTOCOL,
            cluster_id: 0,
            data_center: "default".into(),
            host_id: host.map(Into::into),
        };
        self.message(who, join)
    }

    /// Gossip of another node that has made a change.
    fn gossip_from<R>(&mut self, from: &str, change: impl FnOnce(&mut Gossip) -> R) -> Vec<Effect> {
        let mut gossip = Gossip::clone(self.core.gossip());
        change(&mut gossip);
        gossip.touch(&ua(from), true);
        let to = self.core.node().clone();
        self.message(from, Message::GossipEnvelope { to, gossip: Arc::new(gossip), suspect: false })
    }

    /// A status of a member that has the same state.
    fn same_from(&mut self, from: &str) -> Vec<Effect> {
        let gossip = self.core.gossip();
        let (version, seen_digest) = (gossip.version.clone(), gossip.seen.digest());
        let to = self.core.node().clone();
        self.message(from, Message::GossipStatus { to, version, seen_digest, suspect: false })
    }

    /// Joins through `other`; returns its Welcome.
    fn welcome_from(&mut self, other: &mut Self) -> Message {
        let (own, name) = (self.core.node().clone(), other.core.node().address().host().to_owned());
        let mut out = self.command(Command::JoinSeeds(vec![other.core.node().address().clone()]));
        loop {
            let asked = sent(&out, &name).pop().expect("it asks");
            let received_at = other.now;
            let answer = other.input(Input::Message { from: own.clone(), message: asked, received_at });
            let answer = sent(&answer, own.address().host()).pop().expect("it answers");
            if matches!(answer, Message::Welcome { .. }) {
                return answer;
            }
            out = self.message(&name, answer);
        }
    }

    /// Gossip by which the other members have seen the present state.
    fn agree(&mut self, others: &[&str]) {
        let mut gossip = Gossip::clone(self.core.gossip());
        gossip.seen.extend(others.iter().map(|other| ua(other)).filter(|ua| gossip.members.contains_key(ua)));
        let to = self.core.node().clone();
        self.message(others[0], Message::GossipEnvelope { to, gossip: Arc::new(gossip), suspect: false });
    }

    /// Lets time pass; the members in `answering` answer each heartbeat.
    fn run(&mut self, time: Duration, answering: &[&str]) -> Vec<Effect> {
        let end = self.now + time;
        let mut all = Vec::new();
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let out = self.input(Input::Tick);
            for effect in &out {
                if let Effect::Send { to, message: Message::Heartbeat { seq, .. } } = effect
                    && let Some(peer) = answering.iter().find(|peer| ua(peer).address() == to.address())
                {
                    let rsp = Message::HeartbeatRsp { to: self.core.node().clone(), seq: *seq };
                    self.message(peer, rsp);
                }
            }
            all.extend(out);
        }
        self.now = end;
        all
    }

    fn status(&self, of: &str) -> Option<MemberStatus> {
        self.core.view().member(&ua(of)).map(|member| member.status)
    }

    fn ignored(&self, why: IgnoredGossip) -> u64 {
        self.core.gossip_stats().ignored.get(&why).copied().unwrap_or(0)
    }
}

fn sent(effects: &[Effect], name: &str) -> Vec<Message> {
    let to_it = |effect: &Effect| match effect {
        Effect::Send { to, message } if *to.address() == address(name) => Some(message.clone()),
        _ => None,
    };
    effects.iter().filter_map(to_it).collect()
}

fn logs(effects: &[Effect]) -> Vec<&str> {
    let text = |effect: &'_ Effect| matches!(effect, Effect::Log(..));
    let logs = effects.iter().filter(|effect| text(effect));
    logs.map(|effect| if let Effect::Log(_, text) = effect { text.as_str() } else { "" }).collect()
}

fn init_join(config: &[(&str, &str)]) -> Message {
    let config = config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Message::InitJoin { to: address("a"), protocol: PROTOCOL, config }
}

/// cluster M1, M16, M25: the role of the data centre is derived, never taken from a peer.
#[test]
fn a_joiner_is_joining_without_an_age_and_gets_the_role_of_its_data_centre() {
    let mut a = Machine::up("a", ClusterSettings::default());
    let out = a.join("b");
    assert!(matches!(&sent(&out, "b")[..], [Message::Welcome { to, .. }] if *to == ua("b")));
    let member = a.core.view().member(&ua("b")).unwrap().clone();
    assert_eq!((member.status, member.up_number), (MemberStatus::Joining, Member::NOT_UP));
    assert_eq!(member.roles.iter().map(String::as_str).collect::<Vec<_>>(), ["dc-default", "worker"]);
    assert_eq!(&*member.data_center, "default");
    let version = a.core.gossip().version.clone();
    let again = a.join("b");
    assert!(matches!(&sent(&again, "b")[..], [Message::Welcome { .. }]), "the same process again: the same answer");
    assert_eq!(a.core.gossip().version, version, "cluster M5: nothing changed");
}

/// cluster M16, M20: consecutive numbers in address order, one step per action.
#[test]
fn ages_are_given_at_once_to_all_who_come_up() {
    let a = Machine::with("a", ClusterSettings::default(), &["d", "b", "c"]);
    let numbers: Vec<u32> = a.core.view().members.iter().map(|member| member.up_number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(a.core.view().oldest(None).unwrap().address, ua("a"));
}

/// cluster M23, F1.
#[test]
fn a_node_that_has_not_joined_refuses_to_help_and_hears_nothing() {
    let mut a = Machine::new("a", ClusterSettings::default());
    assert_eq!(sent(&a.message("b", init_join(&[])), "b"), [Message::InitJoinNack]);
    let gossip = Machine::with("b", ClusterSettings::default(), &["a"]).core.gossip().clone();
    assert!(a.message("b", Message::GossipEnvelope { to: ua("a"), gossip: gossip.clone(), suspect: false }).is_empty());
    assert!(a.message("b", Message::Welcome { to: ua("a"), gossip }).is_empty(), "a asked no member to let it in");
    assert!(a.message("b", Message::Heartbeat { to: ua("a"), seq: 1 }).is_empty());
    assert_eq!((a.ignored(IgnoredGossip::NotJoined), a.ignored(IgnoredGossip::UnaskedWelcome)), (1, 1));
    assert_eq!(a.core.next_deadline(), None, "no heartbeats");
}

/// cluster M24.
#[test]
fn the_first_seed_needs_a_majority_of_nacks_and_says_what_it_waits_for() {
    let seeds = ["a", "b", "c", "d", "e"].map(address).to_vec();
    let mut a = Machine::new("a", ClusterSettings::default());
    let out = a.command(Command::JoinSeeds(seeds.clone()));
    assert_eq!(out.len(), 4, "all others are asked");
    a.message("b", Message::InitJoinNack);
    let out = a.run(16 * SECOND, &[]);
    assert_eq!(
        ["b", "c", "d", "e"].map(|name| sent(&out, name).len()),
        [16; 4],
        "each second, all that did not let it in"
    );
    let mut warnings = logs(&out);
    warnings.retain(|line| line.contains("other seed nodes answered"));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("1 of 4") && warnings[0].contains("self_join_alone"), "{warnings:?}");
    assert!(a.core.view().members.is_empty(), "two of five are no majority");
    a.message("c", Message::InitJoinNack);
    assert_eq!(a.core.view().members.len(), 1, "three of five are, and the patience is over");
    let mut quick = Machine::new("a", ClusterSettings::default());
    quick.command(Command::JoinSeeds(seeds[..3].to_vec()));
    quick.message("b", Message::InitJoinNack);
    assert!(quick.core.view().members.is_empty(), "a majority, but the other may still answer");
    quick.message("c", Message::InitJoinNack);
    assert_eq!(quick.core.view().members.len(), 1);
}

/// cluster M24: a node that is not the first of its list asks all others once in each `seed_node_timeout`, and forms no
/// cluster.
#[test]
fn nodes_other_than_the_first_seed_keep_asking_and_never_form_a_cluster() {
    let settings = ClusterSettings { self_join_alone: true, ..ClusterSettings::default() };
    let mut b = Machine::new("b", settings);
    let asked = |out: &[Effect]| ["a", "c"].map(|name| sent(out, name).len());
    let out = b.command(Command::JoinSeeds(["a", "b", "c"].map(address).to_vec()));
    assert_eq!((asked(&out), out.len()), ([1; 2], 2));
    for _ in 0..5 {
        assert!(b.message("a", Message::InitJoinNack).is_empty() && b.message("c", Message::InitJoinNack).is_empty());
        assert_eq!(asked(&b.run(5 * SECOND, &[])), [1; 2], "once in seed_node_timeout");
    }
    assert!(b.core.view().members.is_empty());
}

/// cluster M24: the first Ack is followed by a Join, later ones are ignored; and an Ack without a Welcome is remembered
/// as long as the process runs.
#[test]
fn the_first_ack_wins_and_keeps_this_process_from_forming_a_cluster() {
    let seeds = ["a", "b", "c"].map(address).to_vec();
    let settings = ClusterSettings { self_join_alone: true, ..ClusterSettings::default() };
    let mut a = Machine::new("a", settings);
    let out = a.command(Command::JoinSeeds(seeds.clone()));
    let Some(Message::InitJoin { config, .. }) = sent(&out, "b").pop() else { panic!("{out:?}") };
    let ack = || Message::InitJoinAck { cluster_id: 9, config: config.clone() };
    let out = a.message("b", ack());
    assert!(matches!(sent(&out, "b")[..], [Message::Join { cluster_id: 9, .. }]), "{out:?}");
    assert!(a.message("c", ack()).is_empty());
    for _ in 0..2 {
        a.message("b", Message::InitJoinNack);
        a.message("c", Message::InitJoinNack);
        let out = a.run(30 * SECOND, &[]);
        assert!(!sent(&out, "b").is_empty(), "without a Welcome it asks again");
        assert!(a.core.view().members.is_empty());
        // The same process joins again, from the start.
        a.command(Command::JoinSeeds(seeds.clone()));
    }
}

/// cluster M24: only a member that stays acknowledges; a member on its way out does not answer.
#[test]
fn no_member_acknowledges_once_it_is_exiting_or_down() {
    let answers = |a: &mut Machine| sent(&a.message("x", init_join(&[])), "x");
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::Leave(ua("a")));
    assert_eq!(a.status("a"), Some(MemberStatus::Leaving));
    assert!(matches!(answers(&mut a)[..], [Message::InitJoinAck { .. }]));
    a.agree(&["b", "c"]);
    a.run(2 * SECOND, &["b", "c"]);
    assert_eq!(a.status("a"), Some(MemberStatus::Exiting));
    assert!(answers(&mut a).is_empty());
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::Down(ua("a")));
    assert_eq!(a.status("a"), Some(MemberStatus::Down));
    assert!(answers(&mut a).is_empty());
}

/// cluster M24: an Ack, or a Hello that names a cluster, whenever it came, keeps this node from forming one.
#[test]
fn a_node_that_heard_of_a_cluster_never_forms_one() {
    let seeds = ["a", "b", "c"].map(address).to_vec();
    for alone in [false, true] {
        let settings = ClusterSettings { self_join_alone: alone, ..ClusterSettings::default() };
        let mut a = Machine::new("a", settings);
        a.input(Input::PeerHandshake { peer: ua("c"), cluster_id: Some(9) });
        a.command(Command::JoinSeeds(seeds.clone()));
        a.message("b", Message::InitJoinNack);
        a.message("c", Message::InitJoinNack);
        let out = a.run(30 * SECOND, &[]);
        assert!(a.core.view().members.is_empty());
        let warning = logs(&out)[0];
        assert!(warning.contains("once heard of a cluster") && warning.contains("self_join_alone"), "{warning}");
    }
    let settings = ClusterSettings { self_join_alone: true, ..ClusterSettings::default() };
    let mut alone = Machine::new("a", settings);
    alone.input(Input::PeerHandshake { peer: ua("c"), cluster_id: None });
    alone.command(Command::JoinSeeds(seeds));
    alone.run(6 * SECOND, &[]);
    assert_eq!(alone.core.view().members.len(), 1, "without an Ack it may, where the operator says so");
}

/// cluster M25a.
#[test]
fn settings_of_other_layers_must_fit_where_both_know_them_and_secrets_stay_here() {
    let mut a = Machine::up("a", ClusterSettings::default());
    for (key, value) in [("sharding.number_of_shards", "100"), ("transport.tls_key", "secret"), ("only.ours", "1")] {
        a.command(Command::RegisterJoinKey { key: key.into(), value: value.into() });
    }
    // Let the caller name the key, so that only its being a secret keeps the value from being sent.
    let theirs = ("transport.tls_key", "theirs");
    let config = [("cluster.downing", "none"), ("cluster.protocol", "1"), ("sharding.number_of_shards", "100"), theirs];
    let out = a.message("b", init_join(&config));
    let [Message::InitJoinAck { config: own, .. }] = &sent(&out, "b")[..] else { panic!("{out:?}") };
    assert!(own.contains_key("sharding.number_of_shards") && !own.contains_key("transport.tls_key"), "{own:?}");
    assert!(!own.contains_key("only.ours"), "values of the same keys");
    assert!(logs(&out).is_empty());

    let mut b = Machine::new("b", ClusterSettings::default());
    b.command(Command::RegisterJoinKey { key: "sharding.number_of_shards".into(), value: "12".into() });
    b.command(Command::RegisterJoinKey { key: "transport.tls_key".into(), value: "secret".into() });
    let asked = sent(&b.command(Command::JoinSeeds(vec![address("a")])), "a");
    let [Message::InitJoin { config, .. }] = &asked[..] else { panic!("{asked:?}") };
    assert!(config.contains_key("sharding.number_of_shards") && !config.contains_key("transport.tls_key"));
    let theirs = BTreeMap::from([
        ("cluster.downing".to_owned(), "keep_majority".to_owned()),
        ("sharding.number_of_shards".to_owned(), "100".to_owned()),
        ("unknown.here".to_owned(), "1".to_owned()),
    ]);
    let out = b.message("a", Message::InitJoinAck { cluster_id: 5, config: theirs });
    let error = out.iter().find_map(|effect| match effect {
        Effect::JoinFailed(JoinError::IncompatibleConfig { keys, .. }) => Some(keys.clone()),
        _ => None,
    });
    let keys = error.expect("refused");
    let starts = ["cluster.downing", "cluster.protocol", "sharding.number_of_shards"];
    assert!(keys.iter().zip(starts).all(|(key, start)| key.starts_with(start)) && keys.len() == 3, "{keys:?}");
    assert_eq!(logs(&out).len(), 3, "each differing key is logged");
}

/// cluster M25a, scenario 18: if equal settings are not enforced, the joiner warns of each that differs, and joins.
#[test]
fn scenario_18_settings_that_are_not_enforced_are_warned_of_and_the_joiner_joins() {
    let theirs = |downing: &str| {
        let values = [("cluster.downing", downing), ("cluster.protocol", "1")];
        values.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    };
    for (enforced, downing) in [(true, "lease_majority"), (false, "lease_majority"), (false, "none")] {
        let settings =
            ClusterSettings { enforce_config_on_join: enforced, downing: Downing::None, ..Default::default() };
        let mut b = Machine::new("b", settings);
        b.command(Command::JoinSeeds(vec![address("a")]));
        let out = b.message("a", Message::InitJoinAck { cluster_id: 5, config: theirs(downing) });
        let joins = sent(&out, "a").iter().any(|message| matches!(message, Message::Join { .. }));
        assert_eq!(joins, !enforced, "{downing}");
        let warnings = logs(&out);
        assert_eq!(warnings.len(), usize::from(downing != "none"), "{warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("cluster.downing (ours none, theirs lease_majority)")));
    }
}

/// cluster M25, §7.
#[test]
fn joins_are_refused_with_their_reason() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b"]);
    let refused = |out: Vec<Effect>| match &sent(&out, "x")[..] {
        [Message::JoinRejected { reason }] => reason.clone(),
        other => panic!("{other:?}"),
    };
    let join = |protocol, cluster_id| Message::Join {
        roles: Vec::new(),
        app_version: AppVersion::default(),
        protocol,
        cluster_id,
        data_center: "default".into(),
        host_id: None,
    };
    let reason = refused(a.message("x", join(9, 0)));
    assert_eq!(reason, JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: 9 });
    let out = a.message("x", join(PROTOCOL, 77));
    assert!(out.iter().any(|e| matches!(e, Effect::Publish(ClusterEvent::ForeignClusterDetected { theirs: 77, .. }))));
    assert_eq!(refused(out), JoinRejection::WrongCluster);
    a.command(Command::PrepareForFullShutdown);
    assert_eq!(a.status("b"), Some(MemberStatus::PreparingForShutdown));
    assert_eq!(refused(a.join("x")), JoinRejection::PreparingForShutdown);
    assert!(matches!(&sent(&a.join("b"), "b")[..], [Message::Welcome { .. }]), "who is in, is in");
}

/// cluster M25, S19: a joiner that was let in and removed before any Welcome reached it learns this only by the
/// quarantine, for no member accepts its Join any more.
#[test]
fn a_joiner_that_was_removed_before_its_welcome_ends() {
    let told = |by: &str, reason| {
        let mut joiner = Machine::new("x", ClusterSettings::default());
        joiner.command(Command::JoinSeeds(vec![address("a")]));
        let out = joiner.input(Input::ThisNodeQuarantined { by: ua(by), reason });
        out.into_iter().find_map(|effect| match effect {
            Effect::Shutdown(reason) => Some(reason),
            _ => None,
        })
    };
    assert_eq!(told("a", QuarantineReason::RemovedFromMembership), Some(ShutdownReason::Removed));
    assert_eq!(told("a", QuarantineReason::Manual), None);
    assert_eq!(told("stranger", QuarantineReason::RemovedFromMembership), None, "it was never asked");
}

/// cluster M25, M28, S20 (a): a Join changes nothing; only an answer at the address does, if it names the member's
/// host.
#[test]
fn a_process_that_can_have_replaced_the_member_waits_for_the_answer_at_its_address() {
    let off = ClusterSettings { proof_of_death: ProofOfDeath::Off, ..ClusterSettings::default() };
    let on = ClusterSettings { proof_of_death: ProofOfDeath::On, ..ClusterSettings::default() };
    for (settings, host, heir) in [
        (ClusterSettings::default(), Some("host"), true),
        (ClusterSettings::default(), Some("other"), false),
        (ClusterSettings::default(), None, false),
        (off, Some("host"), false),
        (on, None, true),
    ] {
        let mut a = Machine::with("a", settings, &["b", "c"]);
        let out = a.join_on("b#2", "worker", host);
        let deferred = sent(&out, "b").iter().any(|message| matches!(message, Message::JoinDeferred { .. }));
        let asked = out.contains(&Effect::AskWho(address("b")));
        let (holder, claimant) = (ua("b"), ua("b#2"));
        let told = out.contains(&Effect::Publish(ClusterEvent::AddressHeld { holder, claimant }));
        assert_eq!((deferred, asked, told), (heir, heir, !heir), "{host:?}");
        assert_eq!((a.status("b"), a.status("b#2")), (Some(MemberStatus::Up), None));
        assert_eq!(a.core.health(a.now).held_addresses.is_empty(), heir);
        let host_id: Option<Arc<str>> = host.map(Into::into);
        let others = Input::DialOther { peer: ua("b"), host_id: Some("host".into()) };
        assert!(a.input(others).is_empty(), "the member itself answers");
        a.input(Input::DialOther { peer: ua("b#2"), host_id });
        let stays = if heir { MemberStatus::Down } else { MemberStatus::Up };
        assert_eq!(a.status("b"), Some(stays));
        assert_eq!(a.core.gossip().members.get(&ua("b")).unwrap().dead, heir);
    }
}

/// cluster T15, M25: a process that claims the address of a member may ask to join; its other messages are dropped.
#[test]
fn a_claimant_is_heard_for_the_join_alone() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let out = a.message("b#2", Message::InitJoin { to: address("a"), protocol: PROTOCOL, config: Default::default() });
    assert!(matches!(sent(&out, "b")[..], [Message::InitJoinAck { .. }]));
    for message in [
        Message::Heartbeat { to: ua("a"), seq: 1 },
        Message::ExitingConfirmed { clean: true },
        Message::JoinRejected { reason: JoinRejection::Removed },
        Message::IslandProbe { asked: Island { cluster_id: 9, size: 9 }, nonce: 1 },
    ] {
        assert!(a.message("b#2", message.clone()).is_empty(), "{message:?}");
    }
}

/// cluster M24, T15: a process that waits for the removal of a member at its own address logs so at once and
/// every 5 s, and never forms a cluster.
#[test]
fn a_process_whose_address_is_held_never_forms_a_cluster() {
    let settings = ClusterSettings { self_join_alone: true, ..ClusterSettings::default() };
    let mut a = Machine::new("a#2", settings);
    a.command(Command::JoinSeeds(["a", "b", "c"].map(address).to_vec()));
    let refused = |holder: Option<&str>| Input::HelloRefused {
        address: address("b"),
        code: RejectCode::NotReady,
        holder: holder.map(ua),
        detail: "a:1#1 is a member at this address (Up)".to_owned(),
    };
    assert!(a.input(refused(None)).is_empty() && a.input(refused(Some("x"))).is_empty(), "not about this address");
    let out = a.input(refused(Some("a")));
    let said = logs(&out);
    assert!(said.len() == 1 && said[0].contains("a:1#1 is a member at this address (Up)"), "{said:?}");
    assert!(a.input(refused(Some("a"))).is_empty(), "just said");
    let held = HeldAddress { holder: ua("a"), claimant: ua("a#2") };
    assert_eq!(a.core.health(a.now).held_addresses, [held]);
    a.now += 5 * SECOND;
    assert_eq!(logs(&a.input(refused(Some("a")))).len(), 1, "again");
    a.message("b", Message::InitJoinNack);
    a.message("c", Message::InitJoinNack);
    a.run(30 * SECOND, &[]);
    assert!(a.core.view().members.is_empty());
}

/// cluster M10: of two members with one address on one host, the one that answers there has replaced the other one,
/// which is removed. The answering one, and both if no process answers, are judged like every member.
#[test]
fn the_replaced_one_of_two_members_with_one_address_goes() {
    for (answers, second_host, goes) in [
        (Some("b#2"), "host", Some("b")),
        (Some("b"), "host", Some("b#2")),
        (Some("b#2"), "other", None),
        (Some("b"), "other", None),
        (None, "host", None),
    ] {
        let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
        // This can happen only after a partition: a member of the other side let the second one in.
        let mut gossip = Gossip::clone(a.core.gossip());
        let second = Member::joining(ua("b#2"), Arc::default(), AppVersion::default());
        gossip.members.insert(second.on_host(Some(second_host.into())));
        gossip.touch(&ua("c"), true);
        a.message("c", Message::GossipEnvelope { to: ua("a"), gossip: Arc::new(gossip), suspect: false });
        assert_eq!(a.core.view().members.len(), 4);
        let out = a.run(SECOND, &["b", "b#2", "c"]);
        assert!(out.contains(&Effect::AskWho(address("b"))));
        if let Some(who) = answers {
            let host = if who == "b" { "host" } else { second_host };
            a.input(Input::DialOther { peer: ua(who), host_id: Some(host.into()) });
        }
        a.run(3 * SECOND, &["b", "b#2", "c"]);
        for who in ["b", "b#2"] {
            let is_down = a.status(who).is_none_or(|status| status == MemberStatus::Down);
            assert_eq!(is_down, goes == Some(who), "{answers:?} {second_host} {who}");
        }
    }
}

/// cluster M13, M14.
#[test]
fn gossip_that_is_not_for_us_is_ignored_and_counted() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let gossip = a.core.gossip().clone();
    let envelope =
        |to: &str, gossip: &Arc<Gossip>| Message::GossipEnvelope { to: ua(to), gossip: gossip.clone(), suspect: false };
    a.message("b", envelope("a#2", &gossip));
    a.message("x", envelope("a", &gossip));
    let received_at = a.now;
    a.run(3 * SECOND, &["b", "c"]);
    a.input(Input::Message { from: ua("b"), message: envelope("a", &gossip), received_at });
    let mut without = Gossip::clone(&gossip);
    without.members.remove(&ua("a"));
    a.message("b", envelope("a", &Arc::new(without)));
    let foreign = Gossip { cluster_id: 99, ..Gossip::clone(&gossip) };
    a.message("b", envelope("a", &Arc::new(foreign)));
    let status = Message::GossipStatus {
        to: ua("a"),
        version: gossip.version.clone(),
        seen_digest: gossip.seen.digest(),
        suspect: false,
    };
    let dropped = Effect::Dropped { from: ua("x"), reason: DeadLetterReason::NotAMember };
    assert_eq!(a.message("x", status.clone()), [dropped]);
    assert!(a.message("b", status).is_empty(), "the same state: nothing to say");
    for (why, count) in [
        (IgnoredGossip::NotForUs, 1),
        (IgnoredGossip::FromNonMember, 2),
        (IgnoredGossip::TooOld, 1),
        (IgnoredGossip::WithoutUs, 1),
        (IgnoredGossip::ForeignCluster, 1),
    ] {
        assert_eq!(a.ignored(why), count, "{why:?}");
    }
    assert_eq!(a.core.health(a.now).foreign_cluster, Some(ForeignCluster { cluster_id: 99, size: Some(3) }));
}

/// cluster M13: a newer status is answered by this node's status, an older or concurrent one by the state.
#[test]
fn a_status_is_answered_by_what_the_other_lacks() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let status = |a: &Machine, change: fn(&mut VectorVersion)| {
        let mut version = a.core.gossip().version.clone();
        change(&mut version);
        let seen_digest = a.core.gossip().seen.digest();
        Message::GossipStatus { to: ua("a"), version, seen_digest, suspect: false }
    };
    let newer = status(&a, |version| version.increment(&ua("b")));
    assert!(matches!(sent(&a.message("b", newer), "b")[..], [Message::GossipStatus { .. }]));
    let older = status(&a, |version| *version = VectorVersion::default());
    assert!(matches!(sent(&a.message("b", older), "b")[..], [Message::GossipEnvelope { .. }]));
}

/// cluster M12: while a member is Down, gossip is sent three times per interval.
#[test]
fn gossip_hurries_while_somebody_is_down() {
    let gossips = |out: &[Effect]| {
        let gossip = |m: &Message| matches!(m, Message::GossipEnvelope { .. } | Message::GossipStatus { .. });
        ["b", "c", "d"].iter().map(|peer| sent(out, peer).iter().filter(|m| gossip(m)).count()).sum::<usize>()
    };
    let others = ["b", "c", "d"];
    let mut a = Machine::with("a", ClusterSettings::default(), &others);
    let calm = gossips(&a.run(4 * SECOND, &others));
    a.command(Command::Down(ua("d")));
    let hurried = gossips(&a.run(4 * SECOND, &others));
    assert!((4..=5).contains(&calm) && hurried >= 3 * calm - 3, "{calm} and {hurried}");
}

/// cluster M15, M27.
#[test]
fn downed_members_are_told_directly_and_downing_twice_changes_nothing() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let out = a.command(Command::Down(ua("c")));
    assert!(sent(&out, "c").iter().any(|message| matches!(message, Message::GossipEnvelope { .. })));
    assert!(!a.core.gossip().seen.contains(&ua("c")));
    assert!(a.command(Command::Down(ua("c"))).is_empty());
    assert!(a.command(Command::Leave(ua("c"))).is_empty(), "cluster M26: one that is Down goes on as it is");
    assert!(a.command(Command::Leave(ua("x"))).is_empty());
}

/// cluster M17, M19, M36: the blockers of the leader's actions are in its log and in its health.
#[test]
fn a_leader_that_cannot_act_says_who_keeps_it() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let out = a.run(100 * SECOND, &["b"]);
    let stuck: Vec<&str> = logs(&out).into_iter().filter(|text| text.contains("cannot act")).collect();
    assert_eq!(stuck.len(), 2, "at the 20th tick and at the 60th: {stuck:?}");
    assert!(stuck[0].contains("c:1#1"), "{stuck:?}");
    let health = a.core.health(a.now);
    assert!(health.initialized && !health.converged && !health.is_good() && health.blocked_ticks > 60);
    assert_eq!(health.blockers.accusations, [(ua("a"), ua("c"))]);
    assert_eq!(health.unreachable[&ua("c")].iter().collect::<Vec<_>>(), [&ua("a")]);
}

/// cluster M22.
#[test]
fn members_stay_joining_until_each_role_has_enough() {
    let role_min_number_of_members = BTreeMap::from([("worker".to_owned(), 2)]);
    let mut a = Machine::new("a", ClusterSettings { role_min_number_of_members, ..ClusterSettings::default() });
    a.command(Command::JoinSeeds(vec![address("a")]));
    a.join("b");
    a.agree(&["b"]);
    a.run(3 * SECOND, &["b"]);
    assert_eq!(a.status("b"), Some(MemberStatus::Joining));
    a.join("c");
    a.agree(&["b", "c"]);
    a.run(2 * SECOND, &["b", "c"]);
    assert_eq!([a.status("a"), a.status("b"), a.status("c")], [Some(MemberStatus::Up); 3]);
}

/// cluster M26: a confirmation that comes early is kept, and the exit is clean.
#[test]
fn an_exit_confirmed_before_we_know_of_it_counts_later() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::Leave(ua("c")));
    a.message("c", Message::ExitingConfirmed { clean: true });
    assert_eq!(a.status("c"), Some(MemberStatus::Leaving));
    a.agree(&["b", "c"]);
    let out = a.run(4 * SECOND, &["b", "c"]);
    a.agree(&["b"]);
    let out = [out, a.run(3 * SECOND, &["b"])].concat();
    let removed = out.iter().any(|effect| {
        matches!(effect, Effect::Publish(ClusterEvent::MemberRemoved { member, clean: true, .. }) if member.address == ua("c"))
    });
    assert!(removed, "{:?}", a.core.view());
}

/// cluster M31.
#[test]
fn joins_and_answers_wait_for_the_version_that_comes_later() {
    let mut a = Machine::new("a", ClusterSettings::default());
    a.command(Command::AwaitAppVersion);
    a.command(Command::JoinSeeds(vec![address("a")]));
    assert!(a.message("b", init_join(&[])).is_empty(), "no answer either");
    a.run(30 * SECOND, &[]);
    assert!(a.core.view().members.is_empty());
    a.command(Command::SetAppVersion("2.1".parse().unwrap()));
    assert_eq!(a.core.view().self_member().unwrap().app_version.as_str(), "2.1");
    a.command(Command::SetAppVersion("3.0".parse().unwrap()));
    assert_eq!(a.core.view().self_member().unwrap().app_version.as_str(), "2.1", "a member's never changes");
}

/// cluster M25b: all messages of a process whose Hello named another cluster are refused, except those that both
/// clusters must exchange.
#[test]
fn a_stranger_is_refused_and_weighed_by_the_four_numbers() {
    let settings =
        ClusterSettings { on_foreign_cluster: OnForeignCluster::LeaveIfSmaller, ..ClusterSettings::default() };
    let mut a = Machine::with("a", settings, &["b", "c"]);
    let out = a.input(Input::PeerHandshake { peer: ua("x"), cluster_id: Some(9) });
    let foreign = |out: &[Effect]| {
        out.iter().find_map(|effect| match effect {
            Effect::Publish(ClusterEvent::ForeignClusterDetected { theirs, size }) => Some((*theirs, *size)),
            _ => None,
        })
    };
    assert_eq!(foreign(&out), Some((9, None)));
    assert!(a.join("x").is_empty() && a.message("x", Message::Heartbeat { to: ua("a"), seq: 1 }).is_empty());
    assert_eq!(a.status("x"), None);
    let own = Island { cluster_id: a.core.view().cluster_id, size: 3 };
    // Scenario 78: the question of a stranger is answered and asked in turn, and decides nothing by itself.
    let boast = Island { cluster_id: 9, size: u32::MAX };
    let out = a.message("x", Message::IslandProbe { asked: boast, nonce: 4 });
    let said = sent(&out, "x");
    assert_eq!(said[0], Message::IslandProbeAnswer { asked: boast, own, nonce: 4 });
    let [_, Message::IslandProbe { asked, nonce }] = said[..] else { panic!("{said:?}") };
    assert_eq!((asked, foreign(&out)), (own, None));
    let out = a.message("x", Message::IslandProbe { asked: boast, nonce: 5 });
    assert_eq!(sent(&out, "x").len(), 1, "asked in turn once, and answered each time");
    let small = Island { cluster_id: 9, size: 2 };
    let answer = |asked, own, nonce| Message::IslandProbeAnswer { asked, own, nonce };
    a.message("y", answer(own, boast, nonce));
    a.message("x", answer(own, boast, nonce ^ 1));
    a.message("x", answer(Island { size: 2, ..own }, boast, nonce));
    assert_eq!(a.status("a"), Some(MemberStatus::Up), "another address, number or question");
    let out = a.message("x", answer(own, small, nonce));
    assert_eq!(foreign(&out), Some((9, Some(2))));
    a.message("x", answer(own, boast, nonce));
    assert_eq!(a.status("a"), Some(MemberStatus::Up), "the bigger one stays, and an answer counts once");
    a.run(11 * SECOND, &["b", "c"]);
    let big = Island { cluster_id: 9, size: 7 };
    let out = a.message("x", Message::IslandProbe { asked: big, nonce: 6 });
    let [_, Message::IslandProbe { nonce, .. }] = sent(&out, "x")[..] else { panic!("{out:?}") };
    let out = a.message("x", answer(own, big, nonce));
    assert!(out.contains(&Effect::Publish(ClusterEvent::SelfDowned)));
    assert_eq!(["a", "b", "c"].map(|name| a.status(name)), [Some(MemberStatus::Down); 3], "the whole cluster ends");
    let equal = |id| Island { cluster_id: id, size: 2 };
    assert!(equal(5).yields_to(equal(4)) && !equal(4).yields_to(equal(5)), "of equal ones the higher id");
}

/// cluster T17, scenario 77: messages that only members may send are dropped and counted when a stranger sends them.
#[test]
fn a_stranger_is_believed_about_nothing_but_itself() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let before = a.core.gossip().clone();
    let to = a.core.node().clone();
    let mut gossip = Gossip::clone(&before);
    gossip.members.insert(Member { up_number: u32::MAX - 1, ..gossip.members.get(&ua("b")).unwrap().clone() });
    gossip.touch(&ua("x"), false);
    let version = gossip.version.clone();
    for message in [
        Message::GossipEnvelope { to: to.clone(), gossip: Arc::new(gossip), suspect: false },
        Message::GossipStatus { to: to.clone(), version, seen_digest: u64::MAX, suspect: false },
        Message::ExitingConfirmed { clean: true },
        Message::HeartbeatRsp { to: to.clone(), seq: u64::MAX },
    ] {
        let out = a.message("x", message);
        assert_eq!(out, [Effect::Dropped { from: ua("x"), reason: DeadLetterReason::NotAMember }]);
    }
    // A rejection by a stranger changes nothing either: this node still belongs to the cluster.
    let reason = JoinRejection::Removed;
    assert!(a.message("x", Message::JoinRejected { reason }).is_empty());
    assert_eq!(a.core.gossip(), &before);
    let out = a.message("x", Message::Heartbeat { to, seq: u64::MAX });
    assert_eq!(sent(&out, "x").len(), 1, "every process that asks for a sign of life gets one (F1)");
}

/// cluster M28: a node that was let in and hears no member asks again. Only a member's rejection ends the node.
#[test]
fn a_stranger_cannot_tell_a_joining_node_that_it_was_removed() {
    let mut b = Machine::up("b", ClusterSettings::default());
    let mut a = Machine::new("a", ClusterSettings::default());
    let welcome = a.welcome_from(&mut b);
    a.message("b", welcome);
    assert_eq!(a.core.view().self_status(), Some(MemberStatus::Joining));
    let rejected = || Message::JoinRejected { reason: JoinRejection::Removed };
    assert!(a.message("x", rejected()).is_empty());
    assert!(a.message("b", rejected()).contains(&Effect::Shutdown(ShutdownReason::Removed)));
}

/// cluster M24: an Ack from a node that was not asked does not keep the first seed from forming its cluster.
#[test]
fn an_ack_that_nobody_asked_for_is_none() {
    let mut a = Machine::new("a", ClusterSettings::default());
    a.command(Command::JoinSeeds(vec![address("a"), address("b")]));
    let config = CheckedConfig::default();
    a.message("x", Message::InitJoinAck { cluster_id: 9, config });
    a.message("b", Message::InitJoinNack);
    assert_eq!(a.core.view().self_status(), Some(MemberStatus::Up));
}

/// cluster T17, scenario 77: numbers that no member can have counted up to are refused from every sender, and members
/// count on from forged numbers within the bound.
#[test]
fn numbers_beyond_reach_are_refused_and_those_within_are_climbed_above() {
    const WALL: u64 = 1_795_000_000_000;
    let settings = || ClusterSettings::default();
    let mut a = Machine::with("a", settings(), &["b", "c"]);
    a.input(Input::WallClock(WALL));
    let to = a.core.node().clone();
    let version = |count| -> VectorVersion { ["a", "b", "c"].map(|name| (ua(name), count)).into_iter().collect() };
    let beyond = Effect::Dropped { from: ua("b"), reason: DeadLetterReason::BeyondReach };
    let (before, mut gossip) = (a.core.gossip().clone(), Gossip::clone(a.core.gossip()));
    gossip.version = version(u64::MAX).into();
    let envelope =
        |gossip: &Gossip| Message::GossipEnvelope { to: to.clone(), gossip: Arc::new(gossip.clone()), suspect: false };
    assert_eq!(a.message("b", envelope(&gossip)), std::slice::from_ref(&beyond));
    let status =
        Message::GossipStatus { to: to.clone(), version: version(u64::MAX).into(), seen_digest: 0, suspect: false };
    assert_eq!(a.message("b", status), std::slice::from_ref(&beyond));
    let mut gossip = Gossip::clone(&before);
    gossip.members.get_mut(&ua("c")).unwrap().up_number = u32::MAX - 1;
    gossip.touch(&ua("b"), false);
    assert_eq!(a.message("b", envelope(&gossip)), [beyond]);
    assert_eq!(a.core.gossip(), &before);
    assert_eq!(a.ignored(IgnoredGossip::BeyondReach), 3);
    // The largest accepted number: this node goes on counting, and others accept its next state, too.
    let mut gossip = Gossip::clone(&before);
    gossip.version = version((WALL + 86_400_000) * 1024).into();
    a.message("b", envelope(&gossip));
    a.command(Command::Leave(ua("c")));
    let after = a.core.gossip().clone();
    assert!(after.version.count(&ua("a")) > (WALL + 86_400_000) * 1024);
    let mut b = Machine::with("b", settings(), &["a", "c"]);
    b.input(Input::WallClock(WALL + 1));
    let mut theirs = Gossip::clone(&after);
    theirs.cluster_id = b.core.gossip().cluster_id;
    b.message("a", Message::GossipEnvelope { to: ua("b"), gossip: Arc::new(theirs), suspect: false });
    assert_eq!(b.ignored(IgnoredGossip::BeyondReach), 0);
    assert_eq!(b.core.gossip().version.count(&ua("a")), after.version.count(&ua("a")));
}

/// cluster M25b: a leader asks the seeds often while it is new, then once a minute.
#[test]
fn a_leader_asks_every_seed_whether_it_is_a_stranger() {
    let mut a = Machine::up("a", ClusterSettings { seed_nodes: vec![address("z")], ..ClusterSettings::default() });
    let probes = |out: Vec<Effect>| sent(&out, "z").iter().filter(|m| matches!(m, Message::IslandProbe { .. })).count();
    assert_eq!(probes(a.run(600 * SECOND, &[])), 60);
    assert_eq!(probes(a.run(600 * SECOND, &[])), 10);
}

/// cluster §7: the failed join changes nothing, and another join may be tried.
#[test]
fn seeds_of_another_name_fail_the_join_and_change_nothing() {
    let mut a = Machine::new("a", ClusterSettings::default());
    a.command(Command::JoinSeeds(vec![address("b"), address("c")]));
    let detail = "the caller's cluster is \"shop\", ours is \"depot\"".to_owned();
    let rejected = |name| Input::HelloRefused {
        address: address(name),
        code: RejectCode::WrongCluster,
        holder: None,
        detail: detail.clone(),
    };
    assert!(a.input(rejected("b")).is_empty(), "the other seed may be right");
    let out = a.input(rejected("c"));
    let error = JoinError::WrongCluster { ours: "shop".into(), theirs: "depot".into() };
    assert_eq!(out, [Effect::JoinFailed(error)]);
    a.command(Command::JoinSeeds(vec![address("a")]));
    assert_eq!(a.core.view().members.len(), 1);
    let out = a.command(Command::JoinSeeds(vec![address("b")]));
    assert_eq!(out, [Effect::JoinFailed(JoinError::AlreadyMember)]);
    let mut x = Machine::new("x", ClusterSettings::default());
    assert_eq!(x.command(Command::JoinSeeds(Vec::new())), [Effect::JoinFailed(JoinError::NoSeeds)]);
    assert!(matches!(parse_seed_nodes(["a:1", "b c:1"]), Err(JoinError::InvalidAddress { .. })));
    for wrong in ["", "a", "a:0", "a b:1", "a.b_c:1", ":1"] {
        assert!(parse_seed_nodes([wrong]).is_err(), "{wrong}");
    }
}

/// The log names a seed that is wrong or gone, with the outcome of the dials; the error at the end of the time limit
/// names each seed; and the line of a deadline comes once.
#[test]
fn seeds_that_let_nobody_in_are_told_by_name_and_at_the_end_of_the_join() {
    let patience = Some(10 * SECOND);
    let settings =
        ClusterSettings { shutdown_after_unsuccessful_join_seed_nodes: patience, ..ClusterSettings::default() };
    let mut x = Machine::new("x", settings);
    x.command(Command::JoinSeeds(["a", "b", "c"].map(address).to_vec()));
    let unreached = |name, failure| Input::Unreached { address: address(name), failure };
    assert!(x.input(unreached("a", DialFailure::Refused)).is_empty(), "not at once");
    let detail = "the caller's cluster is \"shop\", ours is \"depot\"".to_owned();
    x.input(Input::HelloRefused { address: address("b"), code: RejectCode::WrongCluster, holder: None, detail });
    x.message("c", Message::InitJoinNack);
    let out = x.run(Duration::from_millis(2900), &[]);
    assert!(logs(&out).is_empty(), "{out:?}");
    let out = x.run(Duration::from_millis(200), &[]);
    let told = logs(&out);
    assert_eq!(told.len(), 1, "{told:?}");
    for words in [
        "for 3 s; a:1: 1 dial failed, the connection was refused",
        "b:1: it refused: the caller's cluster is \"shop\"",
        "c:1: it answers, and is no member",
    ] {
        assert!(told[0].contains(words), "{words}: {told:?}");
    }
    let out = x.run(8 * SECOND, &[]);
    let Some(Effect::JoinFailed(error)) = out.iter().find(|effect| matches!(effect, Effect::JoinFailed(_))) else {
        panic!("it gives up: {out:?}");
    };
    let JoinError::Unsuccessful(seeds) = error else { panic!("{error}") };
    assert_eq!(seeds.iter().map(|report| report.seed.to_string()).collect::<Vec<_>>(), ["a:1", "b:1", "c:1"]);
    assert_eq!(seeds[0].answer, SeedAnswer::Unreached(DialFailure::Refused));
    let text = error.to_string();
    assert!(
        text.contains("shutdown_after_unsuccessful_join_seed_nodes") && text.contains("a:1: 1 dial failed"),
        "{text}"
    );
}

/// cluster F1: an initialized node answers every process that asks, for its own incarnation only.
#[test]
fn heartbeats_are_answered_to_anybody_who_means_this_process() {
    let mut a = Machine::up("a", ClusterSettings::default());
    let out = a.message("x", Message::Heartbeat { to: ua("a"), seq: 4 });
    assert_eq!(sent(&out, "x"), [Message::HeartbeatRsp { to: ua("x"), seq: 4 }]);
    assert!(a.message("x", Message::Heartbeat { to: ua("a#2"), seq: 4 }).is_empty());
    let out = a.join("b");
    assert!(out.iter().all(|e| !matches!(e, Effect::Send { message: Message::Heartbeat { .. }, .. })));
    assert_eq!(a.core.next_deadline(), Some(a.now), "the first heartbeat is due at once");
}

/// cluster F3, F8: an accusation of a member that the ring has dropped is taken back when the member answers.
#[test]
fn an_answering_member_is_reachable_again_also_when_it_is_watched_no_more() {
    let detector = FailureDetectorSettings { monitored_by_nr_of_members: 1, ..FailureDetectorSettings::default() };
    let settings = ClusterSettings { failure_detector: detector, ..ClusterSettings::default() };
    // On the ring of uids: a, then c, then e; b and d come between.
    let mut a = Machine::with("a#1", settings, &["c#30", "e#50"]);
    a.run(10 * SECOND, &["e#50"]);
    assert!(a.core.view().unreachable.contains(&ua("c#30")));
    a.join("b#20");
    a.agree(&["b#20", "e#50"]);
    a.run(3 * SECOND, &["b#20", "e#50"]);
    a.run(4 * SECOND, &["b#20", "c#30", "e#50"]);
    assert!(a.core.view().unreachable.is_empty(), "{:?}", a.core.gossip().reachability);
}

/// cluster F9, G4: a jump of time is a pause of this process, for which it accuses no peer.
#[test]
fn a_pause_blames_nobody_and_holds_decisions() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.now += 8 * SECOND;
    let out = a.input(Input::Tick);
    assert!(out.iter().any(|effect| matches!(effect, Effect::Publish(ClusterEvent::LocalPause(_)))));
    assert!(!out.contains(&Effect::Publish(ClusterEvent::SelfSuspect)), "shorter than stable_after");
    a.join("d");
    a.agree(&["b", "c", "d"]);
    a.run(2 * SECOND, &["b", "c", "d"]);
    assert_eq!(a.status("d"), Some(MemberStatus::Joining), "no leader action for three heartbeats");
    a.run(3 * SECOND, &["b", "c", "d"]);
    assert_eq!(a.status("d"), Some(MemberStatus::Up));
    assert!(a.core.view().unreachable.is_empty());
    a.now += 25 * SECOND;
    let out = a.input(Input::Tick);
    assert!(out.contains(&Effect::Publish(ClusterEvent::SelfSuspect)), "it may have been removed");
    assert!(a.core.view().self_suspect);
    a.agree(&["b"]);
    assert!(!a.core.view().self_suspect, "a member that trusts itself has confirmed it");
}

/// cluster F9: a message that a peer sent before this process woke proves nothing about the peer since.
#[test]
fn gossip_that_waited_in_a_socket_while_this_process_slept_makes_no_node_trusted() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let (to, gossip) = (a.core.node().clone(), a.core.gossip().clone());
    let (version, seen_digest) = (gossip.version.clone(), gossip.seen.digest());
    let status = Message::GossipStatus { to: to.clone(), version, seen_digest, suspect: false };
    let envelope = Message::GossipEnvelope { to, gossip, suspect: false };
    a.now += 25 * SECOND;
    a.input(Input::Tick);
    a.message("b", envelope.clone());
    a.message("b", status.clone());
    assert!(a.core.view().self_suspect, "both were sent before it woke");
    a.agree(&["b"]);
    assert!(!a.core.view().self_suspect, "it has heard of this process since");

    // Nor does old gossip hide that several stops in a row were one long silence.
    a.run(3 * SECOND, &["b", "c"]);
    let old = Message::GossipEnvelope { to: a.core.node().clone(), gossip: a.core.gossip().clone(), suspect: false };
    a.now += 12 * SECOND;
    a.input(Input::Tick);
    a.message("b", old.clone());
    assert!(!a.core.view().self_suspect);
    a.now += 12 * SECOND;
    a.message("b", old);
    assert!(a.core.view().self_suspect, "no member has answered it for 24 s");
}

/// cluster F9: the tick is published first, because tasks that wake with the process read it first.
#[test]
fn the_tick_says_where_this_node_stands_before_it_does_anything() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let first = |out: &[Effect]| out.first().cloned();
    let says = |now, standing| Some(Effect::Ticked { at: now, standing });
    let standings = |out: &[Effect]| out.iter().filter(|effect| matches!(effect, Effect::Ticked { .. })).count();
    a.now = a.core.next_deadline().expect("a member ticks");
    let out = a.input(Input::Tick);
    assert_eq!((first(&out), standings(&out)), (says(a.now, Standing::Trusted), 1));
    a.now += 8 * SECOND;
    let out = a.input(Input::Tick);
    assert_eq!(first(&out), says(a.now, Standing::Trusted), "shorter than stable_after: no node can have taken over");
    a.now += 25 * SECOND;
    let out = a.same_from("b");
    assert_eq!(first(&out), says(a.now, Standing::Held), "whatever wakes it");
    a.now = a.core.next_deadline().expect("a member ticks");
    assert_eq!(first(&a.input(Input::Tick)), says(a.now, Standing::Held));
    let out = a.gossip_from("b", |_| {});
    assert_eq!(first(&out), says(a.now, Standing::Trusted), "it is confirmed");
    let out = a.command(Command::Down(ua("a")));
    assert_eq!(first(&out), says(a.now, Standing::Held), "it was declared dead");
    let out = a.command(Command::Stop(ShutdownReason::Stopped));
    assert_eq!(first(&out), says(a.now, Standing::Ended));
}

/// The members that a decision downs, if one was published.
fn downs(out: &[Effect]) -> Option<Vec<UniqueAddress>> {
    out.iter().find_map(|effect| match effect {
        Effect::Publish(ClusterEvent::DowningDecision(decision)) => Some(decision.downed.clone()),
        _ => None,
    })
}

/// cluster F9: a node that may have been removed meanwhile downs no other member, even if a decision is due.
#[test]
fn a_suspect_node_downs_nobody_else() {
    let downing = Downing::SplitBrainResolver(SbrSettings::default());
    let mut a = Machine::with("a", ClusterSettings { downing, ..Default::default() }, &["b", "c", "d", "e"]);
    a.run(10 * SECOND, &["b", "c", "d"]);
    assert_eq!(*a.core.view().unreachable, [ua("e")].into());
    a.now += 25 * SECOND;
    let out = a.input(Input::Tick);
    assert!(out.contains(&Effect::Publish(ClusterEvent::SelfSuspect)));
    assert_eq!(downs(&a.run(15 * SECOND, &["b", "c", "d"])), None);
    a.agree(&["b"]);
    assert_eq!(downs(&a.run(2 * SECOND, &["b", "c", "d"])), Some(vec![ua("e")]), "trusted again");
}

/// cluster F10: if more than half of the peers fall silent at once while this node lags, it defers their marks, once.
#[test]
fn a_node_that_lags_gives_its_peers_one_more_pause() {
    let marked_after = |lags: bool| {
        let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c", "d"]);
        a.run(5 * SECOND, &["b", "c", "d"]);
        let silent_from = a.now;
        a.run(4 * SECOND, &[]);
        if lags {
            // Run one heartbeat round late, by more than an interval (lag) and by less than a pause.
            a.now = a.core.next_deadline().unwrap() + Duration::from_millis(1500);
            a.input(Input::Tick);
        }
        while a.core.view().unreachable.is_empty() {
            a.run(Duration::from_millis(100), &[]);
            assert!(a.now < silent_from + 30 * SECOND);
        }
        a.now - silent_from
    };
    let (prompt, late) = (marked_after(false), marked_after(true));
    assert!(late >= prompt + 2 * SECOND, "{prompt:?} and {late:?}");
}

/// cluster F10, F9, G1: after a pause each peer has its whole time again, and not one pause more.
#[test]
fn a_process_that_stood_still_marks_its_peers_when_their_time_is_over() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c", "d"]);
    a.run(5 * SECOND, &["b", "c", "d"]);
    a.now = a.core.next_deadline().unwrap() + 8 * SECOND;
    a.input(Input::Tick);
    let woke_at = a.now;
    while a.core.view().unreachable.len() < 3 {
        a.run(Duration::from_millis(100), &[]);
        assert!(a.now < woke_at + 30 * SECOND);
    }
    let marked_after = a.now - woke_at;
    assert!((4 * SECOND..7 * SECOND).contains(&marked_after), "{marked_after:?}");
}

/// cluster F10: marks are deferred only for more than half of the peers, within 10 s of the lag, by one pause, once.
#[test]
fn marks_are_put_off_for_most_peers_after_a_recent_lag_once_and_by_one_pause() {
    const ALL: [&str; 4] = ["b", "c", "d", "e"];
    fn lag(a: &mut Machine) {
        a.now = a.core.next_deadline().unwrap() + Duration::from_millis(1500);
        a.input(Input::Tick);
    }
    /// How long after all peers but `heard` fell silent one of them is marked. `lags`: whether this node is late 3 s
    /// after that.
    fn marked_after(a: &mut Machine, lags: bool, heard: &[&str]) -> Duration {
        let from = a.now;
        if lags {
            a.run(3 * SECOND, heard);
            lag(a);
        }
        while a.core.view().unreachable.is_empty() {
            a.run(Duration::from_millis(100), heard);
            assert!(a.now < from + 40 * SECOND);
        }
        a.now - from
    }
    let machine = || {
        let mut a = Machine::with("a", ClusterSettings::default(), &ALL);
        a.run(12 * SECOND, &ALL);
        a
    };
    let prompt = marked_after(&mut machine(), false, &[]);
    let is_prompt = |took: Duration| took + SECOND >= prompt && took <= prompt + SECOND;
    let mut a = machine();
    let late = marked_after(&mut a, true, &[]);
    assert!((prompt + 2 * SECOND..=prompt + 5 * SECOND).contains(&late), "by one pause: {prompt:?}, {late:?}");
    while !a.core.view().unreachable.is_empty() {
        a.run(Duration::from_millis(100), &ALL);
    }
    let again = marked_after(&mut a, true, &[]);
    assert!(is_prompt(again), "once: {prompt:?}, {again:?}");
    let half = marked_after(&mut machine(), true, &["b", "c"]);
    assert!(is_prompt(half), "half is not more than half: {prompt:?}, {half:?}");
    let mut long_ago = machine();
    lag(&mut long_ago);
    long_ago.run(11 * SECOND, &ALL);
    let long_after = marked_after(&mut long_ago, false, &[]);
    assert!(is_prompt(long_after), "the lag is long ago: {prompt:?}, {long_after:?}");
}

/// cluster F10, S4: there is no verdict on a part of the marks.
#[test]
fn no_verdict_is_taken_while_marks_are_put_off() {
    let settings = ClusterSettings::default().with_resolver(SbrSettings::default());
    let mut a = Machine::with("a", settings, &["b", "c", "d", "e"]);
    while a.core.view().unreachable.is_empty() {
        a.run(Duration::from_millis(100), &["b", "c", "d"]);
    }
    assert_eq!(downs(&a.run(14 * SECOND, &["b", "c", "d"])), None);
    assert_eq!(downs(&a.run(Duration::from_millis(3_500), &[])), None);
    a.now = a.core.next_deadline().unwrap() + Duration::from_millis(1_500);
    assert_eq!(downs(&a.input(Input::Tick)), None);
    for _ in 0..60 {
        assert_eq!(downs(&a.run(Duration::from_millis(100), &[])), None, "{:?}", a.core.view().unreachable);
    }
    assert_eq!(a.core.view().unreachable.len(), 4);
}

/// cluster F9, scenario 64: a verdict that fell due during a pause waits for three heartbeats, and no longer.
#[test]
fn scenario_64_a_verdict_that_is_due_on_waking_waits_for_three_heartbeats() {
    let settings = ClusterSettings::default().with_resolver(SbrSettings::default());
    let mut a = Machine::with("a", settings, &["b", "c", "d", "e"]);
    while a.core.view().unreachable.is_empty() {
        a.run(Duration::from_millis(100), &["b", "c", "d"]);
    }
    assert_eq!(downs(&a.run(17 * SECOND, &["b", "c", "d"])), None);
    a.agree(&["b"]);
    a.now += 5 * SECOND;
    assert_eq!(downs(&a.input(Input::Tick)), None);
    assert_eq!(downs(&a.run(Duration::from_millis(2_900), &["b", "c", "d"])), None);
    assert_eq!(downs(&a.run(2 * SECOND, &["b", "c", "d"])), Some(vec![ua("e")]));
}

/// cluster F10: an Exiting node blames no peer, a Leaving one does.
#[test]
fn an_exiting_node_blames_no_peer_and_a_leaving_one_does() {
    for (status, blames) in [(MemberStatus::Leaving, true), (MemberStatus::Exiting, false)] {
        let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
        a.gossip_from("b", |gossip| gossip.members.get_mut(&ua("a")).unwrap().status = status);
        let marks = (0..100).any(|_| {
            a.run(Duration::from_millis(100), &[]);
            !a.core.view().unreachable.is_empty()
        });
        assert_eq!(marks, blames, "{status}");
    }
}

/// cluster F10.
#[test]
fn a_node_past_its_own_leaving_blames_nobody() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::LeavePhasePassed);
    a.run(20 * SECOND, &[]);
    assert!(a.core.view().unreachable.is_empty());
    let reason = QuarantineReason::DeliveryGaveUp;
    a.input(Input::PeerQuarantined { peer: ua("b"), reason, harmless: false });
    assert!(a.core.view().unreachable.is_empty());
}

/// cluster F11, M7: a quarantined member is unreachable for good, and downed only by the strategy or an operator.
#[test]
fn a_quarantined_member_stays_unreachable_and_is_not_downed() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let reason = QuarantineReason::DeliveryGaveUp;
    a.input(Input::PeerQuarantined { peer: ua("b"), reason, harmless: false });
    a.run(30 * SECOND, &["b", "c"]);
    assert_eq!(a.core.gossip().reachability.status(&ua("a"), &ua("b")), Status::Terminated);
    assert_eq!(a.status("b"), Some(MemberStatus::Up));
    assert!(a.input(Input::PeerQuarantined { peer: ua("x"), reason, harmless: false }).is_empty());
    let settings = ClusterSettings::default().with_resolver(SbrSettings::default());
    let mut decides = Machine::with("a", settings, &["b", "c"]);
    let out = decides.input(Input::PeerQuarantined { peer: ua("b"), reason, harmless: false });
    let is_b_unreachable =
        |effect: &Effect| matches!(effect, Effect::Publish(ClusterEvent::UnreachableMember(b)) if b.address == ua("b"));
    assert!(out.iter().any(is_b_unreachable));
    decides.run(10 * SECOND, &["b", "c"]);
    assert_eq!(decides.status("b"), Some(MemberStatus::Up), "not by itself");
    let out = decides.run(20 * SECOND, &["b", "c"]);
    let is_decision = |effect: &Effect| matches!(effect, Effect::Publish(ClusterEvent::DowningDecision(_)));
    assert!(out.iter().any(is_decision), "the strategy decides");
    assert_eq!(decides.status("b"), Some(MemberStatus::Down), "and what it decides is done");
    a.command(Command::Down(ua("b")));
    assert_eq!(a.status("b"), Some(MemberStatus::Down), "or an operator");
}

/// cluster F11: quarantining a member that announced its end is no warning; quarantining one that is cut off is.
#[test]
fn a_member_that_announced_its_end_is_quarantined_without_a_warning() {
    let levels = |harmless| {
        let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
        let reason = QuarantineReason::RemovedFromMembership;
        let out = a.input(Input::PeerQuarantined { peer: ua("b"), reason, harmless });
        let level = |effect: &Effect| match effect {
            Effect::Log(level, _) => Some(*level),
            _ => None,
        };
        out.iter().filter_map(level).collect::<Vec<_>>()
    };
    assert_eq!((levels(true), levels(false)), (vec![LogLevel::Info], vec![LogLevel::Warn]));
}

/// cluster M32, scenario 35: listeners are never told that this node is unreachable, whichever member accuses it.
#[test]
fn scenario_35_this_node_is_never_told_as_unreachable() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let out = a.gossip_from("c", |gossip| {
        gossip.reachability.set(&ua("c"), &ua("a"), Status::Unreachable);
        gossip.reachability.set(&ua("c"), &ua("b"), Status::Unreachable);
    });
    assert!(a.core.gossip().reachability.accusations().any(|(_, subject, _)| *subject == ua("a")), "it knows of it");
    let told = out.iter().filter_map(|effect| match effect {
        Effect::Publish(ClusterEvent::UnreachableMember(member)) => Some(member.address.clone()),
        _ => None,
    });
    assert!(told.eq([ua("b")]) && a.core.view().unreachable.iter().eq([&ua("b")]));
    let published =
        out.iter().filter_map(|effect| if let Effect::Publish(event) = effect { Some(event) } else { None });
    let published: Vec<&ClusterEvent> = published.collect();
    let is_last = matches!(published[..], [.., ClusterEvent::SeenChanged { .. }, ClusterEvent::ReachabilityChanged]);
    assert!(is_last, "cluster M33: {published:?}");
}

/// cluster F12, M11: gossip of a member that only others find unreachable is accepted, and gossip may be sent to it.
#[test]
fn gossip_of_a_member_that_only_others_accuse_is_taken() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let mut gossip = Gossip::clone(a.core.gossip());
    gossip.reachability.set(&ua("c"), &ua("b"), Status::Unreachable);
    gossip.touch(&ua("c"), true);
    a.message("c", Message::GossipEnvelope { to: ua("a"), gossip: Arc::new(gossip), suspect: false });
    assert!(a.core.view().unreachable.contains(&ua("b")), "cluster M3: a flag, and no status");
    assert_eq!(a.status("b"), Some(MemberStatus::Up));
    let taken = a.core.gossip_stats().received;
    a.agree(&["b"]);
    assert_eq!(a.core.gossip_stats().received, taken + 1);
    assert!(a.core.gossip().valid_targets(&ua("a")).any(|target| *target == ua("b")));
}

/// cluster M4, M14: a broken state is repaired, counted, and harms no member.
#[test]
fn a_broken_state_from_a_peer_is_repaired_and_counted() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let mut gossip = Gossip::clone(a.core.gossip());
    gossip.seen.insert(ua("ghost"));
    gossip.version.increment(&ua("ghost"));
    gossip.reachability.set(&ua("ghost"), &ua("c"), Status::Unreachable);
    gossip.touch(&ua("b"), true);
    gossip.seen.insert(ua("ghost"));
    a.message("b", Message::GossipEnvelope { to: ua("a"), gossip: Arc::new(gossip), suspect: false });
    assert!(a.core.gossip().is_sound() && a.core.view().unreachable.is_empty());
    assert_eq!(a.core.gossip_stats().repaired, 1);
}

/// cluster §6 (`publish_stats_interval`).
#[test]
fn counters_are_published_when_wanted() {
    let settings = ClusterSettings { publish_stats_interval: Some(10 * SECOND), ..ClusterSettings::default() };
    let mut a = Machine::with("a", settings, &["b"]);
    let out = a.run(35 * SECOND, &["b"]);
    let stats =
        |effect: &&Effect| matches!(effect, Effect::Publish(ClusterEvent::GossipStats(stats)) if stats.received > 0);
    assert_eq!(out.iter().filter(stats).count(), 3);
}

/// cluster C1, C2, C3, C4: the same inputs and seed give the same effects, and a tick that comes early or twice changes
/// nothing.
#[test]
fn the_same_inputs_give_the_same_effects() {
    let now = Instant::now();
    let run = |extra_ticks: bool| {
        let core = ClusterCore::new(ua("a"), ClusterSettings::default(), 7, now);
        let mut a = Machine { core, now };
        a.command(Command::JoinSeeds(vec![address("a")]));
        for peer in ["d", "b", "c"] {
            a.join(peer);
        }
        let mut out = a.run(3 * SECOND, &["b", "c"]);
        if extra_ticks {
            let says = [Effect::Ticked { at: a.now, standing: Standing::Trusted }];
            assert_eq!(a.input(Input::Tick), says, "it ticked, and had nothing to do");
            assert_eq!(a.input(Input::Tick), says);
        }
        out.extend(a.run(30 * SECOND, &["b", "c"]));
        out
    };
    assert_eq!(run(false), run(false));
    assert_eq!(run(false), run(true));
}

fn is_gossip(message: &Message) -> bool {
    matches!(message, Message::GossipEnvelope { .. } | Message::GossipStatus { .. })
}

/// cluster S20: a member with a confirmed exit is not dialled: its listener was to close, and its exit stays as clean
/// as it reported.
#[test]
fn scenario_62_a_confirmed_exit_is_not_dialled_any_more() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::Leave(ua("b")));
    a.agree(&["b", "c"]);
    a.run(2 * SECOND, &["b", "c"]);
    assert_eq!(a.status("b"), Some(MemberStatus::Exiting));
    // Keep the state from converging by another member, so that the Exiting one is not removed yet.
    a.run(15 * SECOND, &["b"]);
    assert!(a.core.view().unreachable.contains(&ua("c")));
    assert!(a.input(Input::LinkLost(ua("b"))).contains(&Effect::Dial(ua("b"))));
    a.message("b", Message::ExitingConfirmed { clean: false });
    let mut out = Vec::new();
    for _ in 0..5 {
        out.extend(a.input(Input::DialRefused(ua("b"))));
        out.extend(a.run(SECOND / 5, &["b"]));
    }
    assert!(!out.contains(&Effect::Dial(ua("b"))));
    assert!(!a.core.view().member(&ua("b")).unwrap().dead && a.status("b") == Some(MemberStatus::Exiting));
}

/// cluster F9: a suspect node's time limit does not restart whenever its host stops for a moment.
#[test]
fn a_suspect_that_stops_now_and_then_ends_all_the_same() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.now += 25 * SECOND;
    assert!(a.input(Input::Tick).contains(&Effect::Publish(ClusterEvent::SelfSuspect)));
    let since = a.now;
    let mut out = Vec::new();
    while !out.contains(&Effect::Publish(ClusterEvent::SelfDowned)) {
        a.now += 5 * SECOND;
        out.extend(a.input(Input::Tick));
        out.extend(a.run(5 * SECOND, &["b", "c"]));
        assert!(a.now <= since + 30 * SECOND, "the node goes on though no member confirms it");
    }
    assert!(a.now >= since + 20 * SECOND);
}

/// cluster M35: a node that ends while it joins must not become a member, since it would never leave in order.
#[test]
fn a_join_is_given_up_when_the_node_ends() {
    for ends in [false, true] {
        let mut b = Machine::up("b", ClusterSettings::default());
        let mut a = Machine::new("a", ClusterSettings::default());
        let welcome = a.welcome_from(&mut b);
        if ends {
            a.command(Command::AbandonJoin);
        }
        a.message("b", welcome);
        assert_eq!(a.core.view().members.is_empty(), ends);
    }
}

/// cluster M25: a status of the same state counts as gossip; only a joiner that hears none asks again.
#[test]
fn a_joiner_that_hears_statuses_does_not_ask_again() {
    let mut b = Machine::up("b", ClusterSettings::default());
    let mut a = Machine::new("a", ClusterSettings::default());
    let welcome = a.welcome_from(&mut b);
    a.message("b", welcome);
    let asks = |out: &[Effect]| sent(out, "b").iter().any(|message| matches!(message, Message::Join { .. }));
    for _ in 0..30 {
        a.same_from("b");
        let out = a.run(SECOND, &["b"]);
        assert!(!asks(&out) && a.status("a") == Some(MemberStatus::Joining));
    }
    assert!(asks(&a.run(11 * SECOND, &["b"])), "then no member is heard");
}

/// cluster M25b: each of several foreign clusters is reported now and then, not at each message.
#[test]
fn two_foreign_clusters_are_no_flood_of_news() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    let mut out = Vec::new();
    let mut met = |a: &mut Machine| {
        for (who, id) in [("x", 8), ("y", 9)] {
            out.extend(a.input(Input::PeerHandshake { peer: ua(who), cluster_id: Some(id) }));
        }
        for seq in 0..50 {
            out.extend(a.message("x", Message::Heartbeat { to: ua("a"), seq }));
            out.extend(a.message("y", Message::Heartbeat { to: ua("a"), seq }));
        }
        let news = |effect: &&Effect| matches!(effect, Effect::Publish(ClusterEvent::ForeignClusterDetected { .. }));
        out.iter().filter(news).count()
    };
    assert_eq!(met(&mut a), 2);
    a.now += 10 * SECOND;
    assert_eq!(met(&mut a), 4);
}

/// cluster M24.
#[test]
fn a_seed_named_twice_has_one_voice() {
    let mut a = Machine::new("a", ClusterSettings::default());
    let out = a.command(Command::JoinSeeds(["a", "b", "b", "b"].map(address).to_vec()));
    assert_eq!(out.len(), 1, "it is asked once");
    a.message("b", Message::InitJoinNack);
    assert_eq!(a.core.view().members.len(), 1, "all others know of no cluster");
}

/// cluster M21, M22.
#[test]
fn joining_members_become_weakly_up_at_the_seventh_blocked_tick() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.agree(&["b", "c"]);
    while !a.core.view().unreachable.contains(&ua("c")) {
        a.run(SECOND / 10, &["b"]);
    }
    a.join("d");
    let mut ticks = 0;
    while a.status("d") == Some(MemberStatus::Joining) {
        ticks = a.core.health(a.now).blocked_ticks;
        assert!(ticks < 7, "not later either");
        a.run(SECOND / 10, &["b", "d"]);
    }
    assert_eq!(ticks, 6, "until then it is Joining");
    assert_eq!(a.status("d"), Some(MemberStatus::WeaklyUp));
}

/// cluster M21, M22, scenario 25: a joining node does not become WeaklyUp either while there are fewer members than the
/// minimum, in all or of a role.
#[test]
fn scenario_25_no_member_is_weakly_up_before_enough_have_joined_in_all_and_of_each_role() {
    let minimum = |all, of_workers| ClusterSettings {
        min_number_of_members: all,
        role_min_number_of_members: [("worker".to_owned(), of_workers)].into(),
        ..ClusterSettings::default()
    };
    let let_in = |all, of_workers| {
        // The others came Up under a smaller minimum, as with nodes whose settings differ.
        let mut other = Machine::with("b", ClusterSettings::default(), &["c"]);
        let mut a = Machine::new("a", minimum(all, of_workers));
        let welcome = a.welcome_from(&mut other);
        a.message("b", welcome);
        a.gossip_from("b", |gossip| {
            let members: Vec<Member> = gossip.members.values().cloned().collect();
            for (member, number) in members.into_iter().zip(1..) {
                gossip.members.insert(Member { status: MemberStatus::Up, up_number: number, ..member });
            }
        });
        a.agree(&["b", "c"]);
        assert_eq!(a.core.view().leader, Some(ua("a")), "it is this node's to let in");
        while !a.core.view().unreachable.contains(&ua("c")) {
            a.run(SECOND / 10, &["b"]);
        }
        a.join("d");
        a.run(20 * SECOND, &["b", "d"]);
        assert!(a.core.health(a.now).blocked_ticks > 7, "the tick at which it would be let in is past");
        a.status("d").unwrap()
    };
    assert_eq!(let_in(4, 2), MemberStatus::WeaklyUp);
    assert_eq!(let_in(5, 2), MemberStatus::Joining, "four of five");
    assert_eq!(let_in(4, 3), MemberStatus::Joining, "two workers of three");
}

/// cluster M14.
#[test]
fn gossip_of_whom_this_node_itself_finds_unreachable_is_ignored() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.run(15 * SECOND, &["b"]);
    assert_eq!(a.core.gossip().reachability.status(&ua("a"), &ua("c")), Status::Unreachable);
    a.gossip_from("c", |gossip| gossip.members.get_mut(&ua("b")).unwrap().status = MemberStatus::Down);
    assert!(a.same_from("c").is_empty());
    assert_eq!(a.ignored(IgnoredGossip::FromUnreachable), 2);
    assert_eq!(a.status("b"), Some(MemberStatus::Up));
}

/// cluster M11.
#[test]
fn scenario_34_gossip_prefers_members_that_have_not_seen_and_spares_silent_ones() {
    let others = ["b", "c", "d", "e"];
    let mut a = Machine::with("a", ClusterSettings::default(), &others);
    let to = |out: &[Effect], name: &str| sent(out, name).iter().filter(|message| is_gossip(message)).count();
    a.gossip_from("b", |_| ());
    a.agree(&["b", "c", "d"]);
    let out = a.run(200 * SECOND, &others);
    let (to_e, all) = (to(&out, "e"), others.iter().map(|name| to(&out, name)).sum::<usize>());
    assert!((190..=210).contains(&all) && to_e * 100 / all > 75 && to_e < all, "{to_e} of {all}");
    a.run(15 * SECOND, &["b", "c", "d"]);
    assert_eq!(a.core.gossip().reachability.status(&ua("a"), &ua("e")), Status::Unreachable);
    assert_eq!(to(&a.run(100 * SECOND, &["b", "c", "d"]), "e"), 0);
}

/// cluster M11, F12: a member that others find unreachable is gossiped to all the same.
#[test]
fn scenario_34_a_member_that_only_others_accuse_is_gossiped_to() {
    let others = ["b", "c", "d"];
    let mut a = Machine::with("a", ClusterSettings::default(), &others);
    a.gossip_from("c", |gossip| gossip.reachability.set(&ua("c"), &ua("b"), Status::Unreachable));
    assert!(a.core.view().unreachable.contains(&ua("b")));
    let out = a.run(60 * SECOND, &others);
    assert!(sent(&out, "b").iter().any(is_gossip));
}

/// cluster M11: with the bias always on, only members are drawn that have not seen the state, while there are any; with
/// the bias off, all members are.
#[test]
fn scenario_34_with_the_bias_only_those_are_drawn_that_have_not_seen_it_and_without_it_all() {
    for (probability, drawn) in [(1.0, ["e"].as_slice()), (0.0, &["b", "c", "d", "e"])] {
        let others = ["b", "c", "d", "e"];
        let settings = ClusterSettings { gossip_different_view_probability: probability, ..Default::default() };
        let mut a = Machine::with("a", settings, &others);
        a.gossip_from("b", |_| ());
        a.agree(&["b", "c", "d"]);
        let out = a.run(100 * SECOND, &others);
        let hears = |name: &&str| sent(&out, name).iter().any(is_gossip);
        assert!(others.into_iter().filter(hears).eq(drawn.iter().copied()), "{probability}");
    }
}

/// cluster M15: the two oldest members, of all and of each role of the exiting member, are told of its exit at once.
#[test]
fn oldest_members_get_exits_at_once() {
    let mut a = Machine::up("a", ClusterSettings::default());
    let others = ["b", "c", "d", "e", "f", "g", "h"];
    for (who, role) in others.iter().zip(["w", "w", "w", "w", "x", "x", "x"]) {
        a.join_as(who, role);
    }
    a.agree(&others);
    a.run(2 * SECOND, &others);
    a.command(Command::Leave(ua("h")));
    a.agree(&others);
    let mut out = Vec::new();
    while a.status("h") == Some(MemberStatus::Leaving) {
        a.now = a.core.next_deadline().expect("a member");
        out = a.input(Input::Tick);
    }
    let heard = |name: &&str| sent(&out, name).iter().any(is_gossip);
    let told: Vec<&str> = others.into_iter().filter(heard).collect();
    assert!(["b", "f", "g", "h"].iter().all(|who| told.contains(who)), "{told:?}");
    assert!(told.len() <= 5, "and one drawn, if it was time: {told:?}");
}

/// cluster M27: a node that is Down waits for other Down nodes to be informed, but for four ticks at most.
#[test]
fn a_downed_node_tells_the_others_that_are_down_for_four_ticks_at_most() {
    for informed in [true, false] {
        let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
        a.command(Command::Down(ua("c")));
        assert!(a.command(Command::Down(ua("a"))).contains(&Effect::Publish(ClusterEvent::SelfDowned)));
        if informed {
            a.agree(&["b", "c"]);
        }
        let since = a.now;
        let ended = |out: &[Effect]| out.contains(&Effect::Shutdown(ShutdownReason::Downed));
        while !ended(&a.run(SECOND / 10, &["b", "c"])) {
            assert!(a.now < since + 5 * SECOND);
        }
        let took = a.now - since;
        assert!(if informed { took <= SECOND } else { took > 3 * SECOND && took <= 4 * SECOND }, "{took:?}");
    }
}

/// cluster T19 (c): the delay before quarantining a process that left ends when the next process comes.
#[test]
fn a_new_process_at_the_address_ends_the_patience_with_the_one_that_left() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    a.command(Command::Leave(ua("c")));
    a.agree(&["b", "c"]);
    a.run(2 * SECOND, &["b", "c"]);
    a.agree(&["b", "c"]);
    a.message("c", Message::ExitingConfirmed { clean: true });
    assert_eq!(a.status("c"), None);
    let quarantine = Effect::Quarantine { peer: ua("c"), harmless: true };
    assert!(!a.run(4 * SECOND, &["b"]).contains(&quarantine), "it may still read what it was sent");
    assert!(a.join("c#2").contains(&quarantine));
    assert!(!a.run(10 * SECOND, &["b", "c#2"]).contains(&quarantine), "once");
}

/// cluster M17, M20: a Down member's accusations of others count for nothing.
#[test]
fn down_members_accusations_do_not_remove_exiting_members() {
    let others = ["b", "c", "d"];
    let mut a = Machine::with("a", ClusterSettings::default(), &others);
    a.command(Command::Leave(ua("c")));
    a.agree(&others);
    a.run(2 * SECOND, &others);
    a.gossip_from("b", |gossip| {
        gossip.members.get_mut(&ua("d")).unwrap().status = MemberStatus::Down;
        gossip.reachability.set(&ua("d"), &ua("c"), Status::Unreachable);
    });
    a.agree(&others);
    a.run(3 * SECOND, &others);
    assert!(a.core.view().converged && a.status("c") == Some(MemberStatus::Exiting));
    a.gossip_from("b", |gossip| gossip.reachability.set(&ua("b"), &ua("c"), Status::Unreachable));
    a.agree(&others);
    a.run(2 * SECOND, &others);
    assert_eq!(a.status("c"), None, "the word of a living one counts");
}

/// cluster M18, M29, M33.
#[test]
fn a_change_is_told_in_one_order_the_leaders_of_roles_too() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b", "c"]);
    assert_eq!(a.core.view().role_leaders["worker"], ua("b"), "a has no such role");
    assert_eq!(a.core.view().role_leaders["dc-default"], ua("a"));
    let stone = |clean| Tombstone { wall_ms: 1, clean, ..Tombstone::default() };
    let out = a.gossip_from("c", |gossip| {
        gossip.tombstones.insert(ua("z"), stone(false));
        gossip.members.get_mut(&ua("b")).unwrap().status = MemberStatus::Down;
        gossip.reachability.set(&ua("c"), &ua("b"), Status::Unreachable);
    });
    let told: Vec<&ClusterEvent> =
        out.iter().filter_map(|effect| if let Effect::Publish(event) = effect { Some(event) } else { None }).collect();
    let leader = Some(ua("c"));
    let expected = |event: &ClusterEvent, place: usize| match (place, event) {
        (0, ClusterEvent::TombstoneAdded { address, clean: false }) => *address == ua("z"),
        (1, ClusterEvent::MemberDowned(member)) | (2, ClusterEvent::UnreachableMember(member)) => {
            member.address == ua("b")
        }
        (3, ClusterEvent::RoleLeaderChanged { role, leader: now }) => role == "worker" && *now == leader,
        (4, ClusterEvent::SeenChanged { .. }) | (5, ClusterEvent::ReachabilityChanged) => true,
        _ => false,
    };
    assert!(told.len() == 6 && told.iter().enumerate().all(|(place, event)| expected(event, place)), "{told:?}");
    let out = a.gossip_from("c", |gossip| gossip.tombstones.insert(ua("z"), stone(true)));
    assert!(out.contains(&Effect::Publish(ClusterEvent::TombstoneClean(ua("z")))), "{out:?}");
}

/// cluster S20, M20: while a dead member awaits its removal, the leader is told at once of news that may let it act.
#[test]
fn while_a_death_waits_news_goes_to_the_leader_at_once() {
    let mut b = Machine::with("b", ClusterSettings::default(), &["a", "c", "d", "e"]);
    assert_eq!(b.core.view().leader, Some(ua("a")));
    let told = |out: &[Effect]| sent(out, "a").iter().any(|said| matches!(said, Message::GossipEnvelope { .. }));
    assert!(!told(&b.command(Command::Down(ua("e")))), "without a death the next gossip does");
    b.input(Input::DeathWitnessed(ua("c")));
    assert!(told(&b.command(Command::Down(ua("d")))));
    assert!(b.status("c").is_some(), "only the leader removes");
}

/// cluster M26: a leaver whose others are all certainly gone is alone, and being alone is no isolation.
#[test]
fn a_leaver_that_is_alone_takes_its_time() {
    let mut a = Machine::with("a", ClusterSettings::default(), &["b"]);
    a.command(Command::Leave(ua("a")));
    a.input(Input::DeathWitnessed(ua("b")));
    let out = a.run(120 * SECOND, &[]);
    let isolated = |effect: &&Effect| matches!(effect, Effect::Shutdown(ShutdownReason::LeaveIsolated));
    assert_eq!(out.iter().find(isolated), None, "its exiting tasks may take as long as they need");
}

/// cluster M24: half of the list founds no cluster; a majority does, or one seed with `self_join_alone`, but only once
/// the rest answered or had its time.
#[test]
fn half_of_the_list_founds_nothing_and_a_majority_waits_for_the_rest() {
    let seeds = ["a", "b", "c", "d"].map(address).to_vec();
    let founds = |alone: bool, nacks: &[&str]| {
        let mut a = Machine::new("a", ClusterSettings { self_join_alone: alone, ..ClusterSettings::default() });
        a.command(Command::JoinSeeds(seeds.clone()));
        nacks.iter().for_each(|name| drop(a.message(name, Message::InitJoinNack)));
        a.run(Duration::from_millis(4_900), &[]);
        assert!(a.core.view().members.is_empty(), "the rest may still answer: {alone}, {nacks:?}");
        a.run(Duration::from_millis(200), &[]);
        let in_time = a.core.view().members.len() == 1;
        a.run(20 * SECOND, &[]);
        assert_eq!(a.core.view().members.len() == 1, in_time, "then or never");
        in_time
    };
    assert!(!founds(false, &["b"]), "two of four are no majority");
    assert!(founds(false, &["b", "c"]) && founds(true, &[]));
}
