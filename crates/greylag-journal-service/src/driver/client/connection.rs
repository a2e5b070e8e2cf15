//! The link of a client to its server: opens it, sends calls over it, and waits for their outcomes.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use greylag_persistence::{
    Caps, CloseError, Health, OffsetCaps, Page, PersistenceId, QueryCaps, ReadError, SnapshotCaps, StateCaps,
    StoreFailure,
};
use greylag_transport::TlsFiles;
use prost::Message;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tonic::transport::Channel;

use super::super::link::{ClientIdentity, Link, LinkState, Reply, Session, SessionError};
use super::super::server::reload_certificates;
use crate::error::ConnectError;
use crate::generated::{self as proto, answer, call};
use crate::outbox::{Outcome, Submitted};
use crate::settings::{ClientSettings, MAX_FRAME_BYTES, MAX_IDS, MAX_PAGE_BYTES};
use crate::wire;

const INBOX_CALLS: usize = 1024;

/// The link of a client to its server, shared by the handles of all its stores.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) name: String,
    pub(super) settings: ClientSettings,
    pub(super) caps: Caps,
    pub(super) snapshot_caps: SnapshotCaps,
    /// `None` if durable states are not served.
    pub(super) state_caps: Option<StateCaps>,
    pub(super) offset_caps: Option<OffsetCaps>,
    pub(super) query_caps: Option<QueryCaps>,
    pub(super) change_caps: Option<QueryCaps>,
    next_request: AtomicU64,
    /// `None` once the client is closed.
    open: Mutex<Option<OpenLink>>,
    sender: mpsc::WeakSender<Submitted<Reply>>,
    pub(super) state: Arc<LinkState>,
    pub(super) channel: Channel,
}

/// Keeps the link alive: the link ends when no sender is left and every call is answered.
#[derive(Debug)]
struct OpenLink {
    calls: mpsc::Sender<Submitted<Reply>>,
    link: JoinHandle<()>,
}

/// How a call ended, for each method to map to its own error.
pub(super) enum CallOutcome {
    Answer {
        answer: answer::Answer,
        tried_before: bool,
    },
    /// The call is too large to be ever sent; the error text.
    TooLarge(String),
    NeverSent(StoreFailure),
    Unanswered(StoreFailure),
}

impl Connection {
    /// Opens the first session, and starts the link that keeps it open.
    pub(super) async fn open(
        address: &str,
        channel: Channel,
        tls: Option<Arc<TlsFiles>>,
        settings: ClientSettings,
    ) -> Result<Self, ConnectError> {
        let name = format!("journal service {address}");
        let client = ClientIdentity::new();
        let session = first_session(&channel, &client, address, &settings).await?;
        let welcome = session.welcome.clone();
        let state = Arc::new(LinkState::new(welcome.health.map_or(Health::Up, wire::health)));
        let (calls, inbox) = mpsc::channel(INBOX_CALLS);
        let sender = calls.downgrade();
        let link = Link { channel: channel.clone(), client, settings: settings.clone(), inbox, state: state.clone() };
        let link = tokio::spawn(async move {
            tokio::select! {
                () = link.run(session) => {}
                () = reload_certificates(tls) => {}
            }
        });
        Ok(Self {
            name,
            caps: wire::caps(welcome.journal.unwrap_or_default()),
            snapshot_caps: wire::snapshot_caps(welcome.snapshots.unwrap_or_default()),
            state_caps: welcome.states.map(wire::state_caps),
            offset_caps: welcome.offsets.map(wire::offset_caps),
            query_caps: welcome.queries.map(wire::query_caps),
            change_caps: welcome.changes.map(wire::query_caps),
            settings,
            next_request: AtomicU64::new(1),
            sender,
            open: Mutex::new(Some(OpenLink { calls, link })),
            state,
            channel,
        })
    }

    /// Sends a call and waits for its outcome.
    pub(super) async fn call(&self, call: call::Call, timeout: Duration) -> CallOutcome {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let encoded = proto::Call { request_id, call: Some(call) }.encode_to_vec();
        let (bytes, max) = (encoded.len(), MAX_FRAME_BYTES - 1024);
        if bytes > max {
            return CallOutcome::TooLarge(format!(
                "the call has {bytes} bytes, more than the {max} that a frame can hold"
            ));
        }
        let deadline = Instant::now() + timeout;
        let (reply, outcome) = oneshot::channel();
        let submitted = Submitted { request_id, encoded: encoded.into(), deadline, reply };
        let Some(sender) = self.sender.upgrade() else {
            return CallOutcome::NeverSent(self.failure("the client was closed"));
        };
        // Unconstrained by tokio's task budget: if there is room, the first poll queues the call, so that an append
        // dropped after its first poll is still stored (J13).
        let sent = tokio::time::timeout_at(deadline.into(), unconstrained(sender.send(submitted)));
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return CallOutcome::NeverSent(self.failure("the client was closed")),
            Err(_) => return CallOutcome::NeverSent(self.failure("too many calls are in progress")),
        }
        drop(sender);
        match outcome.await {
            Ok(Outcome::Answered { answer, tried_before }) => CallOutcome::Answer { answer, tried_before },
            Ok(Outcome::NeverSent { cause }) => CallOutcome::NeverSent(self.failure(cause)),
            Ok(Outcome::Unanswered { cause }) => CallOutcome::Unanswered(self.failure(cause)),
            Err(_) => CallOutcome::Unanswered(self.failure("the client's task ended")),
        }
    }

    /// The answer to an idempotent call, or why there is none.
    pub(super) async fn ask(&self, call: call::Call) -> Result<answer::Answer, StoreFailure> {
        match self.call(call, self.settings.call_timeout).await {
            CallOutcome::Answer { answer, .. } => Ok(answer),
            CallOutcome::TooLarge(why) => Err(self.failure(why)),
            CallOutcome::NeverSent(failure) | CallOutcome::Unanswered(failure) => Err(failure),
        }
    }

    pub(super) fn failure(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> StoreFailure {
        StoreFailure::new(&self.name, cause)
    }

    pub(super) fn unexpected_answer(&self) -> StoreFailure {
        self.failure("the server sent an answer of another kind")
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.upgrade().is_none()
    }

    /// Takes no more calls, and waits until those in progress are answered.
    pub(super) async fn close(&self) -> Result<(), CloseError> {
        let mut open = self.open.lock().await;
        let Some(OpenLink { calls, link }) = open.take() else { return Ok(()) };
        drop(calls);
        link.await.map_err(|error| CloseError(self.failure(error)))
    }

    /// A page of one history, of the journal or of a query side.
    pub(super) async fn read(&self, id: &PersistenceId, read: proto::Read) -> Result<Page, ReadError> {
        let read = proto::Read { max_bytes: read.max_bytes.min(MAX_PAGE_BYTES as u64), ..read };
        match self.ask(call::Call::Read(read)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Page(page) => {
                wire::page(id, page).map_err(|error| ReadError::Unavailable(self.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &self.name)),
            _ => Err(ReadError::Unavailable(self.unexpected_answer())),
        }
    }

    /// Lists ids in parts, each of as many as an answer may have.
    pub(super) async fn ids(
        &self,
        after: Option<&PersistenceId>,
        limit: usize,
        call: impl Fn(Option<String>, u64) -> call::Call,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let mut all: Vec<PersistenceId> = Vec::new();
        while all.len() < limit {
            let asked = MAX_IDS.min(limit - all.len());
            let after = all.last().or(after).map(|id| id.as_str().to_owned());
            let ids = match self.ask(call(after, asked as u64)).await.map_err(ReadError::Unavailable)? {
                answer::Answer::Ids(found) => found.ids,
                answer::Answer::Failure(failure) => return Err(wire::read_error(failure, &self.name)),
                _ => return Err(ReadError::Unavailable(self.unexpected_answer())),
            };
            let is_last = ids.len() < asked;
            for id in ids {
                all.push(wire::id(&id).map_err(|error| ReadError::Unavailable(self.failure(error)))?);
            }
            if is_last {
                break;
            }
        }
        Ok(all)
    }
}

async fn first_session(
    channel: &Channel,
    client: &ClientIdentity,
    address: &str,
    settings: &ClientSettings,
) -> Result<Session, ConnectError> {
    let address = address.to_owned();
    let give_up_at = Instant::now() + settings.connect_timeout;
    let mut backoff = settings.min_backoff;
    let mut cause = "no answer".to_owned();
    loop {
        let opening = Session::open(channel.clone(), client.clone());
        match tokio::time::timeout_at(give_up_at.into(), opening).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(SessionError::Refused(cause))) => return Err(ConnectError::Refused { address, cause }),
            Ok(Err(SessionError::Untrusted(cause))) => return Err(ConnectError::Untrusted { address, cause }),
            Ok(Err(SessionError::Unavailable(reason))) => cause = reason,
            Err(_) => return Err(ConnectError::Unreachable { address, cause }),
        }
        if Instant::now() + backoff >= give_up_at {
            return Err(ConnectError::Unreachable { address, cause });
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(settings.max_backoff);
    }
}
