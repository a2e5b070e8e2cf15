//! Requests of users to the coordinator, as the region's machine sends them: repeated until they are answered or time
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::AppVersion;
use greylag_core::UniqueAddress;
use greylag_sharding::Omissions;
use greylag_sharding::fingerprint::{Fingerprint, StateStoreMode};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::membership::{MemberFacts, MemberPhase, Members};
use greylag_sharding::machine::message::{CoordinatorId, CoordinatorMessage, FromCoordinator, RegionMessage};
use greylag_sharding::machine::region::{Answer, Effect, Input, Region, RegionConfig, Request, RequestEnd};
use greylag_sharding::settings::ShardingSettings;
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::Lane;

const TIMEOUT: Duration = Duration::from_secs(6);

struct Harness {
    now: Instant,
    region: Region,
}

fn node() -> UniqueAddress {
    "a:1#1".parse().unwrap()
}

fn region() -> RegionId {
    RegionId { node: node(), incarnation: 1 }
}

fn shard(index: u32) -> ShardId {
    ShardId::from_index(index)
}

fn stop(shards: &[u32]) -> Request {
    Request::StopShards(shards.iter().copied().map(shard).collect())
}

impl Harness {
    fn new(remember_entities: bool) -> Self {
        let fingerprint = Fingerprint {
            protocol_major: 1,
            type_name: "Entity".into(),
            extractor: ("HashV1".into(), 1),
            number_of_shards: 12,
            remember_entities,
            remember_entities_store: "ddata".into(),
            state_store_mode: StateStoreMode::Ddata,
            role: String::new(),
            codec: Vec::new(),
        };
        let now = Instant::now();
        let config = RegionConfig {
            id: region(),
            proxy: false,
            fingerprint,
            coordinator_role: String::new(),
            settings: ShardingSettings::test(),
            lane_of: Arc::new(|_| Lane::ordinary(0)),
            omissions: Omissions::default(),
        };
        let facts = MemberFacts {
            phase: MemberPhase::Up,
            up_number: 1,
            reachable: true,
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
        };
        let members = Members { members: BTreeMap::from([(node(), facts)]), removed: BTreeMap::new() };
        let mut harness = Self { now, region: Region::new(config, now) };
        harness.tell(Input::Membership(Arc::new(members)));
        harness
    }

    /// The messages to the coordinator, and the answers to the user.
    fn tell(&mut self, input: Input) -> (Vec<RegionMessage>, Vec<(u64, Answer)>) {
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.region.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("region", self.now, self.region.next_deadline());
        }
        let (mut asked, mut answers) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::SendCoordinator {
                    message: message @ (RegionMessage::StopShards { .. } | RegionMessage::GetCurrentRegions { .. }),
                    ..
                } => asked.push(message),
                Effect::Answer { number, answer } => answers.push((number, answer)),
                _ => {}
            }
        }
        (asked, answers)
    }

    fn order(&mut self, message: CoordinatorMessage) -> (Vec<RegionMessage>, Vec<(u64, Answer)>) {
        let coordinator = CoordinatorId { node: node(), incarnation: 7 };
        let message = FromCoordinator { coordinator, epoch: 7, to: Some(region()), message };
        self.tell(Input::FromCoordinator { node: node(), message })
    }

    fn register(&mut self) -> Vec<RegionMessage> {
        self.order(CoordinatorMessage::RegisterAck { serial: 1 }).0
    }

    fn request(&mut self, number: u64, request: Request) -> (Vec<RegionMessage>, Vec<(u64, Answer)>) {
        self.tell(Input::Request { number, request, timeout: TIMEOUT })
    }

    fn after(&mut self, time: Duration) -> (Vec<RegionMessage>, Vec<(u64, Answer)>) {
        self.now += time;
        self.tell(Input::Tick)
    }
}

fn asked(request: u64, shards: &[u32]) -> RegionMessage {
    RegionMessage::StopShards { region: region(), request, shards: shards.iter().copied().map(shard).collect() }
}

#[test]
fn a_request_to_stop_shards_is_repeated_with_the_remaining_shards() {
    let mut harness = Harness::new(false);
    // Without a coordinator the request waits for one.
    assert_eq!(harness.request(1, stop(&[1, 2, 3])), (vec![], vec![]));
    assert_eq!(harness.register(), [asked(1, &[1, 2, 3])]);
    let told = harness.order(CoordinatorMessage::ShardsStopped { request: 1, shards: vec![shard(2), shard(9)] });
    assert_eq!(told, (vec![], vec![(1, Answer::ShardsStopped(vec![shard(2)]))]));
    assert_eq!(harness.after(Duration::from_millis(199)), (vec![], vec![]));
    assert_eq!(harness.after(Duration::from_millis(1)), (vec![asked(1, &[1, 3])], vec![]));
    // Each shard is reported once.
    let all = CoordinatorMessage::ShardsStopped { request: 1, shards: [1, 2, 3].map(shard).to_vec() };
    let rest = (1, Answer::ShardsStopped(vec![shard(1), shard(3)]));
    assert_eq!(harness.order(all.clone()), (vec![], vec![rest, (1, Answer::Ended(RequestEnd::Complete))]));
    assert_eq!(harness.order(all), (vec![], vec![]));
    assert_eq!(harness.after(Duration::from_secs(60)), (vec![], vec![]));
}

#[test]
fn a_request_ends_when_its_time_is_over_or_the_region_has_stopped() {
    let mut harness = Harness::new(false);
    harness.register();
    assert_eq!(harness.request(1, stop(&[])).1, [(1, Answer::Ended(RequestEnd::Complete))]);
    assert_eq!(harness.request(2, stop(&[1])).0, [asked(2, &[1])]);
    harness.after(TIMEOUT - Duration::from_millis(1));
    assert_eq!(harness.after(Duration::from_millis(1)), (vec![], vec![(2, Answer::Ended(RequestEnd::TimedOut))]));
    let late = harness.order(CoordinatorMessage::ShardsStopped { request: 2, shards: vec![shard(1)] });
    assert_eq!(late, (vec![], vec![]));
    harness.request(3, stop(&[1]));
    assert_eq!(harness.tell(Input::Stop).1, [(3, Answer::Ended(RequestEnd::RegionStopped))]);
    assert_eq!(harness.request(4, stop(&[1])).1, [(4, Answer::Ended(RequestEnd::RegionStopped))]);
    assert_eq!(harness.request(5, Request::CurrentRegions).1, [(5, Answer::Ended(RequestEnd::RegionStopped))]);
}

/// Sharding scenario 40: a type that remembers its entities. Its region refuses without asking; a proxy, which does not
/// know that, gets the refusal from the coordinator.
#[test]
fn scenario_40_shards_of_a_type_that_remembers_are_not_stopped() {
    let refused = [(1, Answer::Ended(RequestEnd::NotAllowedWithRememberEntities))];
    let mut harness = Harness::new(true);
    harness.register();
    assert_eq!(harness.request(1, stop(&[1])), (vec![], refused.to_vec()));
    let mut harness = Harness::new(false);
    harness.register();
    harness.request(1, stop(&[1]));
    harness.request(2, Request::CurrentRegions);
    assert_eq!(
        harness.order(CoordinatorMessage::StopShardsRefused { request: 2 }),
        (vec![], vec![]),
        "not of this kind"
    );
    assert_eq!(harness.order(CoordinatorMessage::StopShardsRefused { request: 1 }), (vec![], refused.to_vec()));
}

#[test]
fn the_regions_are_asked_for_only_where_a_coordinator_is_known() {
    let mut harness = Harness::new(false);
    assert_eq!(harness.request(1, Request::CurrentRegions).1, [(1, Answer::Ended(RequestEnd::NoCoordinator))]);
    harness.register();
    let question = RegionMessage::GetCurrentRegions { region: region(), request: 2 };
    assert_eq!(harness.request(2, Request::CurrentRegions), (vec![question.clone()], vec![]));
    assert_eq!(harness.after(Duration::from_millis(200)), (vec![question], vec![]));
    let regions = vec![region()];
    let told = harness.order(CoordinatorMessage::CurrentRegions { request: 2, regions: regions.clone() });
    let complete = (2, Answer::Ended(RequestEnd::Complete));
    assert_eq!(told, (vec![], vec![(2, Answer::CurrentRegions(regions)), complete]));
}
