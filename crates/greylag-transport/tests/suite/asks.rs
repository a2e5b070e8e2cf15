//! Questions over real sockets: each ends once, and its outcome names the reason.

use std::time::{Duration, Instant};

use crate::common::{LONG, next, node, until, vacant};
use greylag_core::{DeadLetterReason, EntityError};
use greylag_transport::{AskError, Destination, Fault, QuarantineReason, Remoting, TransportSettings};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

#[tokio::test]
async fn every_ending_of_an_ask() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let answer = a.start_ask(&b.here(), "inbox", LONG);
    drop(b.question::<u32>().await);
    assert_eq!(answer.await.unwrap_err(), AskError::Entity(EntityError::NoReply));

    let unknown = a.ask(&b.here(), "unregistered", LONG).await;
    assert_eq!(unknown, Err(AskError::NoSuchRecipient));

    let short = Duration::from_millis(20);
    assert_eq!(a.ask(&b.here(), "inbox", short).await, Err(AskError::Timeout(short)));
    b.question::<u32>().await.reply(1);
    until(|| a.dropped(DeadLetterReason::LateReply) == 1).await;

    let answer = a.start_ask(&b.here(), "inbox", LONG);
    b.question::<u8>().await.reply(1_u8);
    let AskError::Codec { type_name, node, cause } = answer.await.unwrap_err() else { panic!("it cannot be written") };
    assert_eq!((type_name.as_str(), &node), ("u8", &b.here_exactly()));
    assert!(cause.contains("no codec is registered for u8"), "{cause}");

    let answer = a.start_ask(&b.here(), "inbox", LONG);
    b.question::<String>().await.reply("x".repeat(300 * 1024));
    assert_eq!(answer.await.unwrap_err(), AskError::ReplyTooLarge);

    let answer = a.start_ask(&b.here(), "inbox", LONG);
    b.transport.refuse(&next(&mut b.inbox).await, DeadLetterReason::Undecodable);
    assert_eq!(answer.await.unwrap_err(), AskError::Undecodable { node: b.here_exactly() });

    let answer = a.start_ask(&a.here(), "inbox", LONG);
    a.transport.shutdown().await;
    assert_eq!(answer.await.unwrap_err(), AskError::ShuttingDown);
}

/// Cluster T38: the fate of a question decides how its ask ends; a question whose asker waits no more is not even
/// written.
#[tokio::test]
async fn an_ask_says_what_became_of_its_peer() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    let to_b = b.transport.self_address().clone();
    let unanswered = a.start_ask(&b.here(), "inbox", LONG);
    next(&mut b.inbox).await;
    a.transport.quarantine(&to_b, QuarantineReason::RemovedFromMembership, true);
    assert_eq!(unanswered.await.unwrap_err(), AskError::PeerRemoved);

    let c = node(settings()).await;
    let unanswered = c.start_ask(&a.here(), "inbox", LONG);
    next(&mut a.inbox).await;
    c.transport.quarantine(a.transport.self_address(), QuarantineReason::Manual, false);
    assert_eq!(unanswered.await.unwrap_err(), AskError::Quarantined);

    let to = vacant();
    let short = Duration::from_millis(20);
    let late = a.start_ask(&to, "inbox", short);
    assert_eq!(late.await.unwrap_err(), AskError::Timeout(short));
    let Destination::Address(address) = &to else { unreachable!() };
    let mut d = node(TransportSettings { canonical_port: address.port(), ..settings() }).await;
    a.tell(&to, 5);
    assert_eq!(d.next().await, 5);
    assert_eq!(a.dropped(DeadLetterReason::Expired), 1);
}

/// Cluster T38: the time that the asker has left travels with the question.
#[tokio::test]
async fn a_question_that_waited_arrives_with_the_patience_that_is_left() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let address = b.transport.self_address().address().clone();
    a.transport.fault(&address, Fault::BlackholeOutbound);
    let (asked, patience) = (Instant::now(), LONG);
    let _answer = a.start_ask(&b.here(), "inbox", patience);
    // Let the question wait in the queue: a peer that cannot be dialled takes nothing out.
    until(|| asked.elapsed() > Duration::from_millis(50)).await;
    a.transport.fault(&address, Fault::Pass);
    let question = next(&mut b.inbox).await;
    let left = question.ask.unwrap().budget;
    assert!(left <= patience - Duration::from_millis(50) && left > patience - asked.elapsed() - MILLI, "{left:?}");
}

/// The most that a budget loses by being rounded to whole milliseconds.
const MILLI: Duration = Duration::from_millis(1);
