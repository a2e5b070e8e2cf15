//! Panics in code of the layers above that the transport calls: only the call that panicked is lost.

#[path = "suite/common/mod.rs"]
mod common;

use common::logs;
use std::sync::Arc;

use common::{LONG, Node, node};
use greylag_codec::json;
use greylag_transport::{AskError, Recipient, Remoting, TransportEvent, TransportListener, TransportSettings};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::mpsc;

#[derive(Serialize)]
struct Unreadable;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("on purpose");
    }
}

struct Clumsy;

impl TransportListener for Clumsy {
    fn on_event(&self, _: &mut TransportEvent) {
        panic!("on purpose");
    }
}

async fn pair() -> (Node, Node) {
    logs::keep();
    // One worker takes everything, so a worker lost to a panic would be noticed.
    let settings = || TransportSettings { inbound_lanes: 1, ..TransportSettings::test() };
    (node(settings()).await, node(settings()).await)
}

/// Cluster T35, §7: the worker that reads answers goes on, even if their bytes make a codec panic.
#[tokio::test]
async fn a_codec_that_panics_on_an_answer_ends_the_ask_and_nothing_else() {
    let (mut a, mut b) = pair().await;
    for node in [&a, &b] {
        node.transport.registry().register::<Unreadable>(json("unreadable")).unwrap();
    }
    let asked = a.start_ask(&b.here(), "inbox", LONG);
    b.question::<Unreadable>().await.reply(Unreadable);
    let Err(AskError::Codec { type_name, node, cause }) = asked.await.map(drop) else { panic!("it cannot be read") };
    assert_eq!((type_name.as_str(), &node, cause.as_str()), ("unreadable", &a.here_exactly(), "its codec panicked"));
    assert!(logs::has(&["ERROR", "panicked", "the codec of an answer", "unreadable"]));
    let asked = a.start_ask(&b.here(), "inbox", LONG);
    b.question::<u32>().await.reply(5);
    assert_eq!(asked.await.map(|answer| *answer.downcast::<u32>().unwrap()), Ok(5));
    b.tell(&a.here(), 6);
    assert_eq!(a.next().await, 6);
}

/// Cluster §7: a listener that panics gets the next event all the same, and so do all others.
#[tokio::test]
async fn a_listener_that_panics_is_isolated() {
    let (mut a, mut b) = pair().await;
    a.transport.listen(Some("inbox"), Arc::new(Clumsy));
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    a.transport.unregister("inbox");
    a.event(|event| matches!(event, TransportEvent::RecipientStopped { .. }).then_some(())).await;
    let peer = b.transport.self_address().clone();
    a.transport.quarantine(&peer, greylag_transport::QuarantineReason::Manual, true);
    a.event(|event| matches!(event, TransportEvent::HandedBack { .. }).then_some(())).await;
    assert!(logs::has(&["ERROR", "panicked", "a listener", "an event"]));
}

/// Cluster §7: a flush's callback that panics ends neither the worker nor the reader of acknowledgements.
#[tokio::test]
async fn an_end_of_a_flush_that_panics_is_isolated() {
    let (mut a, mut b) = pair().await;
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    for to in [a.transport.self_address().clone(), b.transport.self_address().clone()] {
        a.transport.flush(&to, Box::new(|| panic!("on purpose")));
        let (said, mut heard) = mpsc::unbounded_channel();
        a.transport.flush(&to, Box::new(move || said.send(()).unwrap()));
        tokio::time::timeout(LONG, heard.recv()).await.expect("the next one is told").expect("it is called");
    }
    a.tell(&b.here(), 2);
    assert_eq!(b.next().await, 2);
    a.tell(&a.here(), 3);
    assert_eq!(a.next().await, 3);
}

/// Cluster T36: names are bounded at the sender, and no name's text floods the log.
#[tokio::test]
async fn a_name_that_is_too_long_is_given_back() {
    let (a, mut b) = pair().await;
    let mut letters = a.transport.dead_letters(10);
    let named = |path: String, sub_path: String, manifest: String| {
        let recipient = Recipient::new(path).with_sub_path(sub_path);
        greylag_transport::Envelope { recipient, manifest: manifest.into(), ..common::number(1) }
    };
    let (long, none) = ("x".repeat(4097), String::new);
    for envelope in
        [named(long.clone(), none(), none()), named(none(), long.clone(), none()), named(none(), none(), long)]
    {
        let refused = a.transport.send(&b.here(), envelope).unwrap_err();
        assert_eq!(refused.error, greylag_transport::SendError::NameTooLong { size: 4097, max: 4096 });
        let letter = letters.next().await;
        assert!(letter.recipient.len() <= 1024 && letter.manifest.len() <= 1024);
    }
    let mut longest = b.register(&"y".repeat(4096));
    a.transport.send(&b.here(), named("y".repeat(4096), "z".repeat(4096), "number".to_owned())).unwrap();
    assert_eq!(common::read(&common::next(&mut longest).await), 1);
    a.tell(&b.here(), 2);
    assert_eq!(b.next().await, 2);
}
