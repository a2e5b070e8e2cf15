//! The client's task: keeps one session with the server open, and sends calls through it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use greylag_persistence::{Health, StoreReturns};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::dial::DialError;
use crate::VERSION;
use crate::generated::journal_service_client::JournalServiceClient;
use crate::generated::{self as proto, client_frame, server_frame};
use crate::outbox::{Done, Outbox, Outcome, Submitted};
use crate::settings::{ClientSettings, FRAME_BYTES, MAX_FRAME_BYTES};
use crate::wire;

/// Frames that may wait for the network. While they do, further calls are gathered for the next frame.
const OUTGOING_FRAMES: usize = 4;
const CALLS_PER_WAKE: usize = 1024;

pub(crate) type Reply = oneshot::Sender<Outcome>;
pub(crate) type Inbox = mpsc::Receiver<Submitted<Reply>>;

/// State of the link that the handles can see.
#[derive(Debug)]
pub(crate) struct LinkState {
    health: Mutex<Health>,
    /// Counts each time a session is opened again.
    pub(crate) store_returns: StoreReturns,
}

impl LinkState {
    pub(crate) fn new(health: Health) -> Self {
        Self { health: Mutex::new(health), store_returns: StoreReturns::of_one() }
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }
}

/// Identity of this client, for logs and for the server.
#[derive(Debug, Clone)]
pub(crate) struct ClientIdentity {
    /// Name for logs.
    name: String,
    /// The client's id, the same for every session, so that the server ends the old session when a new one begins.
    id: Bytes,
}

impl ClientIdentity {
    pub(crate) fn new() -> Self {
        let id = Bytes::copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        Self { name: format!("process {}", std::process::id()), id }
    }
}

/// One session: frames out, frames in, and the server's welcome.
pub(crate) struct Session {
    outgoing: mpsc::Sender<proto::ClientFrame>,
    incoming: Streaming<proto::ServerFrame>,
    pub(crate) welcome: proto::Welcome,
}

/// Why there is no session.
#[derive(Debug, Clone)]
pub(crate) enum SessionError {
    /// The server is unreachable, or refused for a passing reason: try again.
    Unavailable(String),
    /// The server will never accept this client.
    Refused(String),
    /// One end does not trust the other. A certificate may be replaced, so a later try may succeed.
    Untrusted(String),
}

impl Session {
    /// Says hello and waits for the welcome.
    pub(crate) async fn open(channel: Channel, client: ClientIdentity) -> Result<Self, SessionError> {
        let mut service = JournalServiceClient::new(channel)
            .max_decoding_message_size(MAX_FRAME_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES);
        let (outgoing, frames) = mpsc::channel(OUTGOING_FRAMES);
        let hello = proto::Hello {
            oldest_version: VERSION,
            newest_version: VERSION,
            client: client.name,
            client_id: client.id,
        };
        let frame = proto::ClientFrame { frame: Some(client_frame::Frame::Hello(hello)) };
        outgoing.try_send(frame).map_err(|_| SessionError::Unavailable("no room for the hello".into()))?;
        let response = service.session(ReceiverStream::new(frames)).await.map_err(|status| session_error(&status))?;
        let mut incoming = response.into_inner();
        let first = incoming.message().await.map_err(|status| session_error(&status))?;
        match first.and_then(|frame| frame.frame) {
            Some(server_frame::Frame::Welcome(welcome)) => Ok(Self { outgoing, incoming, welcome }),
            _ => Err(SessionError::Unavailable("the server did not answer the hello with a welcome".into())),
        }
    }
}

pub(crate) fn session_error(status: &tonic::Status) -> SessionError {
    if let Some(cause) = DialError::distrust(status) {
        return SessionError::Untrusted(cause);
    }
    let text = describe(status);
    // Only a server that understood the hello answers with these codes, and it would do so again.
    match status.code() {
        tonic::Code::FailedPrecondition | tonic::Code::Unimplemented => SessionError::Refused(text),
        _ => SessionError::Unavailable(text),
    }
}

/// A status with all its causes; tonic's own text often says only "transport error".
pub(crate) fn describe(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Sends calls until every handle is gone or the link is closed.
pub(crate) struct Link {
    pub(crate) channel: Channel,
    pub(crate) client: ClientIdentity,
    pub(crate) settings: ClientSettings,
    pub(crate) inbox: Inbox,
    pub(crate) state: Arc<LinkState>,
}

enum Connection {
    /// Waits until this time before the next try to connect.
    Waiting(Instant),
    Opening(BoxFuture<'static, Result<Session, SessionError>>),
    Open(Box<Session>),
}

/// The event that woke the task.
enum Event {
    Calls(usize),
    Tick,
    Opened(Result<Box<Session>, SessionError>),
    Frame(Result<Option<proto::ServerFrame>, tonic::Status>),
    /// The network has room for another frame.
    SendPermit(mpsc::OwnedPermit<proto::ClientFrame>),
    Lost,
}

impl Link {
    pub(crate) async fn run(mut self, session: Session) {
        let mut outbox = Outbox::new(self.settings.min_backoff, self.settings.unavailable_after);
        let mut connection = Connection::Open(Box::new(session));
        let mut backoff = self.settings.min_backoff;
        let mut closing = false;
        let (mut calls, mut done) = (Vec::new(), Vec::new());
        while !closing || outbox.len() > 0 {
            let deadline = next_wake(&connection, &outbox);
            let may_take = !closing && outbox.len() < self.settings.max_in_flight;
            let event = tokio::select! {
                event = next_event(&mut connection, outbox.has_unsent()) => event,
                taken = self.inbox.recv_many(&mut calls, CALLS_PER_WAKE), if may_take => Event::Calls(taken),
                () = sleep_until(deadline) => Event::Tick,
            };
            let now = Instant::now();
            match event {
                Event::Calls(0) => closing = true,
                Event::Calls(_) => calls.drain(..).for_each(|call| outbox.submit(call)),
                Event::Tick => {}
                Event::SendPermit(permit) => {
                    permit.send(calls_frame(outbox.next_frame(FRAME_BYTES)));
                }
                Event::Frame(Ok(Some(frame))) => self.on_frame(now, frame, &mut outbox, &mut done),
                Event::Frame(Ok(None)) | Event::Lost => {
                    self.on_lost(now, "the server ended the session", &mut connection, &mut backoff, &mut outbox);
                }
                Event::Frame(Err(status)) => {
                    self.on_lost(now, &describe(&status), &mut connection, &mut backoff, &mut outbox);
                }
                Event::Opened(Ok(session)) => {
                    tracing::info!(client = self.client.name, "connected to the journal service again");
                    self.state.set(session.welcome.health.clone().map_or(Health::Up, wire::health));
                    outbox.connected();
                    self.state.store_returns.note();
                    backoff = self.settings.min_backoff;
                    connection = Connection::Open(session);
                }
                Event::Opened(Err(
                    SessionError::Unavailable(cause) | SessionError::Refused(cause) | SessionError::Untrusted(cause),
                )) => {
                    self.on_lost(now, &cause, &mut connection, &mut backoff, &mut outbox);
                }
            }
            if matches!(connection, Connection::Waiting(until) if until <= now) {
                connection = Connection::Opening(Box::pin(self.reconnect()));
            }
            outbox.tick(now, &mut done);
            answer(&mut done);
        }
        self.state.set(Health::Down("the client was closed".into()));
    }

    /// Tries once to open a session, within `connect_timeout`.
    fn reconnect(&self) -> impl Future<Output = Result<Session, SessionError>> + use<> {
        let opening = Session::open(self.channel.clone(), self.client.clone());
        let limit = self.settings.connect_timeout;
        async move {
            let opened = tokio::time::timeout(limit, opening).await;
            opened.unwrap_or_else(|_| Err(SessionError::Unavailable(format!("no answer within {limit:?}"))))
        }
    }

    fn on_frame(
        &self,
        now: Instant,
        frame: proto::ServerFrame,
        outbox: &mut Outbox<Reply>,
        done: &mut Vec<Done<Reply>>,
    ) {
        match frame.frame {
            Some(server_frame::Frame::Answers(answers)) => {
                answers.answers.into_iter().for_each(|answer| outbox.answered(now, answer, done));
            }
            Some(server_frame::Frame::Health(health)) => self.state.set(wire::health(health)),
            // Ignored: a second welcome, or a frame of a later version.
            Some(server_frame::Frame::Welcome(_)) | None => {}
        }
    }

    fn on_lost(
        &self,
        now: Instant,
        cause: &str,
        connection: &mut Connection,
        backoff: &mut Duration,
        outbox: &mut Outbox<Reply>,
    ) {
        if matches!(connection, Connection::Open(_)) {
            tracing::warn!(
                client = self.client.name,
                cause,
                "the connection to the journal service was lost; calls wait, and unanswered ones are sent again"
            );
        }
        self.state.set(Health::Down(format!("the journal service cannot be reached: {cause}")));
        outbox.disconnected(now, cause);
        *connection = Connection::Waiting(now + *backoff);
        *backoff = (*backoff * 2).min(self.settings.max_backoff);
    }
}

async fn next_event(connection: &mut Connection, has_unsent: bool) -> Event {
    match connection {
        Connection::Waiting(_) => std::future::pending().await,
        Connection::Opening(opening) => Event::Opened(opening.await.map(Box::new)),
        Connection::Open(session) => tokio::select! {
            // Answers come first: they make room, and their callers send the next calls.
            biased;
            frame = session.incoming.message() => Event::Frame(frame),
            permit = session.outgoing.clone().reserve_owned(), if has_unsent => permit.map_or(Event::Lost, Event::SendPermit),
        },
    }
}

fn next_wake(connection: &Connection, outbox: &Outbox<Reply>) -> Option<Instant> {
    let reconnect_at = match connection {
        Connection::Waiting(until) => Some(*until),
        _ => None,
    };
    [reconnect_at, outbox.next_deadline()].into_iter().flatten().min()
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn calls_frame(calls: Vec<Bytes>) -> proto::ClientFrame {
    proto::ClientFrame { frame: Some(client_frame::Frame::Calls(proto::Calls { calls })) }
}

fn answer(done: &mut Vec<Done<Reply>>) {
    for (reply, outcome) in done.drain(..) {
        // The caller may have stopped waiting; the call was done all the same (J13).
        let _gone = reply.send(outcome);
    }
}
