//! The handles of a client: a journal and a snapshot store like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::BoxFuture;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    Journal, NewSnapshot, Page, PersistenceId, ReadError, ReadRange, SeqNr, Snapshot, SnapshotCaps, SnapshotCriteria,
    SnapshotError, SnapshotStore, StoreFailure, Stores, Timestamp, Under, WriterEpoch, WriterUuid,
};
use prost::Message;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use super::link::{Link, LinkState, Reply, Session, SessionError, describe};
use crate::VERSION;
use crate::error::ConnectError;
use crate::generated::journal_service_client::JournalServiceClient;
use crate::generated::{self as proto, answer, call};
use crate::outbox::{Outcome, Submitted};
use crate::settings::{ClientSettings, MAX_FRAME_BYTES, MAX_PAGE_BYTES, MAX_SNAPSHOT_MESSAGE_BYTES};
use crate::wire;

type SnapshotCall<T> = BoxFuture<'static, Result<tonic::Response<T>, tonic::Status>>;

const INBOX_CALLS: usize = 1024;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// A connection to a journal service. Clones share it.
#[derive(Debug, Clone)]
pub struct JournalClient {
    inner: Arc<Inner>,
}

/// The served journal, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceJournal {
    inner: Arc<Inner>,
}

/// The served snapshot store.
#[derive(Debug, Clone)]
pub struct ServiceSnapshots {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    settings: ClientSettings,
    caps: Caps,
    snapshot_caps: SnapshotCaps,
    next_request: AtomicU64,
    /// Gone once the client is closed.
    open: Mutex<Option<Open>>,
    sender: mpsc::WeakSender<Submitted<Reply>>,
    state: Arc<LinkState>,
    channel: Channel,
}

/// Keeps the link alive: it ends once no sender is left and everything is answered.
#[derive(Debug)]
struct Open {
    calls: mpsc::Sender<Submitted<Reply>>,
    link: JoinHandle<()>,
}

/// What became of a call, as every method maps it.
enum Answered {
    Answer { answer: answer::Answer, tried_before: bool },
    NeverSent(StoreFailure),
    Unanswered(StoreFailure),
}

impl JournalClient {
    /// Connects to the service at `address` (`host:port`), waiting for it if it is still starting.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] if nobody answers in time, [`ConnectError::Refused`] if no
    /// protocol version is understood by both.
    pub async fn connect(address: &str, settings: ClientSettings) -> Result<Self, ConnectError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| ConnectError::Refused {
            address: address.to_owned(),
            cause: format!("not an address: {error}"),
        })?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect_timeout(settings.connect_timeout)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_lazy();
        let name = format!("journal service {address}");
        let client = format!("process {}", std::process::id());
        let session = first_session(&channel, &client, address, &settings).await?;
        let state = session.welcome.health.clone().map_or(Health::Up, wire::health);
        let state = Arc::new(LinkState::new(state));
        let caps = wire::caps(session.welcome.journal.unwrap_or_default());
        let snapshot_caps = wire::snapshot_caps(session.welcome.snapshots.unwrap_or_default());
        let (calls, inbox) = mpsc::channel(INBOX_CALLS);
        let sender = calls.downgrade();
        let link = Link { channel: channel.clone(), client, settings: settings.clone(), inbox, state: state.clone() };
        let link = tokio::spawn(link.run(session));
        let inner = Inner {
            name,
            caps,
            snapshot_caps,
            settings,
            next_request: AtomicU64::new(1),
            sender,
            open: Mutex::new(Some(Open { calls, link })),
            state,
            channel,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The journal.
    pub fn journal(&self) -> ServiceJournal {
        ServiceJournal { inner: self.inner.clone() }
    }

    /// The snapshot store.
    pub fn snapshots(&self) -> ServiceSnapshots {
        ServiceSnapshots { inner: self.inner.clone() }
    }

    /// Both, as entities take them.
    pub fn stores(&self) -> Stores {
        Stores::new(Arc::new(self.journal()), Arc::new(self.snapshots()))
    }
}

async fn first_session(
    channel: &Channel,
    client: &str,
    address: &str,
    settings: &ClientSettings,
) -> Result<Session, ConnectError> {
    let address = address.to_owned();
    let give_up_at = Instant::now() + settings.connect_timeout;
    let mut backoff = settings.min_backoff;
    let mut cause = "no answer".to_owned();
    loop {
        let opening = Session::open(channel.clone(), client.to_owned());
        match tokio::time::timeout_at(give_up_at.into(), opening).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(SessionError::Refused(cause))) => return Err(ConnectError::Refused { address, cause }),
            Ok(Err(SessionError::Away(reason))) => cause = reason,
            Err(_) => return Err(ConnectError::Unreachable { address, cause }),
        }
        if Instant::now() + backoff >= give_up_at {
            return Err(ConnectError::Unreachable { address, cause });
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(settings.max_backoff);
    }
}

impl Inner {
    /// Sends a call and waits for what becomes of it.
    async fn call(&self, call: call::Call, timeout: Duration) -> Answered {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let encoded = proto::Call { request_id, call: Some(call) }.encode_to_vec();
        if encoded.len() > MAX_FRAME_BYTES - 1024 {
            return Answered::NeverSent(self.failure(format!("a call of {} bytes is too large", encoded.len())));
        }
        let deadline = Instant::now() + timeout;
        let (reply, outcome) = oneshot::channel();
        let submitted = Submitted { request_id, encoded: encoded.into(), deadline, reply };
        let Some(sender) = self.sender.upgrade() else {
            return Answered::NeverSent(self.failure("the client was closed"));
        };
        match tokio::time::timeout_at(deadline.into(), sender.send(submitted)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Answered::NeverSent(self.failure("the client was closed")),
            Err(_) => return Answered::NeverSent(self.failure("too many calls are in progress")),
        }
        drop(sender);
        match outcome.await {
            Ok(Outcome::Answered { answer, tried_before }) => Answered::Answer { answer, tried_before },
            Ok(Outcome::NeverSent { cause }) => Answered::NeverSent(self.failure(cause)),
            Ok(Outcome::Unanswered { cause }) => Answered::Unanswered(self.failure(cause)),
            Err(_) => Answered::Unanswered(self.failure("the client's task ended")),
        }
    }

    /// The answer of a call that may be repeated harmlessly, or why there is none.
    async fn ask(&self, call: call::Call) -> Result<answer::Answer, StoreFailure> {
        match self.call(call, self.settings.call_timeout).await {
            Answered::Answer { answer, .. } => Ok(answer),
            Answered::NeverSent(failure) | Answered::Unanswered(failure) => Err(failure),
        }
    }

    fn failure(&self, cause: impl ToString) -> StoreFailure {
        StoreFailure::new(&self.name, cause)
    }

    fn other(&self) -> StoreFailure {
        self.failure("the server answered another call")
    }

    fn snapshot_service(&self) -> JournalServiceClient<Channel> {
        JournalServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES)
    }

    /// Repeats a snapshot call until it is answered or late; all of them may be repeated.
    async fn ask_snapshots<T>(
        &self,
        call: impl Fn(JournalServiceClient<Channel>) -> SnapshotCall<T>,
    ) -> Result<T, SnapshotError> {
        let give_up_at = Instant::now() + self.settings.snapshot_timeout;
        let mut backoff = self.settings.min_backoff;
        let unavailable = |cause: String| SnapshotError::Unavailable(self.failure(cause));
        loop {
            if self.sender.upgrade().is_none() {
                return Err(unavailable("the client was closed".into()));
            }
            let cause = match tokio::time::timeout_at(give_up_at.into(), call(self.snapshot_service())).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => describe(&status),
                Err(_) => return Err(unavailable("no answer in time".into())),
            };
            if Instant::now() + backoff >= give_up_at {
                return Err(unavailable(cause));
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(self.settings.max_backoff);
        }
    }

    /// Takes no more calls, and waits until those in progress are answered.
    async fn close(&self) -> Result<(), CloseError> {
        let mut open = self.open.lock().await;
        let Some(Open { calls, link }) = open.take() else { return Ok(()) };
        drop(calls);
        link.await.map_err(|error| CloseError(self.failure(error)))
    }
}

/// What an append that had an unanswered try may be told: Ok, Fenced proved by the head, and
/// Unknown. The refusal concerns the last try, and an earlier one may be stored. Source: J10.
fn settle(error: AppendError, tried_before: bool, last: SeqNr, store: &str) -> AppendError {
    let unknown = |error: AppendError| {
        let cause = format!("an earlier try went unanswered, the last one said: {error}");
        AppendError::Unknown(StoreFailure::new(store, cause))
    };
    match error {
        error if !tried_before => error,
        // The events may have been stored, and deleted since: then nothing shows it.
        AppendError::Fenced { current } if last <= current.deleted_to => unknown(AppendError::Fenced { current }),
        AppendError::Rejected(_) | AppendError::NotStored(_) | AppendError::Conflict { .. } => unknown(error),
        AppendError::Fenced { .. } | AppendError::Unknown(_) => error,
    }
}

#[async_trait]
impl Journal for ServiceJournal {
    fn caps(&self) -> Caps {
        self.inner.caps
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let inner = &self.inner;
        let claim = proto::Claim {
            persistence_id: id.as_str().to_owned(),
            writer_uuid: wire::from_writer_uuid(writer_uuid),
            under: Some(wire::from_under(under)),
        };
        match inner.ask(call::Call::Claim(claim)).await.map_err(ClaimError::Unavailable)? {
            answer::Answer::Claimed(claimed) => {
                let malformed = |error: wire::Malformed| ClaimError::Unavailable(inner.failure(error));
                Ok(Claim {
                    epoch: WriterEpoch::from_u64(claimed.epoch),
                    highest: wire::seq_nr(claimed.highest).map_err(malformed)?,
                    deleted_to: wire::seq_nr(claimed.deleted_to).map_err(malformed)?,
                })
            }
            answer::Answer::Failure(failure) => Err(wire::claim_error(failure, &inner.name)),
            _ => Err(ClaimError::Unavailable(inner.other())),
        }
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let inner = &self.inner;
        let advance = proto::Advance { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match inner.ask(call::Call::Advance(advance)).await.map_err(AdvanceError::Unavailable)? {
            answer::Answer::Advanced(proto::Done {}) => Ok(()),
            answer::Answer::Failure(failure) => Err(wire::advance_error(failure, &inner.name)),
            _ => Err(AdvanceError::Unavailable(inner.other())),
        }
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let inner = &self.inner;
        // Checked here as well: what is sure to be refused need not travel.
        append.check(&inner.caps).map_err(AppendError::Rejected)?;
        let last = append.last().unwrap_or(SeqNr::MAX);
        let call = call::Call::Append(wire::from_append(append));
        match inner.call(call, inner.settings.append_timeout).await {
            Answered::Answer { answer: answer::Answer::Appended(appended), .. } => {
                Ok(Appended { timestamp: Timestamp::from_micros(appended.timestamp) })
            }
            Answered::Answer { answer: answer::Answer::Failure(failure), tried_before } => {
                Err(settle(wire::append_error(failure, &inner.name), tried_before, last, &inner.name))
            }
            Answered::Answer { .. } => Err(AppendError::Unknown(inner.other())),
            Answered::NeverSent(failure) => Err(AppendError::NotStored(failure)),
            Answered::Unanswered(failure) => Err(AppendError::Unknown(failure)),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let inner = &self.inner;
        let range = ReadRange { max_bytes: range.max_bytes.min(MAX_PAGE_BYTES), ..range };
        match inner.ask(call::Call::Read(wire::from_read(id, range))).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Page(page) => {
                wire::page(id, page).map_err(|error| ReadError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &inner.name)),
            _ => Err(ReadError::Unavailable(inner.other())),
        }
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let inner = &self.inner;
        let read = proto::ReadHead { persistence_id: id.as_str().to_owned() };
        match inner.ask(call::Call::Head(read)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Head(head) => {
                wire::head(head).map_err(|error| ReadError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &inner.name)),
            _ => Err(ReadError::Unavailable(inner.other())),
        }
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let inner = &self.inner;
        let delete = proto::DeleteTo { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match inner.ask(call::Call::DeleteTo(delete)).await.map_err(DeleteError::Unavailable)? {
            answer::Answer::Deleted(deleted) => {
                wire::seq_nr(deleted.deleted_to).map_err(|error| DeleteError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::delete_error(failure, &inner.name)),
            _ => Err(DeleteError::Unavailable(inner.other())),
        }
    }

    fn health(&self) -> Health {
        self.inner.state.health()
    }

    /// Ends this client, for its snapshots too; the served journal goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

#[async_trait]
impl SnapshotStore for ServiceSnapshots {
    fn caps(&self) -> SnapshotCaps {
        self.inner.snapshot_caps
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        use proto::load_snapshot_response::Outcome;
        let inner = &self.inner;
        let request = proto::LoadSnapshotRequest {
            version: VERSION,
            persistence_id: id.as_str().to_owned(),
            criteria: Some(wire::from_criteria(criteria)),
        };
        let response = inner
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.load_snapshot(request).await })
            })
            .await?;
        match response.outcome {
            None => Ok(None),
            Some(Outcome::Snapshot(snapshot)) => {
                wire::snapshot(snapshot).map(Some).map_err(|error| SnapshotError::Unavailable(inner.failure(error)))
            }
            Some(Outcome::Failure(failure)) => Err(wire::snapshot_error(failure, &inner.name)),
        }
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        use proto::save_snapshot_response::Outcome;
        let inner = &self.inner;
        let (bytes, max) = (snapshot.payload.len(), inner.snapshot_caps.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        let snapshot = Some(wire::from_new_snapshot(snapshot));
        let request = proto::SaveSnapshotRequest { version: VERSION, snapshot };
        let response = inner
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.save_snapshot(request).await })
            })
            .await?;
        match response.outcome {
            Some(Outcome::Timestamp(timestamp)) => Ok(Timestamp::from_micros(timestamp)),
            Some(Outcome::Failure(failure)) => Err(wire::snapshot_error(failure, &inner.name)),
            None => Err(SnapshotError::Unavailable(inner.other())),
        }
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        self.delete_by(id, proto::delete_snapshots_request::Which::SeqNr(seq_nr.as_u64())).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let criteria = wire::from_criteria(criteria);
        self.delete_by(id, proto::delete_snapshots_request::Which::Criteria(criteria)).await
    }

    fn health(&self) -> Health {
        self.inner.state.health()
    }

    /// Ends this client, for its journal too; the served store goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

impl ServiceSnapshots {
    async fn delete_by(
        &self,
        id: &PersistenceId,
        which: proto::delete_snapshots_request::Which,
    ) -> Result<(), SnapshotError> {
        let inner = &self.inner;
        let persistence_id = id.as_str().to_owned();
        let request = proto::DeleteSnapshotsRequest { version: VERSION, persistence_id, which: Some(which) };
        let response = inner
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.delete_snapshots(request).await })
            })
            .await?;
        response.failure.map_or(Ok(()), |failure| Err(wire::snapshot_error(failure, &inner.name)))
    }
}

#[cfg(test)]
mod tests {
    use greylag_persistence::RejectReason;

    use super::*;

    /// Scenarios persistence 61 and 62.
    #[test]
    fn after_an_unanswered_try_only_ok_fenced_and_unknown_are_left() {
        let last = SeqNr::from(5);
        let failure = StoreFailure::new("journal", "cause");
        let fenced = |deleted_to: u32| AppendError::Fenced {
            current: Head { deleted_to: deleted_to.into(), ..Head::default() },
        };
        for error in [
            AppendError::Rejected(RejectReason::StorageLow("full".into())),
            AppendError::NotStored(failure.clone()),
            AppendError::Conflict { highest: last },
            fenced(5),
        ] {
            assert_eq!(settle(error.clone(), false, last, "journal"), error);
            assert!(matches!(settle(error, true, last, "journal"), AppendError::Unknown(_)));
        }
        for error in [AppendError::Unknown(failure), fenced(4)] {
            assert_eq!(settle(error.clone(), true, last, "journal"), error);
        }
    }
}
