//! A client: one link to the server, and the handles of all served stores.

mod journal;
mod offsets;
mod queries;
mod snapshots;
mod states;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use greylag_persistence::{
    Caps, CloseError, Health, OffsetCaps, QueryCaps, SnapshotCaps, StateCaps, StoreFailure, Stores,
};
use greylag_transport::{Tls, TlsFiles};
use prost::Message;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tonic::transport::{Channel, Endpoint};

pub use self::journal::ServiceJournal;
pub use self::offsets::ServiceOffsets;
pub use self::queries::ServiceQueries;
pub use self::snapshots::ServiceSnapshots;
pub use self::states::ServiceStates;

use super::dial::Dialer;
use super::link::{Caller, Link, LinkState, Reply, Session, SessionError};
use super::server::keep_reading;
use crate::error::ConnectError;
use crate::generated::{self as proto, answer, call};
use crate::outbox::{Outcome, Submitted};
use crate::settings::{ClientSettings, MAX_FRAME_BYTES};
use crate::wire;

const INBOX_CALLS: usize = 1024;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// A connection to a journal service. Clones share it.
#[derive(Debug, Clone)]
pub struct JournalClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    settings: ClientSettings,
    caps: Caps,
    snapshot_caps: SnapshotCaps,
    /// `None` if durable states are not served.
    state_caps: Option<StateCaps>,
    offset_caps: Option<OffsetCaps>,
    query_caps: Option<QueryCaps>,
    change_caps: Option<QueryCaps>,
    next_request: AtomicU64,
    /// `None` once the client is closed.
    open: Mutex<Option<Open>>,
    sender: mpsc::WeakSender<Submitted<Reply>>,
    state: Arc<LinkState>,
    channel: Channel,
}

/// Keeps the link alive: the link ends when no sender is left and every call is answered.
#[derive(Debug)]
struct Open {
    calls: mpsc::Sender<Submitted<Reply>>,
    link: JoinHandle<()>,
}

/// How a call ended, for each method to map to its own error.
enum Answered {
    Answer {
        answer: answer::Answer,
        tried_before: bool,
    },
    /// The call is too large to be ever sent; the error text.
    TooLarge(String),
    NeverSent(StoreFailure),
    Unanswered(StoreFailure),
}

impl JournalClient {
    /// Connects to the service at `address` (`host:port`). Waits for a server that is still starting.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] if no server answers in time, [`ConnectError::Refused`] if the two have no
    /// protocol version in common, [`ConnectError::Untrusted`] if one end does not trust the other's certificate; and
    /// for invalid settings or files.
    pub async fn connect(address: &str, settings: ClientSettings) -> Result<Self, ConnectError> {
        settings.check()?;
        let tls = match &settings.tls {
            Tls::Files(files) => Some(Arc::new(TlsFiles::of_caller(files.clone())?)),
            Tls::LoopbackOnly | Tls::None => None,
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| ConnectError::Refused {
            address: address.to_owned(),
            cause: format!("not an address: {error}"),
        })?;
        let channel = endpoint
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_with_connector_lazy(Dialer { tls: tls.clone(), timeout: settings.connect_timeout });
        let name = format!("journal service {address}");
        let client = Caller::new();
        let session = first_session(&channel, &client, address, &settings).await?;
        let welcome = session.welcome.clone();
        let state = Arc::new(LinkState::new(welcome.health.map_or(Health::Up, wire::health)));
        let (calls, inbox) = mpsc::channel(INBOX_CALLS);
        let sender = calls.downgrade();
        let link = Link { channel: channel.clone(), client, settings: settings.clone(), inbox, state: state.clone() };
        let link = tokio::spawn(async move {
            tokio::select! {
                () = link.run(session) => {}
                () = keep_reading(tls) => {}
            }
        });
        let inner = Inner {
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

    /// The durable states, if they are served.
    pub fn states(&self) -> Option<ServiceStates> {
        self.inner.state_caps.map(|caps| ServiceStates { inner: self.inner.clone(), caps })
    }

    /// The offset store of projections, if it is served.
    pub fn offsets(&self) -> Option<ServiceOffsets> {
        self.inner.offset_caps.map(|caps| ServiceOffsets { inner: self.inner.clone(), caps })
    }

    /// The query side of the journal, if it is served.
    pub fn queries(&self) -> Option<ServiceQueries> {
        self.inner.query_caps.map(|caps| ServiceQueries { inner: self.inner.clone(), caps, of_changes: false })
    }

    /// The query side of the durable states, if it is served.
    pub fn changes(&self) -> Option<ServiceQueries> {
        self.inner.change_caps.map(|caps| ServiceQueries { inner: self.inner.clone(), caps, of_changes: true })
    }

    /// Journal, snapshots, and durable states if they are served, as entities take them.
    pub fn stores(&self) -> Stores {
        let stores = Stores::new(Arc::new(self.journal()), Arc::new(self.snapshots()));
        match self.states() {
            Some(states) => stores.with_states(Arc::new(states)),
            None => stores,
        }
    }
}

async fn first_session(
    channel: &Channel,
    client: &Caller,
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
    /// Sends a call and waits for its outcome.
    async fn call(&self, call: call::Call, timeout: Duration) -> Answered {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let encoded = proto::Call { request_id, call: Some(call) }.encode_to_vec();
        let (bytes, max) = (encoded.len(), MAX_FRAME_BYTES - 1024);
        if bytes > max {
            return Answered::TooLarge(format!("the call has {bytes} bytes, a frame takes {max}"));
        }
        let deadline = Instant::now() + timeout;
        let (reply, outcome) = oneshot::channel();
        let submitted = Submitted { request_id, encoded: encoded.into(), deadline, reply };
        let Some(sender) = self.sender.upgrade() else {
            return Answered::NeverSent(self.failure("the client was closed"));
        };
        // Unconstrained by tokio's task budget: if there is room, the first poll queues the call, so that an append
        // dropped after its first poll is still stored (J13).
        let sent = tokio::time::timeout_at(deadline.into(), unconstrained(sender.send(submitted)));
        match sent.await {
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

    /// The answer to an idempotent call, or why there is none.
    async fn ask(&self, call: call::Call) -> Result<answer::Answer, StoreFailure> {
        match self.call(call, self.settings.call_timeout).await {
            Answered::Answer { answer, .. } => Ok(answer),
            Answered::TooLarge(why) => Err(self.failure(why)),
            Answered::NeverSent(failure) | Answered::Unanswered(failure) => Err(failure),
        }
    }

    fn failure(&self, cause: impl ToString) -> StoreFailure {
        StoreFailure::new(&self.name, cause)
    }

    fn other(&self) -> StoreFailure {
        self.failure("the server answered another call")
    }

    /// Takes no more calls, and waits until those in progress are answered.
    async fn close(&self) -> Result<(), CloseError> {
        let mut open = self.open.lock().await;
        let Some(Open { calls, link }) = open.take() else { return Ok(()) };
        drop(calls);
        link.await.map_err(|error| CloseError(self.failure(error)))
    }
}
