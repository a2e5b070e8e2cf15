//! One client's session on the server: calls in, answers out, both many to a frame.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use greylag_persistence::{Journal, RejectReason, StoreFailure, Stores};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use crate::VERSION;
use crate::generated::{self as proto, answer, call, client_frame, server_frame};
use crate::settings::{FRAME_BYTES, MAX_PAGE_BYTES, ServerSettings};
use crate::wire;

const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// A call in progress: its answer, and the bytes that it held.
type InProgress = BoxFuture<'static, (proto::Answer, usize)>;
pub(super) type Frames = mpsc::Sender<Result<proto::ServerFrame, Status>>;

pub(super) struct Session {
    pub(super) stores: Stores,
    pub(super) settings: ServerSettings,
    pub(super) frames: Frames,
    pub(super) stop: watch::Receiver<bool>,
}

impl Session {
    /// Serves until the client goes, or the server stops.
    pub(super) async fn run(self, mut incoming: Streaming<proto::ClientFrame>) {
        if let Err(status) = self.serve(&mut incoming).await {
            tracing::debug!(%status, "journal session ended");
            let _gone = self.frames.send(Err(status)).await;
        }
    }

    async fn serve(&self, incoming: &mut Streaming<proto::ClientFrame>) -> Result<(), Status> {
        let client = self.welcome(incoming).await?;
        tracing::debug!(client, "journal session began");
        // Polled in the order in which they are pushed, so the journal gets a client's calls in the
        // order of its stream: a claim comes after the appends that were sent before it.
        let mut in_progress = FuturesUnordered::<InProgress>::new();
        let mut bytes_in_progress = 0;
        let mut told = self.stores.journal.health();
        let mut health = tokio::time::interval(HEALTH_INTERVAL);
        let mut stop = Box::pin(stopped(self.stop.clone()));
        loop {
            let room = in_progress.len() < self.settings.max_in_flight
                && bytes_in_progress < self.settings.max_in_flight_bytes;
            tokio::select! {
                () = &mut stop => break,
                frame = incoming.message(), if room => match frame? {
                    Some(frame) => bytes_in_progress += self.begin(frame, &in_progress)?,
                    None => return Ok(()),
                },
                Some(first) = in_progress.next(), if !in_progress.is_empty() => {
                    bytes_in_progress -= self.answer(first, &mut in_progress).await?;
                }
                _ = health.tick() => {
                    let now = self.stores.journal.health();
                    if now != told {
                        self.send(server_frame::Frame::Health(wire::from_health(now.clone()))).await?;
                        told = now;
                    }
                }
            }
        }
        // The server stops: nothing more is read, what was begun is answered.
        while let Some(first) = in_progress.next().await {
            self.answer(first, &mut in_progress).await?;
        }
        Err(Status::unavailable("the journal service is stopping"))
    }

    async fn welcome(&self, incoming: &mut Streaming<proto::ClientFrame>) -> Result<String, Status> {
        let first = incoming.message().await?.and_then(|frame| frame.frame);
        let Some(client_frame::Frame::Hello(hello)) = first else {
            return Err(Status::invalid_argument("a session begins with hello"));
        };
        check_version(hello.oldest_version, hello.newest_version)?;
        let welcome = proto::Welcome {
            version: VERSION,
            journal: Some(wire::from_caps(self.stores.journal.caps())),
            snapshots: Some(wire::from_snapshot_caps(self.stores.snapshots.caps())),
            health: Some(wire::from_health(self.stores.journal.health())),
            max_in_flight: u32::try_from(self.settings.max_in_flight).unwrap_or(u32::MAX),
        };
        self.send(server_frame::Frame::Welcome(welcome)).await?;
        Ok(hello.client)
    }

    /// Starts the calls of a frame; answers how many bytes they hold.
    fn begin(&self, frame: proto::ClientFrame, in_progress: &FuturesUnordered<InProgress>) -> Result<usize, Status> {
        // A frame of a later version says nothing to us.
        let Some(client_frame::Frame::Calls(calls)) = frame.frame else { return Ok(0) };
        let mut bytes = 0;
        for encoded in calls.calls {
            let size = encoded.len();
            let call = proto::Call::decode(encoded).map_err(|_| Status::invalid_argument("unreadable call"))?;
            let journal = self.stores.journal.clone();
            in_progress.push(run_call(journal, call).map(move |answer| (answer, size)).boxed());
            bytes += size;
        }
        Ok(bytes)
    }

    /// Sends an answer together with all others that are ready; answers how many bytes are free again.
    async fn answer(
        &self,
        first: (proto::Answer, usize),
        in_progress: &mut FuturesUnordered<InProgress>,
    ) -> Result<usize, Status> {
        let mut bytes = first.0.encoded_len();
        let mut freed = first.1;
        let mut answers = vec![first.0];
        while bytes < FRAME_BYTES {
            let Some(Some((answer, size))) = in_progress.next().now_or_never() else { break };
            bytes += answer.encoded_len();
            freed += size;
            answers.push(answer);
        }
        self.send(server_frame::Frame::Answers(proto::Answers { answers })).await?;
        Ok(freed)
    }

    async fn send(&self, frame: server_frame::Frame) -> Result<(), Status> {
        let frame = proto::ServerFrame { frame: Some(frame) };
        self.frames.send(Ok(frame)).await.map_err(|_| Status::cancelled("the client is gone"))
    }
}

/// Resolves once the server stops.
pub(super) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the server is gone, which is as good.
    let _gone = stop.wait_for(|stop| *stop).await;
}

/// Whether this server speaks one of the client's versions.
pub(super) fn check_version(oldest: u32, newest: u32) -> Result<(), Status> {
    if (oldest..=newest).contains(&VERSION) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "the client speaks versions {oldest} to {newest} of the journal protocol, this server speaks {VERSION}"
    )))
}

async fn run_call(journal: Arc<dyn Journal>, call: proto::Call) -> proto::Answer {
    let answer = match call.call {
        Some(call) => run_known(&*journal, call).await,
        None => rejected("this server does not know the call; upgrade it first"),
    };
    proto::Answer { request_id: call.request_id, answer: Some(answer) }
}

async fn run_known(journal: &dyn Journal, call: call::Call) -> answer::Answer {
    let done = match call {
        call::Call::Append(append) => run_append(journal, append).await,
        call::Call::Claim(claim) => run_claim(journal, claim).await,
        call::Call::Advance(advance) => run_advance(journal, advance).await,
        call::Call::Read(read) => run_read(journal, read).await,
        call::Call::Head(read) => run_head(journal, read).await,
        call::Call::DeleteTo(delete) => run_delete(journal, delete).await,
    };
    done.unwrap_or_else(|malformed| rejected(&malformed.to_string()))
}

async fn run_append(journal: &dyn Journal, append: proto::Append) -> wire::Decoded<answer::Answer> {
    Ok(match journal.append(wire::append(append)?).await {
        Ok(appended) => answer::Answer::Appended(proto::Appended { timestamp: appended.timestamp.as_micros() }),
        Err(error) => answer::Answer::Failure(wire::from_append_error(error)),
    })
}

async fn run_claim(journal: &dyn Journal, claim: proto::Claim) -> wire::Decoded<answer::Answer> {
    let (id, uuid) = (wire::id(&claim.persistence_id)?, wire::writer_uuid(&claim.writer_uuid)?);
    Ok(match journal.claim(&id, uuid, wire::under(claim.under)?).await {
        Ok(claim) => answer::Answer::Claimed(proto::Claimed {
            epoch: claim.epoch.as_u64(),
            highest: claim.highest.as_u64(),
            deleted_to: claim.deleted_to.as_u64(),
        }),
        Err(error) => answer::Answer::Failure(wire::from_claim_error(error)),
    })
}

async fn run_advance(journal: &dyn Journal, advance: proto::Advance) -> wire::Decoded<answer::Answer> {
    let (id, to) = (wire::id(&advance.persistence_id)?, wire::seq_nr(advance.to)?);
    Ok(match journal.advance(&id, greylag_persistence::WriterEpoch::from_u64(advance.epoch), to).await {
        Ok(()) => answer::Answer::Advanced(proto::Done {}),
        Err(error) => answer::Answer::Failure(wire::from_advance_error(error)),
    })
}

async fn run_read(journal: &dyn Journal, read: proto::Read) -> wire::Decoded<answer::Answer> {
    let (id, mut range) = (wire::id(&read.persistence_id)?, wire::read_range(&read)?);
    range.max_bytes = range.max_bytes.min(MAX_PAGE_BYTES);
    Ok(match journal.read(&id, range).await {
        Ok(page) => answer::Answer::Page(wire::from_page(page)),
        Err(error) => answer::Answer::Failure(wire::from_read_error(error)),
    })
}

async fn run_head(journal: &dyn Journal, read: proto::ReadHead) -> wire::Decoded<answer::Answer> {
    Ok(match journal.head(&wire::id(&read.persistence_id)?).await {
        Ok(head) => answer::Answer::Head(wire::from_head(head)),
        Err(error) => answer::Answer::Failure(wire::from_read_error(error)),
    })
}

async fn run_delete(journal: &dyn Journal, delete: proto::DeleteTo) -> wire::Decoded<answer::Answer> {
    let (id, to) = (wire::id(&delete.persistence_id)?, wire::seq_nr(delete.to)?);
    Ok(match journal.delete_to(&id, greylag_persistence::WriterEpoch::from_u64(delete.epoch), to).await {
        Ok(deleted_to) => answer::Answer::Deleted(proto::Deleted { deleted_to: deleted_to.as_u64() }),
        Err(error) => answer::Answer::Failure(wire::from_delete_error(error)),
    })
}

/// The call makes no sense; nothing of it was done, and repeating it will not help.
fn rejected(why: &str) -> answer::Answer {
    let error = greylag_persistence::AppendError::Rejected(RejectReason::Other(why.to_owned()));
    answer::Answer::Failure(wire::from_append_error(error))
}

/// A failure of the snapshot store's server half.
pub(super) fn unavailable(cause: impl ToString) -> greylag_persistence::SnapshotError {
    greylag_persistence::SnapshotError::Unavailable(StoreFailure::new("journal service", cause))
}
