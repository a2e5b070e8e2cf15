//! Dials one stream, says Hello, and listens to what comes back on it.
//!
//! Every dial resolves the name anew and builds a connection of its own (cluster T5, T9). While the
//! stream lives, tonic polls its [`Outbound`]; this task only reads the other half.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{DeadLetterReason, UniqueAddress};
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;

use super::accept;
use super::codec::FrameCodec;
use super::connector::Connector;
use super::fault::Delayed;
use super::outbound::{Agreed, Line, Outbound};
use super::peer::{LinkEnd, Peer};
use super::resolve;
use super::shared::{Announcement, Shared};
use crate::association::Input;
use crate::endpoint::shortened;
use crate::hello::{Accepted, Features, Hello, HelloReply, MIN_SUPPORTED, PROTOCOL_VERSION, Rejected};
use crate::lane::Lane;
use crate::reliable::SenderInput;
use crate::remoting::{PeerInfo, TransportEvent};
use crate::wire::{self, Frame};

/// The one method of the service.
pub(super) const METHOD: &str = "/greylag.transport.v1.Transport/Open";

/// Room beside the largest message for what a frame says about it.
pub(super) const FRAME_OVERHEAD: usize = 64 * 1024;

/// A stream that was answered.
struct Opened {
    /// The cluster that our Hello named.
    said: Option<u128>,
    replies: Streaming<Bytes>,
    answer: HelloReply,
    ip: IpAddr,
}

/// Dials, and stays until the stream ends.
pub(super) async fn run(shared: Arc<Shared>, peer: Arc<Peer>, lane: Lane, seq: u64, end: Arc<LinkEnd>) {
    let line = Arc::new(Line::default());
    let dial = open(&shared, &peer, lane, seq, line.clone());
    let opened = tokio::select! {
        opened = tokio::time::timeout(shared.settings.connection_timeout, dial) => opened,
        () = end.closed.notified() => return,
    };
    let opened = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return failed(&shared, &peer, lane, seq, &error),
        Err(_) => return failed(&shared, &peer, lane, seq, &io::Error::from(io::ErrorKind::TimedOut)),
    };
    let Opened { said, replies, answer, ip } = opened;
    match answer {
        HelloReply::Rejected(rejected) => {
            let by = rejected.from.as_ref().map(UniqueAddress::uid);
            let Rejected { code, reason, holder, detail, .. } = rejected;
            peer.input(&shared, Input::Rejected { lane, seq, code, by, reason, holder, detail });
            peer.queue(lane).end(seq);
        }
        HelloReply::Accepted(Accepted { from, host_id, cluster_id, features, max_names, .. }) => {
            // Before the gate of the queue opens, so that the first frame is written by it.
            line.agree(Agreed { max_names: max_names as usize, zstd: features.zstd });
            peer.complains.store(true, Ordering::Relaxed);
            peer.input(&shared, Input::Accepted { lane, seq, uid: from.uid(), host_id: host_id.clone() });
            let info = PeerInfo { peer: from.clone(), ip, reached: true, host_id, cluster_id };
            if peer.introduce(&shared, info.clone()) {
                shared.announce(Announcement::Event(TransportEvent::DialAnswered(info)));
            }
            // It runs where it says, so it takes no caller's seat any more.
            shared.callers().vacate(&peer.address);
            if said != shared.cluster_id() {
                // What became known during the handshake; later news goes to the open gate.
                peer.greet_again(&shared, lane);
            }
            let received = listen(&shared, &peer, lane, &from, replies, &end).await;
            let lost = line.written.load(Ordering::Relaxed).saturating_sub(received);
            if lost > 0 {
                let reason = DeadLetterReason::LostInFlight;
                let (lane, to) = (Some(lane), Some(from.address()));
                let what = || "written, and not known to have been read".to_owned();
                shared.endpoint.count_dead_letter(Instant::now(), reason, lane, to, lost, what);
            }
            peer.input(&shared, Input::Failed { lane, seq });
        }
    }
}

fn failed(shared: &Arc<Shared>, peer: &Arc<Peer>, lane: Lane, seq: u64, error: &io::Error) {
    // The peer refuses it, and what it says of that may be lost with the connection (cluster 83).
    let has_expired = shared.tls.as_ref().is_some_and(|files| files.days_left() < 0);
    let hint = if has_expired { "; this node's certificate has expired" } else { "" };
    if peer.complains.swap(false, Ordering::Relaxed) {
        tracing::warn!(peer = %peer.address, %lane, %error, "a dial failed{hint}; it is repeated, and further failures are logged at debug");
    } else {
        tracing::debug!(peer = %peer.address, %lane, %error, "a dial failed{hint}");
    }
    peer.queue(lane).end(seq);
    peer.input(shared, Input::Failed { lane, seq });
}

async fn open(shared: &Arc<Shared>, peer: &Arc<Peer>, lane: Lane, seq: u64, line: Arc<Line>) -> io::Result<Opened> {
    if peer.fault.is_mute() {
        return Err(io::Error::other("blackholed on purpose"));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let found = shared.resolver.look_up(&peer.address).await?;
    let (targets, patience) = resolve::in_turn(found, seq, shared.settings.connection_timeout);
    for target in targets {
        let connector = Connector { shared: shared.clone(), target, host: peer.address.host().to_owned(), lane };
        match channel(shared, target, lane, patience).connect_with_connector(connector).await {
            Ok(channel) => {
                let max = shared.settings.maximum_message_size(lane.kind()) + FRAME_OVERHEAD;
                let mut client = Grpc::new(channel).max_decoding_message_size(max).max_encoding_message_size(max);
                client.ready().await.map_err(io::Error::other)?;
                let hello = hello(shared, peer, lane, seq);
                let said = hello.cluster_id;
                let hello = wire::write_frame(&Frame::Hello(hello));
                let outbound = Outbound::new(shared.clone(), peer.clone(), lane, seq, hello, line);
                let outbound = Delayed::new(peer.clone(), outbound);
                let method = PathAndQuery::from_static(METHOD);
                let response = client.streaming(tonic::Request::new(outbound), method, FrameCodec).await;
                let mut replies = response.map_err(|status| io::Error::other(causes(&status)))?.into_inner();
                let first = replies.message().await.map_err(|status| io::Error::other(causes(&status)))?;
                let frame = first.map(wire::read_frame).transpose().map_err(io::Error::other)?;
                return match frame {
                    Some(Frame::HelloReply(HelloReply::Accepted(accepted)))
                        if accepted.from.address() != &peer.address =>
                    {
                        Err(io::Error::other(format!("{} answers in its place", accepted.from)))
                    }
                    Some(Frame::HelloReply(answer)) => Ok(Opened { said, replies, answer, ip: target.ip() }),
                    other => Err(io::Error::other(format!("the Hello was answered by {other:?}"))),
                };
            }
            Err(error) => last = io::Error::other(causes(&error)),
        }
    }
    Err(last)
}

/// An error with what caused it, which tonic leaves out.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}

fn channel(shared: &Shared, target: SocketAddr, lane: Lane, patience: Duration) -> Endpoint {
    let settings = &shared.settings;
    let window = accept::window(settings.maximum_message_size(lane.kind()));
    Endpoint::from_shared(format!("http://{target}"))
        .expect("a socket address makes a valid uri")
        .connect_timeout(patience)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .http2_adaptive_window(false)
        .http2_keep_alive_interval(settings.http2_keepalive_interval)
        .keep_alive_timeout(settings.http2_keepalive_timeout)
        .keep_alive_while_idle(true)
}

pub(super) fn hello(shared: &Shared, peer: &Peer, lane: Lane, seq: u64) -> Hello {
    Hello {
        protocol_version: PROTOCOL_VERSION,
        min_supported: MIN_SUPPORTED,
        cluster_name: shared.settings.cluster_name.clone(),
        from: shared.endpoint.self_address.clone(),
        to: peer.address.clone(),
        expected_uid: None,
        lane,
        lane_count: shared.settings.outbound_lanes,
        stream_seq: seq,
        features: Features::OURS,
        cluster_id: shared.cluster_id(),
        host_id: shared.host_id.clone(),
    }
}

/// Reads the answering half until it ends; returns how many envelopes the peer said it has read.
async fn listen(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    lane: Lane,
    from: &UniqueAddress,
    mut replies: Streaming<Bytes>,
    end: &LinkEnd,
) -> u64 {
    let mut received = 0;
    // Ended from our side, the peer reads what it was sent and then ends its half; if it does not,
    // it is not waited for for ever.
    let given_up = async {
        end.closed.notified().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::pin!(given_up);
    loop {
        let reply = tokio::select! {
            reply = replies.message() => reply,
            () = &mut given_up => return received,
            () = end.killed.notified() => return received,
        };
        let frame = match reply {
            Ok(Some(bytes)) => wire::read_frame(bytes),
            Ok(None) | Err(_) => return received,
        };
        match frame {
            Ok(Frame::Received(count)) => received = count,
            // As if it had not arrived.
            Ok(_) if peer.fault.is_deaf() => {}
            Ok(Frame::Ack(seq)) => peer.numbered_input(shared, SenderInput::Ack { from: from.uid(), seq }),
            Ok(Frame::Nack(seq)) => peer.numbered_input(shared, SenderInput::Nack { from: from.uid(), seq }),
            Ok(Frame::FlushAck(id)) => shared.flushes.acked(from, lane, id),
            Ok(Frame::TerminatingAck) => shared.terminating_acked(),
            Ok(Frame::Quarantined { from, to, reason }) => {
                // Nobody but the peer itself speaks for it; which of its incarnations, the machine knows.
                if to == shared.endpoint.self_address && from.address() == &peer.address {
                    peer.input(shared, Input::ToldQuarantined { by: from.uid(), reason });
                }
            }
            Ok(Frame::Close(reason)) => {
                let reason = shortened(reason);
                tracing::warn!(peer = %peer.address, %lane, reason, "the peer closed a stream");
            }
            Ok(_) => shared.counters.skipped(),
            Err(error) => {
                tracing::warn!(peer = %peer.address, %lane, %error, "an unreadable answer");
                return received;
            }
        }
    }
}

/// How long a stream that we ended may take to end on the other side.
const LAST_WORDS: Duration = Duration::from_secs(3);
