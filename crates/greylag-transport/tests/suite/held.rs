//! An address that a member holds, over real sockets: tests which processes are believed there, on both ends of a dial.
//!
//! Source: cluster T15, scenarios 75 and 76.

use crate::common::raw::{Hello, Raw};
use crate::common::{Node, next, node, number, read};
use greylag_core::UniqueAddress;
use greylag_transport::{
    Envelope, Holder, Recipient, RejectCode, Remoting, Replacers, TransportEvent, TransportSettings,
};

const HOST: &str = "127.0.0.1";

/// A member at the address of this node that is not the node itself.
fn member_at(node: &Node) -> UniqueAddress {
    format!("{}#12345", node.transport.self_address().address()).parse().unwrap()
}

fn held(member: &UniqueAddress, replacers: Replacers) -> Vec<Holder> {
    vec![Holder { member: member.clone(), replacers, status: "Up".into(), ends_by: "it leaves".into() }]
}

async fn pair() -> (Node, Node) {
    (node(TransportSettings::test()).await, node(TransportSettings::test()).await)
}

/// The other process is believed neither when it calls nor when it answers; once the member is removed, both times.
#[tokio::test]
async fn scenario_76_a_process_of_another_host_waits_until_the_member_is_removed() {
    let (mut a, mut b) = pair().await;
    let member = member_at(&b);
    a.transport.set_holders(held(&member, Replacers::Host("another host".into())));
    b.tell(&a.here(), 1);
    let refused = b.event(|event| match event {
        TransportEvent::HandshakeRejected { code, holder, detail, .. } => Some((code, holder, detail)),
        _ => None,
    });
    let (code, holder, detail) = refused.await;
    assert_eq!((code, holder), (RejectCode::NotReady, Some(member.clone())));
    assert!(detail.contains(&member.to_string()) && detail.contains("Up") && detail.contains("it leaves"), "{detail}");
    let claimant = b.transport.self_address().clone();
    let told = |event| match event {
        TransportEvent::AddressHeld { holder, claimant } => Some((holder, claimant)),
        TransportEvent::PeerHandshake(info) => panic!("{info:?}"),
        _ => None,
    };
    assert_eq!(a.event(told).await, (member.clone(), claimant.clone()));
    // The other end of a dial. Events come at most once a second, so this one is about the dial or a later Hello.
    a.tell(&b.anyone_here(), 2);
    assert_eq!(a.event(told).await, (member, claimant));
    assert!(a.transport.peer(b.transport.self_address().address()).is_none(), "nothing was learned");
    a.transport.set_holders(Vec::new());
    assert_eq!((a.next().await, b.next().await), (1, 2));
}

/// The process's own Hello teaches nothing; its answer to a dial at the address does.
#[tokio::test]
async fn scenario_76_a_possible_replacer_is_dialled() {
    let (mut a, b) = pair().await;
    let host = a.transport.host_id();
    let replacers = host.map_or(Replacers::Any, |host| Replacers::Host(host.into()));
    a.transport.set_holders(held(&member_at(&b), replacers));
    let control = Envelope { recipient: Recipient::new("control/join"), ..number(1) };
    let mut joins = a.register("control/join");
    b.transport.send(&a.here(), control).unwrap();
    let answered = a.event(|event| match event {
        TransportEvent::DialAnswered(info) => Some(info),
        TransportEvent::AddressHeld { holder, .. } => panic!("{holder} can have been replaced"),
        _ => None,
    });
    let info = answered.await;
    assert!(info.reached && info.peer == *b.transport.self_address());
    assert_eq!(read(&next(&mut joins).await), 1);
}

/// A process that forges the name of a living member changes neither the member's streams nor the facts known of it.
#[tokio::test]
async fn scenario_75_a_forged_hello_leaves_the_streams_of_the_member_alone() {
    let (mut a, mut b) = pair().await;
    a.tell(&b.here(), 1);
    b.tell(&a.here(), 2);
    assert_eq!((b.next().await, a.next().await), (1, 2));
    let member = b.transport.self_address().clone();
    for (replacers, lane, uid, said) in [
        (Replacers::None, 1, 666, "is a member at this address (Up)"),
        (Replacers::None, 2, 667, "is a member at this address (Up)"),
        // The process may ask to join, over its control stream alone.
        (Replacers::Any, 1, 668, HOST),
        (Replacers::Any, 2, 669, "dialled first to verify the process"),
    ] {
        a.transport.set_holders(held(&member, replacers));
        let mut forger = Raw::connect(a.port()).await;
        forger.call().await;
        forger.say(&Hello { lane, port: member.address().port(), uid, ..Hello::to(a.port()) }.frame()).await;
        assert!(forger.hear(said).await, "#{uid} is told: {said}");
        a.tell(&b.here(), 3);
        b.tell(&a.here(), 4);
        assert_eq!((b.next().await, a.next().await), (3, 4));
        assert_eq!(a.transport.peer(member.address()).unwrap().peer, member);
    }
}
