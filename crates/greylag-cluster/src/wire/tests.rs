use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::membership::message::PROTOCOL;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

fn gossip() -> Arc<Gossip> {
    let mut gossip = Gossip { cluster_id: u128::MAX - 5, ..Gossip::default() };
    for (name, status) in "abcdefgh".chars().zip(MemberStatus::ALL) {
        let roles = Arc::new(BTreeSet::from(["dc-default".to_owned(), format!("role-{name}")]));
        let mut member = Member::joining(node(name), roles, "1.2.3+4-x".parse().unwrap());
        member.status = status;
        member.dead = status == MemberStatus::Down;
        member.up_number = if status > MemberStatus::WeaklyUp { name as u32 } else { Member::NOT_UP };
        gossip.members.insert(member);
        gossip.version.increment(&node(name));
    }
    gossip.seen.insert(node('a'));
    gossip.reachability.set(&node('a'), &node('b'), Status::Unreachable);
    gossip.reachability.set(&node('a'), &node('c'), Status::Terminated);
    gossip.reachability.set(&node('d'), &node('c'), Status::Unreachable);
    gossip.reachability.set(&node('d'), &node('c'), Status::Reachable);
    gossip
        .tombstones
        .insert(node('z'), Tombstone { wall_ms: 7, clean: true, dead: true, host_id: Some("boot/net:[4]".into()) });
    Arc::new(gossip)
}

fn messages() -> Vec<Message> {
    let config: BTreeMap<String, String> = [("cluster.downing".to_owned(), "none".to_owned())].into();
    vec![
        Message::InitJoin { to: "b:2".parse().unwrap(), protocol: PROTOCOL, config: config.clone() },
        Message::InitJoinAck { cluster_id: 5 << 80, config },
        Message::InitJoinNack,
        Message::IslandProbe { asked: Island { cluster_id: 7, size: 3 }, nonce: 8 },
        Message::IslandProbeAnswer {
            asked: Island { cluster_id: 7, size: 3 },
            own: Island { cluster_id: u128::MAX, size: 2 },
            nonce: u64::MAX,
        },
        Message::Join {
            data_center: "default".into(),
            roles: vec!["x".into()],
            app_version: "2.0-M1".parse().unwrap(),
            protocol: PROTOCOL,
            cluster_id: 0,
            host_id: Some("boot/net:[4]".into()),
        },
        Message::JoinDeferred { retry_after: Duration::from_millis(1500) },
        Message::JoinRejected { reason: JoinRejection::Removed },
        Message::JoinRejected { reason: JoinRejection::PreparingForShutdown },
        Message::JoinRejected { reason: JoinRejection::IncompatibleProtocol { ours: 1, theirs: 2 } },
        Message::JoinRejected { reason: JoinRejection::WrongCluster },
        Message::Welcome { to: node('b'), gossip: gossip() },
        Message::GossipEnvelope { to: node('b'), gossip: gossip(), suspect: true },
        Message::GossipStatus { to: node('b'), version: gossip().version.clone(), seen_digest: 9, suspect: false },
        Message::ExitingConfirmed { clean: true },
        Message::Heartbeat { to: node('b'), seq: 4 },
        Message::HeartbeatRsp { to: node('b'), seq: 4 },
    ]
}

#[test]
fn every_message_comes_back() {
    for message in messages() {
        let bytes = encode(&message);
        assert_eq!(decode(message.manifest(), bytes).as_ref(), Ok(&message));
    }
    for kind in [Kind::HandOverToMe, Kind::HandOverInProgress, Kind::HandOverDone, Kind::TakeOverFromMe] {
        let message = SingletonMessage { kind, from: node('a'), to: node('b'), attempt: 7 };
        assert_eq!(decode_singleton(encode_singleton(&message)), Ok(message));
    }
}

#[test]
fn an_unknown_manifest_is_named() {
    assert!(matches!(decode("cluster.nope", Bytes::new()), Err(DecodeError::UnknownManifest { .. })));
}

proptest! {
    #[test]
    fn broken_bytes_are_refused_without_a_panic(which in 0..17_usize, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let message = &messages()[which];
        let mut bytes = encode(message).to_vec();
        if !bytes.is_empty() {
            let index = at.index(bytes.len());
            bytes[index] = byte;
            if cut {
                bytes.truncate(index);
            }
        }
        let _read_or_refused = decode(message.manifest(), bytes.clone().into());
        let _read_or_refused = decode_singleton(bytes.into());
    }
}

/// Cluster T35, T36; issue "Done when" 7, in short. `fuzz/` runs the same for millions of inputs.
#[test]
fn damaged_messages_are_refused_or_read_and_nothing_else() {
    let examples: Vec<_> = messages().iter().map(crate::testing::fuzzing::input).collect();
    greylag_testkit::mutations::damaged(&examples, 20_000, 1, crate::testing::fuzzing::message);
}

#[test]
fn damaged_singleton_messages_are_refused_or_read_and_nothing_else() {
    let kind = Kind::HandOverToMe;
    let message = SingletonMessage { kind, from: node('a'), to: node('b'), attempt: 7 };
    let examples = [encode_singleton(&message).to_vec()];
    greylag_testkit::mutations::damaged(&examples, 20_000, 2, crate::testing::fuzzing::singleton);
}

/// Cluster P8, T36.
#[test]
fn proxy_messages_survive_the_wire_and_nonsense_is_refused() {
    use crate::singleton::ProxyMessage;
    for message in [
        ProxyMessage::Identify,
        ProxyMessage::Here { instance: 7 },
        ProxyMessage::NotHere { instance: Some(u64::MAX) },
        ProxyMessage::NotHere { instance: None },
    ] {
        assert_eq!(decode_proxy(encode_proxy(message)), Ok(message));
    }
    let unknown = pb::SingletonProxy { kind: 9, instance: 1 }.encode_to_vec();
    let nameless = pb::SingletonProxy { kind: pb::singleton_proxy::Kind::Here.into(), instance: 0 }.encode_to_vec();
    for bytes in [unknown, nameless, vec![0xff]] {
        assert!(decode_proxy(bytes.into()).is_err());
    }
    let examples: Vec<Vec<u8>> = [ProxyMessage::Identify, ProxyMessage::Here { instance: u64::MAX }]
        .map(|message| encode_proxy(message).to_vec())
        .into();
    greylag_testkit::mutations::damaged(&examples, 20_000, 5, crate::testing::fuzzing::singleton_proxy);
}
