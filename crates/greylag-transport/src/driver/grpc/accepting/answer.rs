//! Answers calls: judges the Hello of a stream, and has an accepted stream read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::caller::Caller;
use super::caller_slots::CallerSlot;
use super::dropping_callers::caller_slot;
use super::opening::Opening;
use super::reader::{Reader, Replies, facts};
use super::violation::Violation;
use crate::admission::control::Intrusion;
use crate::association::Input;
use crate::driver::grpc::codec::{FrameCodec, OutFrame};
use crate::driver::grpc::http2::{FRAME_OVERHEAD, METHOD};
use crate::driver::grpc::local::{NoTurn, Turn};
use crate::driver::grpc::peers::{Admission, Refused};
use crate::driver::grpc::shared::TransportInner;
use crate::lanes::lane::Lane;
use crate::messages::hello::{Accepted, Features, Hello, HelloReply, Rejected};
use crate::remoting::RejectCode;
use crate::wire::{self, Frame};

/// Answers one call.
pub(crate) async fn answer(
    shared: Arc<TransportInner>,
    caller: Caller,
    request: http::Request<Body>,
) -> http::Response<Body> {
    if caller.guard.is_rejected() {
        return Status::unavailable("this connection is being closed").into_http();
    }
    if request.uri().path() != METHOD {
        caller.guard.report(Intrusion::NotGrpc, &format!("there is no {:?} here", request.uri().path()));
        return Status::unimplemented(which_port(&shared)).into_http();
    }
    let max = shared.node.settings.largest_message_size() + FRAME_OVERHEAD;
    let mut grpc = Grpc::new(FrameCodec).max_decoding_message_size(max).max_encoding_message_size(max);
    grpc.streaming(Open { shared, caller }, request.map(Opening::of)).await
}

/// The answer to a caller of another gRPC service: which port this is, and which setting names the admin service's.
fn which_port(shared: &TransportInner) -> String {
    format!(
        "this is the transport port of the node {}, which its peers dial; its admin service, if it has one, listens where \
         the node's setting management.address says",
        shared.node.endpoint.self_address.address()
    )
}

/// The service's one method.
struct Open {
    shared: Arc<TransportInner>,
    caller: Caller,
}

impl StreamingService<Bytes> for Open {
    type Response = OutFrame;
    type ResponseStream = ReceiverStream<Result<OutFrame, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(open(self.shared.clone(), self.caller.clone(), request))
    }
}

/// Limit of frames queued on the answering half.
const REPLIES: usize = 16;

async fn open(
    shared: Arc<TransportInner>,
    caller: Caller,
    request: Request<Streaming<Bytes>>,
) -> Result<Response<ReceiverStream<Result<OutFrame, Status>>>, Status> {
    let guard = &caller.guard;
    let mut frames = request.into_inner();
    let hello = match read_hello(&shared, &mut frames).await {
        Ok(hello) => hello,
        Err(None) => return Err(Status::cancelled("the stream broke before its Hello")),
        Err(Some(violation)) => {
            if violation.intrusion == Intrusion::Malformed {
                shared.counters.malformed();
            }
            guard.report(violation.intrusion, &violation.detail);
            return Err(Status::invalid_argument(violation.detail));
        }
    };
    let (replies, answers) = mpsc::channel(REPLIES);
    let (reply, greeted) = match greet(&shared, &hello, &caller, &replies).await {
        Ok(greeted) => {
            let version = greeted.version;
            let max = shared.node.settings.maximum_message_size(hello.lane.kind()) + FRAME_OVERHEAD;
            let from = shared.node.endpoint.self_address.clone();
            let features = hello.features.and(Features::OURS);
            let max_names = u32::try_from(shared.node.settings.intern_table_max).unwrap_or(u32::MAX);
            let (host_id, cluster_id) = (shared.node.facts.host_id(), shared.node.facts.cluster_id());
            let accepted =
                Accepted { from, version, features, max_frame_bytes: max as u64, max_names, cluster_id, host_id };
            (HelloReply::Accepted(accepted), Some(greeted))
        }
        Err(rejected) => {
            let detail = format!("the Hello of {} for {}: {}", hello.from, hello.lane, rejected.detail);
            if rejected.code == RejectCode::Terminating {
                // Log at debug level: the caller cannot know yet that this node ends.
                tracing::debug!(ip = %guard.ip, "refused: {detail}");
            } else {
                guard.report(Intrusion::Refused(rejected.code), &detail);
            }
            let from = Some(shared.node.endpoint.self_address.clone());
            (HelloReply::Rejected(Rejected { from, ..rejected }), None)
        }
    };
    let reply = wire::write_frame(&Frame::HelloReply(reply));
    replies.try_send(Ok(OutFrame::Ready(reply))).map_err(|_| Status::internal("no room for the first answer"))?;
    if let Some(Greeted { turn, slot, .. }) = greeted {
        if hello.lane != Lane::CONTROL {
            caller.runtime.move_to_data();
        }
        let runtime = shared.node.runtimes.of(hello.lane).clone();
        let reader = Reader::new(shared, guard.ip, guard.greeted(), slot, hello, replies);
        runtime.spawn(reader.run(frames, turn));
    }
    Ok(Response::new(ReceiverStream::new(answers)))
}

/// Reads the first frame, which must come soon and be a Hello. `Err(None)`: the caller has gone.
async fn read_hello(shared: &TransportInner, frames: &mut Streaming<Bytes>) -> Result<Hello, Option<Violation>> {
    let violation = |intrusion, detail| Some(Violation::new(intrusion, detail));
    let first = tokio::time::timeout(shared.node.settings.handshake_timeout, frames.message()).await;
    let first = first.map_err(|_| violation(Intrusion::NoHello, "no Hello came in time"))?;
    let first = first.map_err(|status| Violation::from_status(&status))?;
    let first = first.ok_or_else(|| violation(Intrusion::NoHello, "the stream ended before its Hello"))?;
    match wire::read_frame(first).map_err(|error| Some(error.into()))? {
        Frame::Hello(hello) => Ok(hello),
        _ => Err(violation(Intrusion::WrongFirstFrame, "the first frame must be a Hello")),
    }
}

/// The pause that a caller is told to make whose address a member holds (cluster T15).
const HELD_RETRY: Duration = Duration::from_secs(1);

/// A stream that was accepted.
struct Greeted {
    version: u32,
    turn: Turn,
    /// `None`: the peer is a member, or was reached.
    slot: Option<CallerSlot>,
}

/// Makes all checks that precede the reading of a stream.
async fn greet(
    shared: &Arc<TransportInner>,
    hello: &Hello,
    caller: &Caller,
    replies: &Replies,
) -> Result<Greeted, Rejected> {
    let own = &shared.node.endpoint.self_address;
    let version = hello.judge(own, &shared.node.settings.cluster_name)?;
    if let (Some(files), Some(certificate)) = (&shared.tls, &caller.certificate) {
        let checked = files.may_speak_for(certificate, hello.from.address().host());
        checked.map_err(|error| Rejected::new(RejectCode::Unauthorized, error.to_string()))?;
    }
    if hello.lane == Lane::CONTROL && shared.node.settings.untrusted_mode && shared.node.is_stranger(&hello.from) {
        let detail = format!("{} is no member, and this node is in untrusted mode", hello.from);
        return Err(Rejected::new(RejectCode::Unauthorized, detail));
    }
    if shared.node.shutdown.is_begun() {
        return Err(Rejected::new(RejectCode::Terminating, format!("{own} is shutting down")));
    }
    let slot = caller_slot(shared, &hello.from, caller.guard.ip);
    let slot = slot.map_err(|full| Rejected::new(RejectCode::TooManyStreams, full.to_string()))?;
    let peer = shared.peer(hello.from.address());
    if peer.fault.drops_inbound() {
        return Err(Rejected::new(RejectCode::NotReady, "blackholed on purpose"));
    }
    let dead = |reason| Rejected {
        reason,
        ..Rejected::new(RejectCode::Quarantined, format!("{own} takes {} for dead", hello.from))
    };
    let refused = |refused| match refused {
        Refused::Dead(reason) => dead(reason),
        Refused::Held(holder, detail) => Rejected {
            holder: Some(holder),
            retry_after: Some(HELD_RETRY),
            ..Rejected::new(RejectCode::NotReady, detail)
        },
    };
    let admission = shared.hello(&peer, hello.from.uid(), hello.host_id.clone()).map_err(refused)?;
    // Fetch the peer again: it may have been dropped when the Hello came.
    let peer = shared.peer(hello.from.address());
    if slot.is_some() {
        shared.input(&peer, Input::Unproven);
    }
    match admission {
        Admission::Known if peer.introduce(&shared.node, facts(hello, caller.guard.ip)) => {}
        Admission::Known => return Err(dead(None)),
        // Accept, but learn nothing from the Hello: the process joins over its control stream (cluster T15).
        Admission::ForJoin if hello.lane == Lane::CONTROL => {}
        Admission::ForJoin => {
            return Err(Rejected::new(
                RejectCode::NotReady,
                "the caller's address is dialled first to verify the process",
            ));
        }
    }
    match shared.node.streams.supersede(&hello.from, hello.lane, hello.stream_seq, replies).await {
        // Check again: the caller may have been replaced before its stream was entered here, too early for the
        // replacement to end the stream.
        Ok(_) if admission == Admission::Known && !peer.is_current(hello.from.uid()) => Err(dead(None)),
        Ok(turn) => Ok(Greeted { version, turn, slot }),
        Err(NoTurn::Older) => Err(Rejected::new(RejectCode::NotReady, "a newer stream of this lane is open")),
        Err(NoTurn::TooMany(count)) => {
            Err(Rejected::new(RejectCode::TooManyStreams, format!("{count} streams of {} are open", hello.from)))
        }
    }
}
