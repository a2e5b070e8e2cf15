//! Dials one stream, says Hello, and reads the answering half.
//!
//! Every dial resolves the name anew and builds a connection of its own (cluster T5, T9). While the
//! stream lives, tonic polls its [`Outbound`]; this task only reads the other half.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{DeadLetterReason, UniqueAddress};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::connector::Connector;
use super::delayed::Delayed;
use super::failure::{self, FirstRead};
use super::outbound::{Agreed, Outbound, StreamState};
use super::resolve;
use crate::association::Input;
use crate::dials::failure::DialFailure;
use crate::dials::warnings::DialWarnings;
use crate::driver::grpc::codec::FrameCodec;
use crate::driver::grpc::http2::{self, FRAME_OVERHEAD, METHOD};
use crate::driver::grpc::local::Announcement;
use crate::driver::grpc::peers::{Dial, LinkEnd, Peer};
use crate::driver::grpc::shared::TransportInner;
use crate::endpoints::endpoint::shortened;
use crate::lanes::lane::Lane;
use crate::messages::hello::{Accepted, HelloReply, Rejected};
use crate::reliable::SenderInput;
use crate::remoting::{PeerInfo, RejectCode, TransportEvent};
use crate::wire::{self, Frame};

/// A stream that the peer accepted or rejected.
struct Opened {
    /// The cluster that our Hello named.
    said: Option<u128>,
    replies: Streaming<Bytes>,
    answer: HelloReply,
    ip: IpAddr,
}

/// Starts the task of a dial and its stream, on the runtime of the lane.
pub(crate) fn start(shared: Arc<TransportInner>, peer: Arc<Peer>, dial: Dial) {
    let runtime = shared.node.runtimes.of(dial.lane).clone();
    runtime.spawn(run(shared, peer, dial));
}

/// Dials, and returns when the stream has ended.
async fn run(shared: Arc<TransportInner>, peer: Arc<Peer>, Dial { lane, seq, end }: Dial) {
    let stream_state = Arc::new(StreamState::default());
    let dial = open(&shared, &peer, lane, seq, stream_state.clone());
    let opened = tokio::select! {
        opened = tokio::time::timeout(shared.node.settings.connection_timeout, dial) => opened,
        () = end.closed.notified() => return,
    };
    let opened = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(failure)) => return failed(&shared, &peer, lane, seq, failure),
        Err(_) => return failed(&shared, &peer, lane, seq, DialFailure::Silent),
    };
    let Opened { said, replies, answer, ip } = opened;
    match answer {
        HelloReply::Rejected(rejected) => {
            let by = rejected.from.as_ref().map(UniqueAddress::uid);
            let Rejected { code, reason, holder, detail, .. } = rejected;
            if code == RejectCode::Terminating || !code.is_retryable() {
                // Count the last word as ended: the peer reads nothing on this lane.
                shared.node.shutdown.terminating_done(&peer.address, lane);
            }
            if code.is_retryable() && holder.is_none() {
                tell_failure(&shared, &peer, lane, DialFailure::NotNow(shortened(detail.clone())));
            }
            shared.input(&peer, Input::Rejected { lane, seq, code, by, reason, holder, detail });
            peer.queue(lane).end(seq);
        }
        HelloReply::Accepted(Accepted { from, host_id, cluster_id, features, max_names, .. }) => {
            // Before the gate of the queue opens, so that the first frame is written by this agreement.
            stream_state.agree(Agreed { max_names: max_names as usize, zstd: features.zstd });
            lock(&peer.dial_warnings).reached();
            shared.input(&peer, Input::Accepted { lane, seq, uid: from.uid(), host_id: host_id.clone() });
            let info = PeerInfo { peer: from.clone(), ip, reached: true, host_id, cluster_id };
            if peer.introduce(&shared.node, info.clone()) {
                shared.node.announce(Announcement::Event(TransportEvent::DialAnswered(info)));
            }
            // Free the caller's slot: the peer is proven to run at the address that it names.
            shared.callers.vacate(&peer.address);
            if said != shared.node.facts.cluster_id() {
                // Repeat the Hello with what became known during the handshake; later news goes through the open gate.
                peer.greet_again(&shared.node, lane);
            }
            let received = listen(&shared, &peer, lane, &from, replies, &end).await;
            count_lost(&shared, &peer, lane, &from, stream_state.unread(received));
            shared.input(&peer, Input::Failed { lane, seq });
            // Only after the machine has closed the lane: a later last word then finds the lane closed.
            if peer.has_taken_leave(from.uid()) {
                shared.node.shutdown.terminating_done(&peer.address, lane);
            }
        }
    }
}

/// Counts messages that were written and are not known to have been read. To a peer that had announced its end they are
/// no warning: the peer ends at a moment of its own choice, and reports itself what it received and did not take.
fn count_lost(shared: &TransportInner, peer: &Peer, lane: Lane, from: &UniqueAddress, lost: u64) {
    if lost == 0 {
        return;
    }
    let reason = DeadLetterReason::LostInFlight;
    let (lane, to) = (Some(lane), Some(from.address()));
    let what = || "written, and not known to have been read".to_owned();
    if peer.has_taken_leave(from.uid()) {
        shared.node.endpoint.count_expected(reason, lane, to, lost, what);
    } else {
        shared.node.endpoint.count_dead_letter(Instant::now(), reason, lane, to, lost, what);
    }
}

fn failed(shared: &Arc<TransportInner>, peer: &Arc<Peer>, lane: Lane, seq: u64, failure: DialFailure) {
    // The peer refuses an expired certificate, and its alert may be lost with the connection (cluster 83).
    let has_expired = shared.tls.as_ref().is_some_and(|files| files.days_left() < 0);
    let hint = if has_expired { "; this node's certificate has expired" } else { "" };
    // Warn once failures last longer than messages wait for the peer: beyond that messages are lost.
    let patience = shared.node.settings.handshake_timeout;
    // A node that left in order closed its port, and seeds are dialled for other clusters (cluster M25) even when gone.
    let is_expected = failure == DialFailure::Refused && peer.is_vacant();
    if !is_expected && lock(&peer.dial_warnings).failed(Instant::now(), failure.may_pass(), patience) {
        tracing::warn!(peer = %peer.address, %lane, error = %failure, "a dial failed{hint}; it is repeated, and further failures are logged at debug");
    } else {
        tracing::debug!(peer = %peer.address, %lane, error = %failure, "a dial failed{hint}");
    }
    if failure == DialFailure::Refused && shared.node.shutdown.is_begun() {
        // Count the last word as ended: no process listens there any more.
        shared.node.shutdown.terminating_done(&peer.address, lane);
    }
    tell_failure(shared, peer, lane, failure);
    peer.queue(lane).end(seq);
    shared.input(peer, Input::Failed { lane, seq });
}

fn lock(dial_warnings: &Mutex<DialWarnings>) -> MutexGuard<'_, DialWarnings> {
    dial_warnings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports the failure to the layers above, once for all lanes of a peer.
fn tell_failure(shared: &Arc<TransportInner>, peer: &Arc<Peer>, lane: Lane, failure: DialFailure) {
    if lane == Lane::CONTROL {
        let address = peer.address.clone();
        shared.node.announce(Announcement::Event(TransportEvent::DialFailed { address, failure }));
    }
}

async fn open(
    shared: &Arc<TransportInner>,
    peer: &Arc<Peer>,
    lane: Lane,
    seq: u64,
    stream_state: Arc<StreamState>,
) -> Result<Opened, DialFailure> {
    if peer.fault.drops_outbound() {
        return Err(DialFailure::Broken("blackholed on purpose".to_owned()));
    }
    let mut last = DialFailure::UnknownHost("the name has no address".to_owned());
    let found = shared.resolver.look_up(&peer.address).await;
    let found = found.map_err(|error| DialFailure::UnknownHost(error.to_string()))?;
    let (targets, patience) = resolve::in_turn(found, seq, shared.node.settings.connection_timeout);
    for target in targets {
        let first_read = FirstRead::default();
        let host = peer.address.host().to_owned();
        let connector = Connector { shared: shared.clone(), target, host, lane, first_read: first_read.clone() };
        match channel(shared, target, lane, patience).connect_with_connector(connector).await {
            Ok(channel) => {
                return greet(shared, peer, (lane, seq), stream_state, channel, target.ip(), &first_read).await;
            }
            Err(error) => last = failure::of_connection(&error, &first_read),
        }
    }
    Err(last)
}

/// Says Hello on a connection, and waits for the answer.
async fn greet(
    shared: &Arc<TransportInner>,
    peer: &Arc<Peer>,
    (lane, seq): (Lane, u64),
    stream_state: Arc<StreamState>,
    channel: Channel,
    ip: IpAddr,
    first_read: &FirstRead,
) -> Result<Opened, DialFailure> {
    let refused = |status: Status| failure::of_status(&status, first_read);
    let max = shared.node.settings.maximum_message_size(lane.kind()) + FRAME_OVERHEAD;
    let mut client = Grpc::new(channel).max_decoding_message_size(max).max_encoding_message_size(max);
    client.ready().await.map_err(|error| failure::of_connection(&error, first_read))?;
    let hello = shared.node.hello(&peer.address, lane, seq);
    let said = hello.cluster_id;
    let hello = wire::write_frame(&Frame::Hello(hello));
    let outbound = Outbound::new(shared.clone(), peer.clone(), lane, seq, hello, stream_state);
    let outbound = Delayed::new(peer.clone(), outbound);
    let method = PathAndQuery::from_static(METHOD);
    let response = client.streaming(tonic::Request::new(outbound), method, FrameCodec).await;
    let mut replies = response.map_err(refused)?.into_inner();
    let first = replies.message().await.map_err(refused)?;
    let frame = first.map(wire::read_frame).transpose();
    match frame.map_err(|error| DialFailure::OtherProtocol(error.to_string()))? {
        Some(Frame::HelloReply(HelloReply::Accepted(accepted))) if accepted.from.address() != &peer.address => {
            Err(DialFailure::OtherNode(accepted.from))
        }
        Some(Frame::HelloReply(answer)) => Ok(Opened { said, replies, answer, ip }),
        other => Err(DialFailure::OtherProtocol(format!("the Hello was answered by {other:?}"))),
    }
}

fn channel(shared: &TransportInner, target: SocketAddr, lane: Lane, patience: Duration) -> Endpoint {
    let settings = &shared.node.settings;
    let window = http2::window(settings.maximum_message_size(lane.kind()));
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

/// Reads the answering half until it ends; returns how many envelopes the peer said it has read.
async fn listen(
    shared: &Arc<TransportInner>,
    peer: &Arc<Peer>,
    lane: Lane,
    from: &UniqueAddress,
    mut replies: Streaming<Bytes>,
    end: &LinkEnd,
) -> u64 {
    let mut received = 0;
    // After this node ends the stream, the peer reads the rest and ends its half; if the peer does not, stop waiting
    // after a while.
    let given_up = async {
        end.closed.notified().await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
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
            // Ignore the frame: the fault swallows what arrives.
            Ok(_) if peer.fault.drops_inbound() => {}
            Ok(Frame::Ack(seq)) => shared.numbered_input(peer, SenderInput::Ack { from: from.uid(), seq }),
            Ok(Frame::Nack(seq)) => shared.numbered_input(peer, SenderInput::Nack { from: from.uid(), seq }),
            Ok(Frame::FlushAck(id)) => shared.flushes.acked(from, lane, id),
            Ok(Frame::TerminatingAck) => shared.node.shutdown.terminating_done(&peer.address, lane),
            Ok(Frame::Quarantined { from, to, reason }) => {
                // Only a process at the peer's address speaks for the peer; the machine judges which incarnation.
                if to == shared.node.endpoint.self_address && from.address() == &peer.address {
                    shared.input(peer, Input::ToldQuarantined { by: from.uid(), reason });
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
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
