//! Hostile callers: each is refused, counted, and named in the log, and the traffic of others goes on.

#[path = "suite/common/mod.rs"]
mod common;

use common::{logs, raw};
use std::time::Duration;

use common::certificates::{Authority, with};
use common::raw::{Hello, Raw};
use common::{LONG, Node, node, until};
use greylag_core::DeadLetterReason;
use greylag_transport::{AskError, Intrusion, RejectCode, Remoting, TransportEvent, TransportSettings};

const HOST: &str = "127.0.0.1";

/// A pair of nodes that talk to each other while one of them is attacked.
struct Scene {
    friend: Node,
    target: Node,
    told: u32,
}

impl Scene {
    async fn new(settings: impl Fn(&str) -> TransportSettings) -> Self {
        logs::keep();
        let (friend, target) = (node(settings("friend")).await, node(settings("target")).await);
        let mut scene = Self { friend, target, told: 1000 };
        scene.goes_on().await;
        scene
    }

    async fn plain() -> Self {
        Self::new(|_| TransportSettings::test()).await
    }

    fn port(&self) -> u16 {
        self.target.port()
    }

    /// Checks that the friend's next message arrives, and that its streams were not touched.
    async fn goes_on(&mut self) {
        self.told += 1;
        self.friend.tell(&self.target.here(), self.told);
        assert_eq!(self.target.next().await, self.told);
        let friend = self.friend.transport.self_address();
        while let Ok(event) = self.target.events.try_recv() {
            assert!(!matches!(&event, TransportEvent::LinkLost { peer, .. } if peer == friend), "{event:?}");
        }
    }

    /// Waits until the intrusion was counted `count` times; checks that it had no effect and is in the log.
    async fn refused(&mut self, intrusion: Intrusion, count: u64, words: &[&str]) {
        let stats = || self.target.transport.stats();
        until(|| stats().intruded(intrusion) >= count).await;
        assert_eq!(stats().intruded(intrusion), count);
        assert_eq!(stats().intrusions[&(intrusion, HOST.parse().unwrap())], count, "counted by remote host");
        let kind = format!("{intrusion:?}");
        let named = [&["WARN", "refused: ", kind.as_str(), "127.0.0.1"], words].concat();
        // Wait for the line: counting comes first.
        until(|| logs::has(&named)).await;
        self.goes_on().await;
    }
}

/// Sends one Hello that is refused, and an envelope after it all the same.
async fn refused_hello(hello: Hello, scene: &mut Scene, code: RejectCode, answer: &str) {
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&hello.frame()).await;
    raw.say(&raw::message("inbox", 1)).await;
    assert!(raw.hear(answer).await, "the answer says {answer}");
    let from = format!("{}:{}", hello.host, hello.port);
    scene.refused(Intrusion::Refused(code), 1, &[&from, answer]).await;
    assert_eq!(scene.target.transport.stats().received_envelopes, 2, "only the friend's two");
}

/// "Done when" 7: a caller without a certificate.
#[tokio::test]
async fn a_caller_without_a_certificate() {
    let authority = Authority::new();
    let mut scene = Scene::new(|name| with(authority.sign(name, &[HOST]))).await;
    let (mut raw, _) = raw::connect_tls(scene.port(), None).await;
    raw.call().await;
    raw.say(&Hello::to(scene.port()).frame()).await;
    raw.until_closed().await;
    scene.refused(Intrusion::Certificate, 1, &["no certificates"]).await;
}

/// "Done when" 7: a certificate with the right name, of an authority that no node here knows.
#[tokio::test]
async fn a_caller_with_a_foreign_certificate() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let mut scene = Scene::new(|name| with(authority.sign(name, &[HOST]))).await;
    let (mut raw, _) = raw::connect_tls(scene.port(), Some(&foreign.sign("x", &[HOST]))).await;
    raw.call().await;
    raw.say(&Hello::to(scene.port()).frame()).await;
    raw.until_closed().await;
    scene.refused(Intrusion::Certificate, 1, &["UnknownIssuer"]).await;
    // A whole node is refused too, and its log says why.
    let patience = Duration::from_millis(300);
    let foreign = TransportSettings { handshake_timeout: patience, ..with(foreign.sign("y", &[HOST])) };
    let foreign = node(foreign).await;
    let asked = foreign.ask(&scene.target.here(), "inbox", LONG).await;
    assert_eq!(asked, Err(AskError::Dropped(DeadLetterReason::HandshakeTimeout)));
    assert!(logs::has(&["WARN", "a dial failed", "no authority that is believed here"]));
    scene.goes_on().await;
}

/// Cluster T16: a valid certificate, and a Hello in the name of another host.
#[tokio::test]
async fn a_caller_in_the_name_of_another_host() {
    let authority = Authority::new();
    let mut scene = Scene::new(|name| with(authority.sign(name, &[HOST]))).await;
    let (mut raw, _) = raw::connect_tls(scene.port(), Some(&authority.sign("x", &["x.example"]))).await;
    raw.call().await;
    raw.say(&Hello { port: 4711, ..Hello::to(scene.port()) }.frame()).await;
    raw.say(&raw::message("inbox", 1)).await;
    assert!(raw.hear("x.example").await);
    scene.refused(Intrusion::Refused(RejectCode::Unauthorized), 1, &["127.0.0.1:4711", "x.example"]).await;
    assert!(scene.target.transport.peer(&"127.0.0.1:4711".parse().unwrap()).is_none());
}

/// "Done when" 7, and scenario 2's kin: another cluster's name.
#[tokio::test]
async fn a_caller_of_another_cluster() {
    let mut scene = Scene::plain().await;
    let hello = Hello { cluster: "others", port: 4712, ..Hello::to(scene.port()) };
    refused_hello(hello, &mut scene, RejectCode::WrongCluster, "others").await;
}

/// "Done when" 7, cluster T13: versions that do not meet.
#[tokio::test]
async fn a_caller_of_an_unknown_version() {
    let mut scene = Scene::plain().await;
    let hello = Hello { version: 900, min_supported: 800, port: 4713, ..Hello::to(scene.port()) };
    refused_hello(hello, &mut scene, RejectCode::VersionUnsupported, "800 to 900").await;
}

/// "Done when" 7, cluster T16: data and control frames before any Hello.
#[tokio::test]
async fn frames_before_a_hello() {
    let mut scene = Scene::plain().await;
    let friend = scene.friend.transport.self_address().clone();
    let (port, uid) = (friend.address().port(), friend.uid().get());
    let us = scene.target.transport.self_address().clone();
    let target = (HOST, us.address().port(), us.uid().get());
    for (n, forged) in [raw::message("inbox", 1), raw::quarantined((HOST, port, uid), target)].iter().enumerate() {
        let mut raw = Raw::connect(scene.port()).await;
        raw.call().await;
        raw.say(forged).await;
        raw.say(&Hello { port: 4714, ..Hello::to(scene.port()) }.frame()).await;
        scene.refused(Intrusion::WrongFirstFrame, n as u64 + 1, &[]).await;
    }
    assert!(scene.target.transport.peer(&"127.0.0.1:4714".parse().unwrap()).is_none(), "too late for a Hello");
}

/// "Done when" 7, cluster T16, T20: a frame on an accepted stream, in the name of another process.
#[tokio::test]
async fn a_control_frame_in_another_name() {
    let mut scene = Scene::plain().await;
    let friend = scene.friend.transport.self_address().clone();
    let us = scene.target.transport.self_address().clone();
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { lane: 1, port: 4715, ..Hello::to(scene.port()) }.frame()).await;
    let friend = (HOST, friend.address().port(), friend.uid().get());
    raw.say(&raw::quarantined(friend, (HOST, us.address().port(), us.uid().get()))).await;
    assert!(raw.hear("PROTOCOL").await);
    scene.refused(Intrusion::Forged, 1, &["127.0.0.1:4715", &format!(":{}#", friend.1)]).await;
    while let Ok(event) = scene.target.events.try_recv() {
        assert!(!matches!(event, TransportEvent::ThisNodeQuarantined { .. }), "{event:?}");
    }
}

/// "Done when" 7: a frame of 1 GiB is refused when it is announced, not when it has arrived.
#[tokio::test]
async fn a_frame_of_a_gibibyte() {
    let mut scene = Scene::plain().await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { port: 4716, ..Hello::to(scene.port()) }.frame()).await;
    raw.announce(1 << 30).await;
    assert!(raw.hear("PROTOCOL").await);
    scene.refused(Intrusion::Oversized, 1, &["127.0.0.1:4716", "1073741824"]).await;
    // The same length in place of a Hello, which has to be short.
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.announce((16 << 10) + 1).await;
    scene.refused(Intrusion::Oversized, 2, &["16385"]).await;
    // A length that fits the large lane, and exceeds the control lane.
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { lane: 1, port: 4717, ..Hello::to(scene.port()) }.frame()).await;
    raw.settle().await;
    for piece in raw::message_of("control/x", 200 * 1024).chunks(16 * 1024).enumerate() {
        raw.continue_message(piece, 200 * 1024).await;
    }
    assert!(raw.hear("PROTOCOL").await);
    scene.refused(Intrusion::Oversized, 3, &["127.0.0.1:4717"]).await;
}

/// Cluster T35, §7.
#[tokio::test]
async fn a_frame_that_cannot_be_read() {
    let mut scene = Scene::plain().await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { port: 4718, ..Hello::to(scene.port()) }.frame()).await;
    raw.say(&[0x1a, 0x05, 0xff]).await;
    assert!(raw.hear("PROTOCOL").await);
    scene.refused(Intrusion::Malformed, 1, &["127.0.0.1:4718"]).await;
}

/// "Done when" 7: connections and streams that open and send nothing, or next to nothing.
#[tokio::test]
async fn slow_lorises() {
    let patience = Duration::from_millis(200);
    let mut scene =
        Scene::new(|_| TransportSettings { handshake_timeout: patience, ..TransportSettings::test() }).await;
    // Not a byte; part of the preface; a call without a Hello; half a Hello.
    let mut mute = Raw::connect(scene.port()).await;
    let mut stammering = Raw::connect(scene.port()).await;
    stammering.send(b"PRI * HT").await;
    let mut wordless = Raw::connect(scene.port()).await;
    wordless.call().await;
    let mut halting = Raw::connect(scene.port()).await;
    halting.call().await;
    halting.announce(100).await;
    mute.until_closed().await;
    stammering.until_closed().await;
    wordless.until_closed().await;
    halting.until_closed().await;
    scene.refused(Intrusion::NoHello, 4, &["no Hello came in time"]).await;
    // Under TLS, a silent caller never completes the handshake.
    let authority = Authority::new();
    let settings =
        |name: &str| TransportSettings { handshake_timeout: patience, ..with(authority.sign(name, &[HOST])) };
    let mut scene = Scene::new(settings).await;
    let mut mute = Raw::connect(scene.port()).await;
    mute.until_closed().await;
    scene.refused(Intrusion::NoHello, 1, &["no TLS handshake"]).await;
}

/// Cluster §7: bytes that no node sends count against their host; the twentieth offence within a minute bans the host,
/// while its open streams stay open.
#[tokio::test]
async fn twenty_offences_ban_the_host() {
    let mut scene = Scene::plain().await;
    for _ in 0..20 {
        let mut raw = Raw::connect(scene.port()).await;
        raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        raw.until_closed().await;
    }
    until(|| scene.target.transport.stats().intruded(Intrusion::NotGrpc) == 20).await;
    assert!(logs::has(&["ERROR", "host banned for one minute", HOST]));
    // The ban also refuses well-behaved callers of that host.
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello::to(scene.port()).frame()).await;
    raw.until_closed().await;
    scene.refused(Intrusion::Banned, 1, &[]).await;
    assert!(scene.target.transport.peer(&"127.0.0.1:9".parse().unwrap()).is_none());
}

/// Under TLS, plain bytes are no handshake; and calls of another method are refused, too.
#[tokio::test]
async fn bytes_that_are_not_ours() {
    let authority = Authority::new();
    let mut scene = Scene::new(|name| with(authority.sign(name, &[HOST]))).await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.until_closed().await;
    scene.refused(Intrusion::NotGrpc, 1, &[]).await;
    let mut scene = Scene::plain().await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand then something else entirely, which is no frame").await;
    raw.until_closed().await;
    scene.refused(Intrusion::NotGrpc, 1, &[]).await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call_path("/grpc.health.v1.Health/Check").await;
    scene.refused(Intrusion::NotGrpc, 2, &["grpc.health"]).await;
}

/// A caller that only checks whether a process listens (a proof of death, a port probe) commits no offence.
#[tokio::test]
async fn a_bare_connect_is_no_offence() {
    let mut scene = Scene::plain().await;
    for _ in 0..30 {
        drop(Raw::connect(scene.port()).await);
    }
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { port: 4719, ..Hello::to(scene.port()) }.frame()).await;
    raw.say(&raw::message("inbox", 5)).await;
    assert_eq!(scene.target.next().await, 5);
    scene.goes_on().await;
    assert!(scene.target.transport.stats().intrusions.is_empty());
}

/// Cluster T12: one incarnation has few streams.
#[tokio::test]
async fn too_many_streams() {
    let mut scene = Scene::plain().await;
    let mut open = Vec::new();
    for index in 0..67 {
        let mut raw = Raw::connect(scene.port()).await;
        raw.call().await;
        raw.say(&Hello { index, port: 4720, ..Hello::to(scene.port()) }.frame()).await;
        raw.say(&raw::message("inbox", index as u32)).await;
        if index < 66 {
            assert_eq!(scene.target.next().await, index as u32);
            open.push(raw);
        } else {
            assert!(raw.hear("66 streams").await);
        }
    }
    scene.refused(Intrusion::Refused(RejectCode::TooManyStreams), 1, &["127.0.0.1:4720"]).await;
}

/// Cluster T17: a process that is no member reaches listed recipients only, and none of the cluster's own.
#[tokio::test]
async fn strangers_in_untrusted_mode() {
    let settings = |_: &str| TransportSettings {
        untrusted_mode: true,
        trusted_recipients: vec!["public".to_owned()],
        ..TransportSettings::test()
    };
    let mut scene = Scene::new(settings).await;
    let mut public = scene.target.register("public");
    let mut control = scene.target.register("control/x");
    let members = [scene.target.transport.self_address().clone(), scene.friend.transport.self_address().clone()];
    scene.target.transport.set_members(&mut members.iter());
    scene.goes_on().await;

    let mut stranger = Raw::connect(scene.port()).await;
    stranger.call().await;
    stranger.say(&Hello { port: 4721, ..Hello::to(scene.port()) }.frame()).await;
    // A control recipient on a data lane, a user's inbox, and a recipient that is open to every process.
    stranger.say(&raw::message("control/x", 1)).await;
    stranger.say(&raw::message("inbox", 2)).await;
    stranger.say(&raw::message("public", 3)).await;
    assert_eq!(common::read(&common::next(&mut public).await), 3);
    until(|| scene.target.dropped(DeadLetterReason::Untrusted) == 2).await;
    assert!(control.try_recv().is_err());
    assert!(logs::has(&["WARN", "dead letter", "4721", "control/x"]));
    // The control lane itself is refused with the Hello.
    let hello = Hello { lane: 1, port: 4722, uid: 78, ..Hello::to(scene.port()) };
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&hello.frame()).await;
    assert!(raw.hear("is no member").await);
    scene.refused(Intrusion::Refused(RejectCode::Unauthorized), 1, &["127.0.0.1:4722", "untrusted mode"]).await;
    // A process that becomes a member is trusted from then on.
    let joined = ["127.0.0.1:4721#77".parse().unwrap()];
    scene.target.transport.set_members(&mut members.iter().chain(&joined));
    stranger.say(&raw::message("inbox", 4)).await;
    assert_eq!(scene.target.next().await, 4);
}

/// Cluster T17, 77: a process that is no member reaches only the recipients that were opened to strangers, on any lane,
/// and its messages to other recipients are counted.
#[tokio::test]
async fn strangers_reach_what_is_open_to_them() {
    let mut scene = Scene::plain().await;
    let (mut open, mut control) = (scene.target.register("open"), scene.target.register("control/x"));
    scene.target.transport.open_to_strangers("open", true);
    let members = [scene.target.transport.self_address().clone(), scene.friend.transport.self_address().clone()];
    scene.target.transport.set_members(&mut members.iter());
    scene.goes_on().await;

    let mut stranger = Raw::connect(scene.port()).await;
    stranger.call().await;
    stranger.say(&Hello { port: 4731, ..Hello::to(scene.port()) }.frame()).await;
    for path in ["control/x", "inbox", "open"] {
        stranger.say(&raw::message(path, 1)).await;
    }
    assert_eq!(common::read(&common::next(&mut open).await), 1);
    let mut on_control = Raw::connect(scene.port()).await;
    on_control.call().await;
    on_control.say(&Hello { lane: 1, port: 4731, ..Hello::to(scene.port()) }.frame()).await;
    on_control.say(&raw::message("control/x", 2)).await;
    on_control.say(&raw::numbered("control/x", 1)).await;
    until(|| scene.target.dropped(DeadLetterReason::NotAMember) == 4).await;
    assert!(control.try_recv().is_err());
    // The numbered message was not taken; sent again by a member, it is.
    scene.target.transport.set_members(&mut members.iter().chain(&["127.0.0.1:4731#77".parse().unwrap()]));
    on_control.say(&raw::numbered("control/x", 1)).await;
    assert_eq!(common::read(&common::next(&mut control).await), 1);
    // A process that becomes a member is believed from then on, and a recipient that is closed again is closed.
    let joined = ["127.0.0.1:4731#77".parse().unwrap()];
    scene.target.transport.set_members(&mut members.iter().chain(&joined));
    stranger.say(&raw::message("inbox", 4)).await;
    assert_eq!(scene.target.next().await, 4);
    scene.target.transport.set_members(&mut members.iter());
    scene.target.transport.open_to_strangers("open", false);
    stranger.say(&raw::message("open", 5)).await;
    until(|| scene.target.dropped(DeadLetterReason::NotAMember) == 5).await;
}

/// Cluster 82: envelopes of few bytes take many bytes in memory, so they are read in parts, and an envelope without a
/// recipient ends its stream at once.
#[tokio::test]
async fn countless_envelopes_of_few_bytes() {
    let mut scene = Scene::plain().await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { port: 4732, ..Hello::to(scene.port()) }.frame()).await;
    raw.settle().await;
    raw.say(&raw::empty_envelopes(5000)).await;
    until(|| scene.target.dropped(DeadLetterReason::NoSuchRecipient) == 5000).await;
    raw.say(&raw::bytes(3, &raw::bytes(1, &[]).repeat(60_000))).await;
    scene.refused(Intrusion::Malformed, 1, &["127.0.0.1:4732", "an envelope without a recipient"]).await;
    assert_eq!(scene.target.dropped(DeadLetterReason::NoSuchRecipient), 5000);
    scene.goes_on().await;
}

/// Cluster T21: callers that were never reached are limited per host; a member is admitted all the same.
#[tokio::test]
async fn many_names_of_one_host() {
    let soon = Duration::from_millis(100);
    let settings =
        |_: &str| TransportSettings { remove_quarantined_association_after: soon, ..TransportSettings::test() };
    let mut scene = Scene::new(settings).await;
    let mut open = Vec::new();
    for n in 0..64 {
        let mut raw = Raw::connect(scene.port()).await;
        raw.call().await;
        raw.say(&Hello { port: 5000 + n, ..Hello::to(scene.port()) }.frame()).await;
        raw.settle().await;
        open.push(raw);
    }
    let one_more = Hello { port: 5064, ..Hello::to(scene.port()) }.frame();
    let mut refused = Raw::connect(scene.port()).await;
    refused.call().await;
    refused.say(&one_more).await;
    scene
        .refused(Intrusion::Refused(RejectCode::TooManyStreams), 1, &["127.0.0.1:5064", "64 processes of 127.0.0.1"])
        .await;
    let members = [scene.target.transport.self_address().clone(), "127.0.0.1:5064#77".parse().unwrap()];
    scene.target.transport.set_members(&mut members.iter());
    let mut member = Raw::connect(scene.port()).await;
    member.call().await;
    member.say(&one_more).await;
    member.settle().await;
    // A caller leaves nothing behind once its stream has ended, so another may come.
    drop(open);
    let known = |scene: &Scene| (5000..5064).filter(|port| scene.target.knows(*port)).count();
    until(|| known(&scene) == 0).await;
    assert!(scene.target.knows(5064));
}

/// Cluster T17, T38: answers of a process that was not asked are dropped, and an answer is for one process only.
#[tokio::test]
async fn an_answer_of_a_stranger_or_for_another_process() {
    let settings = |_: &str| TransportSettings { untrusted_mode: true, ..TransportSettings::test() };
    let mut scene = Scene::new(settings).await;
    let own = scene.target.transport.self_address().clone();
    let members = [own.clone(), scene.friend.transport.self_address().clone()];
    scene.target.transport.set_members(&mut members.iter());
    let dropped = |scene: &Scene, reason| scene.target.dropped(reason);
    let ask = scene.target.transport.open_ask(LONG);
    let id = ask.address.ask_id;
    let question = common::number(7).asking(id, LONG);
    scene.target.transport.send(&scene.friend.here(), question).unwrap();
    let token = scene.friend.question::<u32>().await;

    let mut stranger = Raw::connect(scene.port()).await;
    stranger.call().await;
    stranger.say(&Hello { port: 4723, ..Hello::to(scene.port()) }.frame()).await;
    stranger.say(&raw::answer(own.uid().get(), id, 1)).await;
    until(|| dropped(&scene, DeadLetterReason::Untrusted) == 1).await;
    // Even a member's answer must be for this process and not for a former one.
    let joined = ["127.0.0.1:4723#77".parse().unwrap()];
    scene.target.transport.set_members(&mut members.iter().chain(&joined));
    for before in [0, own.uid().get() ^ 1] {
        stranger.say(&raw::answer(before, id, 2)).await;
    }
    until(|| dropped(&scene, DeadLetterReason::StaleIncarnation) == 2).await;
    token.reply(3);
    assert_eq!(ask.answer.await.map(|answer| *answer.downcast::<u32>().unwrap()), Ok(3));
    assert_eq!(dropped(&scene, DeadLetterReason::LateReply), 0);
    scene.goes_on().await;

    // A stranger that was asked may answer; the numbers of two nodes' questions are independent.
    scene.target.transport.set_members(&mut members[..1].iter());
    let asked = scene.target.start_ask(&scene.friend.here(), "inbox", LONG);
    scene.friend.question::<u32>().await.reply(4);
    assert_eq!(asked.await.map(|answer| *answer.downcast::<u32>().unwrap()), Ok(4));
    let ids = [&scene.friend, &scene.target].map(|node| node.transport.open_ask(LONG).address.ask_id);
    assert!(ids[0].abs_diff(ids[1]) > 1_000_000 && ids.iter().all(|id| *id > 1_000_000), "{ids:?}");
}

/// Cluster T12: a repeated Hello is not announced, and a changed one at most once a second.
#[tokio::test]
async fn a_hello_again_and_again() {
    let mut scene = Scene::plain().await;
    let hello = Hello { port: 4724, ..Hello::to(scene.port()) };
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    for _ in 0..100 {
        raw.say(&hello.frame()).await;
    }
    for cluster_id in 1..=100 {
        raw.say(&Hello { cluster_id, ..hello.clone() }.frame()).await;
    }
    let mut told = Vec::new();
    while told.last() != Some(&Some(u128::from_be_bytes([100; 16]))) {
        let of = |event| match event {
            TransportEvent::PeerHandshake(info) if info.peer.address().port() == 4724 => Some(info.cluster_id),
            _ => None,
        };
        told.push(scene.target.event(of).await);
    }
    assert_eq!((told.len(), told[0], told[1]), (3, None, Some(u128::from_be_bytes([1; 16]))), "{told:?}");
    scene.goes_on().await;
}

/// Cluster T18, T20: the Hello of a quarantined process on its open stream teaches nothing about its address.
#[tokio::test]
async fn a_hello_of_a_quarantined_process_on_its_stream() {
    let mut scene = Scene::plain().await;
    let hello = Hello { port: 4725, ..Hello::to(scene.port()) };
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&hello.frame()).await;
    raw.settle().await;
    let peer = "127.0.0.1:4725#77".parse().unwrap();
    scene.target.transport.quarantine(&peer, greylag_transport::QuarantineReason::Manual, false);
    scene.target.event(|event| matches!(event, TransportEvent::Quarantined { .. }).then_some(())).await;
    raw.say(&Hello { cluster_id: 5, ..hello }.frame()).await;
    raw.say(&raw::message("inbox", 1)).await;
    until(|| scene.target.dropped(DeadLetterReason::Quarantined) == 1).await;
    let known = scene.target.transport.peer(peer.address()).unwrap();
    assert_eq!((known.peer, known.cluster_id), (peer, None));
    scene.goes_on().await;
}

/// Settings without keep-alive, so that only the tested mechanism ends a stream whose peer is silent.
fn without_keep_alive() -> TransportSettings {
    TransportSettings { http2_keepalive_interval: Duration::from_secs(3600), ..TransportSettings::test() }
}

/// Cluster T35: the stream of a peer that reads no answers is closed, without telling the peer the reason.
#[tokio::test]
async fn a_peer_that_reads_nothing_keeps_no_place() {
    let mut scene = Scene::new(|_| without_keep_alive()).await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call_unheard().await;
    raw.say(&Hello { port: 4726, ..Hello::to(scene.port()) }.frame()).await;
    let open = |scene: &Scene| scene.target.transport.stats().inbound_streams;
    until(|| open(&scene) == 2).await;
    for id in 0..100 {
        raw.say(&raw::flush(id)).await;
    }
    raw.say(&[0x1a, 0x05, 0xff]).await;
    scene.refused(Intrusion::Malformed, 1, &["127.0.0.1:4726"]).await;
    until(|| open(&scene) == 1).await;
}

/// Cluster T18, T21: when a quarantine is forgotten, streams of the process that were silent all the time are ended.
#[tokio::test]
async fn a_silent_stream_of_a_quarantined_process_is_not_heard_again() {
    let soon = Duration::from_millis(100);
    let settings = |_: &str| TransportSettings { remove_quarantined_association_after: soon, ..without_keep_alive() };
    let mut scene = Scene::new(settings).await;
    let mut raw = Raw::connect(scene.port()).await;
    raw.call().await;
    raw.say(&Hello { port: 4727, ..Hello::to(scene.port()) }.frame()).await;
    raw.settle().await;
    let peer = "127.0.0.1:4727#77".parse().unwrap();
    scene.target.transport.quarantine(&peer, greylag_transport::QuarantineReason::Manual, true);
    until(|| scene.target.transport.stats().inbound_streams == 1).await;
    scene.goes_on().await;
}

/// Cluster T26, T36: a control frame holds few envelopes, since other peers' heartbeats wait behind it.
#[tokio::test]
async fn a_control_frame_of_countless_envelopes() {
    let mut scene = Scene::plain().await;
    for (n, count) in [(1, 1024), (2, 1025)] {
        let mut raw = Raw::connect(scene.port()).await;
        raw.call().await;
        raw.say(&Hello { lane: 1, seq: n, port: 4728, ..Hello::to(scene.port()) }.frame()).await;
        raw.say(&raw::empty_envelopes(count)).await;
        until(|| scene.target.dropped(DeadLetterReason::NoSuchRecipient) == 1024 * n).await;
        assert_eq!(scene.target.transport.stats().malformed_frames, n - 1);
    }
    scene.refused(Intrusion::Malformed, 1, &["127.0.0.1:4728", "1024"]).await;
    // A node never writes such a frame, whatever is configured.
    let many =
        TransportSettings { max_batch_messages: 1 << 16, max_batch_bytes: 64 << 10, ..TransportSettings::test() };
    let eager = node(many).await;
    let mut control = scene.target.register("control/x");
    let recipient = greylag_transport::Recipient::new("control/x");
    for n in 0..3000 {
        let envelope = greylag_transport::Envelope { recipient: recipient.clone(), ..common::number(n) };
        eager.transport.send(&scene.target.here(), envelope).unwrap();
    }
    for n in 0..3000 {
        assert_eq!(common::read(&common::next(&mut control).await), n);
    }
    assert_eq!(scene.target.transport.stats().malformed_frames, 1);
}
