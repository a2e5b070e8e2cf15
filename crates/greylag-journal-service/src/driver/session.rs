//! One client's session on the server: calls in, answers out, both many to a frame.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use greylag_persistence::StoreFailure;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use super::active_sessions::ActiveSessions;
use super::calls;
use super::hello_guard::Identified;
use super::stop::stopped;
use crate::VERSION;
use crate::generated::{self as proto, client_frame, server_frame};
use crate::served::Served;
use crate::settings::{FRAME_BYTES, ServerSettings};
use crate::wire;

const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// A call in progress: its answer, and the bytes that are reserved for it.
type InProgress = BoxFuture<'static, (proto::Answer, usize)>;
pub(super) type Frames = mpsc::Sender<Result<proto::ServerFrame, Status>>;

pub(super) struct Session {
    pub(super) served: Served,
    pub(super) settings: ServerSettings,
    pub(super) active: Arc<ActiveSessions>,
    pub(super) frames: Frames,
    pub(super) stop: watch::Receiver<bool>,
    /// Extensions of the request that began the session; they identify its connection.
    pub(super) extensions: tonic::Extensions,
}

/// The calls of one client: those that wait, and those in progress.
#[derive(Default)]
struct Calls {
    /// Calls of at most one frame: the next frame is read when all of these are begun.
    waiting: VecDeque<Bytes>,
    /// Polled in the order in which they are pushed, so the stores get the calls in the order of the client's stream: a
    /// claim comes after all appends that were sent before it.
    in_progress: FuturesUnordered<InProgress>,
    bytes: usize,
}

impl Session {
    /// Serves until the client leaves or opens another session, or the server stops.
    pub(super) async fn run(self, mut incoming: Streaming<proto::ClientFrame>) {
        if let Err(status) = self.serve(&mut incoming).await {
            tracing::debug!(%status, "journal session ended");
            let _gone = self.frames.send(Err(status)).await;
        }
    }

    async fn serve(&self, incoming: &mut Streaming<proto::ClientFrame>) -> Result<(), Status> {
        let within = self.settings.hello_timeout;
        let hello = tokio::select! {
            hello = tokio::time::timeout(within, self.hello(incoming)) => {
                hello.map_err(|_| Status::deadline_exceeded(format!("no hello within {within:?}")))??
            }
            // A client that has not said hello has no calls in progress, so a stop need not wait for it.
            () = stopped(self.stop.clone()) => return Err(Status::unavailable("the journal service is stopping")),
        };
        Identified::mark(&self.extensions);
        let mut slot = ActiveSessions::begin(&self.active, &hello.client_id).await?;
        let serving = self.serve_calls(incoming, &hello.client);
        // Cancels `serve_calls` at any await: a client that is back must not wait for answers that it left unread.
        tokio::select! {
            () = slot.superseded() => Err(Status::aborted("the client has begun another session")),
            served = serving => served,
        }
    }

    async fn serve_calls(&self, incoming: &mut Streaming<proto::ClientFrame>, client: &str) -> Result<(), Status> {
        self.send(server_frame::Frame::Welcome(self.welcome())).await?;
        tracing::debug!(client, "journal session began");
        let mut calls = Calls::default();
        let mut reported = self.served.stores.journal.health();
        let mut health = tokio::time::interval(HEALTH_INTERVAL);
        let mut stop = Box::pin(stopped(self.stop.clone()));
        loop {
            self.begin(&mut calls)?;
            tokio::select! {
                () = &mut stop => break,
                frame = incoming.message(), if calls.waiting.is_empty() => match frame? {
                    Some(frame) => calls.enqueue(frame),
                    None => return Ok(()),
                },
                Some(first) = calls.in_progress.next(), if !calls.in_progress.is_empty() => {
                    self.answer(first, &mut calls).await?;
                }
                _ = health.tick() => {
                    let now = self.served.stores.journal.health();
                    if now != reported {
                        self.send(server_frame::Frame::Health(wire::from_health(now.clone()))).await?;
                        reported = now;
                    }
                }
            }
        }
        // The server stops: no call is begun any more, and those in progress are answered.
        while let Some(first) = calls.in_progress.next().await {
            self.answer(first, &mut calls).await?;
        }
        Err(Status::unavailable("the journal service is stopping"))
    }

    async fn hello(&self, incoming: &mut Streaming<proto::ClientFrame>) -> Result<proto::Hello, Status> {
        let first = incoming.message().await?.and_then(|frame| frame.frame);
        let Some(client_frame::Frame::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first frame of a session must be a hello"));
        };
        check_version(hello.oldest_version, hello.newest_version)?;
        Ok(hello)
    }

    fn welcome(&self) -> proto::Welcome {
        let Served { stores, offsets, queries, changes } = &self.served;
        proto::Welcome {
            version: VERSION,
            journal: Some(wire::from_caps(stores.journal.caps())),
            snapshots: Some(wire::from_snapshot_caps(stores.snapshots.caps())),
            health: Some(wire::from_health(stores.journal.health())),
            max_in_flight: u32::try_from(self.settings.max_in_flight).unwrap_or(u32::MAX),
            states: stores.states.as_ref().map(|states| wire::from_state_caps(states.caps())),
            offsets: offsets.as_ref().map(|offsets| wire::from_offset_caps(offsets.caps())),
            queries: queries.as_ref().map(|queries| wire::from_query_caps(queries.caps())),
            changes: changes.as_ref().map(|changes| wire::from_query_caps(changes.caps())),
        }
    }

    /// Begins waiting calls, within the limits of their number and their bytes.
    fn begin(&self, calls: &mut Calls) -> Result<(), Status> {
        let ServerSettings { max_in_flight, max_in_flight_bytes, .. } = self.settings;
        while calls.in_progress.len() < max_in_flight && calls.bytes < max_in_flight_bytes {
            let Some(encoded) = calls.waiting.pop_front() else { break };
            let size = encoded.len();
            let call =
                proto::Call::decode(encoded).map_err(|_| Status::invalid_argument("a call cannot be decoded"))?;
            let bytes = size + calls::reserve(&call, &self.served);
            calls.bytes += bytes;
            calls.in_progress.push(calls::run(self.served.clone(), call).map(move |answer| (answer, bytes)).boxed());
        }
        Ok(())
    }

    /// Sends an answer together with all others that are ready, and frees the bytes reserved for them.
    async fn answer(&self, first: (proto::Answer, usize), calls: &mut Calls) -> Result<(), Status> {
        let mut bytes = first.0.encoded_len();
        let mut freed = first.1;
        let mut answers = vec![first.0];
        while bytes < FRAME_BYTES {
            let Some(Some((answer, kept))) = calls.in_progress.next().now_or_never() else { break };
            bytes += answer.encoded_len();
            freed += kept;
            answers.push(answer);
        }
        // Waits while the client does not read its answers, so that no further call of it is begun.
        self.send(server_frame::Frame::Answers(proto::Answers { answers })).await?;
        calls.bytes -= freed;
        Ok(())
    }

    async fn send(&self, frame: server_frame::Frame) -> Result<(), Status> {
        let frame = proto::ServerFrame { frame: Some(frame) };
        self.frames.send(Ok(frame)).await.map_err(|_| Status::cancelled("the client has closed the session"))
    }
}

impl Calls {
    fn enqueue(&mut self, frame: proto::ClientFrame) {
        // A frame of a later version is ignored.
        if let Some(client_frame::Frame::Calls(calls)) = frame.frame {
            self.waiting.extend(calls.calls);
        }
    }
}

/// Checks that this server implements one of the client's versions.
pub(super) fn check_version(oldest: u32, newest: u32) -> Result<(), Status> {
    if (oldest..=newest).contains(&VERSION) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "the client speaks versions {oldest} to {newest} of the journal protocol, this server speaks {VERSION}"
    )))
}

/// The error of the server's snapshot half for a failure of transport.
pub(super) fn unavailable(
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> greylag_persistence::SnapshotError {
    greylag_persistence::SnapshotError::Unavailable(StoreFailure::new("journal service", cause))
}

#[cfg(test)]
mod tests;
