//! A client that breaks the rules, against a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use greylag_core::CodecId;
use greylag_persistence::{
    Append, EventKind, EventPage, EventQueries, EventsOf, InMemoryOffsets, NewEvent, OffsetKind, OffsetStore, Page,
    PageQuery, PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange, Scope, SeqNr, Shows, Stores,
    Timestamp, WriterEpoch, WriterUuid,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::generated::journal_service_client::JournalServiceClient;
use crate::generated::{answer, call};
use crate::settings::{ClientSettings, MAX_FRAME_BYTES};
use crate::{JournalClient, JournalServer};

/// Queries that wait until the test lets them answer.
struct GatedQueries {
    answers: Semaphore,
    begun: watch::Sender<usize>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl GatedQueries {
    fn new() -> Arc<Self> {
        let (answers, begun) = (Semaphore::new(0), watch::Sender::new(0));
        Arc::new(Self { answers, begun, now: AtomicUsize::new(0), most: AtomicUsize::new(0) })
    }

    async fn pass(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.begun.send_modify(|begun| *begun += 1);
        self.answers.acquire().await.unwrap().forget();
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl EventQueries for GatedQueries {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Process, kind: OffsetKind::Ordinal, shows: Shows::Every }
    }

    async fn persistence_ids(
        &self,
        _: Option<&str>,
        _: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        self.begun.send_modify(|begun| *begun += 1);
        Ok((0..limit).map(|number| format!("{number:0>200}").parse().unwrap()).collect())
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.pass().await;
        Ok(None)
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        self.pass().await;
        Ok(EventPage { events: Vec::new(), next: query.after.clone(), more: false })
    }

    /// Answers one event that is larger than any frame.
    async fn read(&self, id: &PersistenceId, _: ReadRange) -> Result<Page, ReadError> {
        let event = NewEvent {
            codec_id: CodecId::JSON,
            manifest: "huge".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: vec![0; MAX_FRAME_BYTES].into(),
            metadata: Default::default(),
            tags: Default::default(),
        };
        let (epoch, first) = (WriterEpoch::NONE, SeqNr::FIRST);
        let append = Append { id: id.clone(), epoch, writer_uuid: WriterUuid::NONE, first, events: vec![event] };
        Ok(Page { records: append.records(Timestamp::default()), next: None })
    }
}

async fn serve(queries: Arc<GatedQueries>, settings: ServerSettings) -> (JournalServer, InMemoryOffsets) {
    let offsets = InMemoryOffsets::default();
    let served = Served::new(Stores::in_memory()).with_offsets(Arc::new(offsets.clone())).with_queries(queries);
    (JournalServer::bind("127.0.0.1:0".parse().unwrap(), served, settings).await.unwrap(), offsets)
}

async fn dial(server: &JournalServer) -> JournalServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.local_address())).unwrap();
    JournalServiceClient::new(endpoint.connect().await.unwrap())
}

/// A client that can send any frames.
struct RawClient {
    outgoing: mpsc::Sender<proto::ClientFrame>,
    incoming: Streaming<proto::ServerFrame>,
}

impl RawClient {
    async fn hello(server: &JournalServer, client: u128, version: u32) -> Self {
        let mut service = dial(server).await;
        let (outgoing, frames) = mpsc::channel(4);
        let raw = Self { incoming: service.session(ReceiverStream::new(frames)).await.unwrap().into_inner(), outgoing };
        let client_id = Bytes::copy_from_slice(&client.to_be_bytes());
        let (oldest_version, newest_version) = (version, version);
        let hello = proto::Hello { oldest_version, newest_version, client: "raw".into(), client_id };
        raw.send_frame(client_frame::Frame::Hello(hello)).await;
        raw
    }

    /// Opens a session without sending anything.
    async fn silent(server: &JournalServer) -> Self {
        let mut service = dial(server).await;
        let (outgoing, frames) = mpsc::channel(4);
        Self { incoming: service.session(ReceiverStream::new(frames)).await.unwrap().into_inner(), outgoing }
    }

    async fn welcomed(server: &JournalServer, client: u128) -> Self {
        let mut raw = Self::hello(server, client, VERSION).await;
        let first = raw.incoming.message().await.unwrap().unwrap();
        assert!(matches!(first.frame, Some(server_frame::Frame::Welcome(_))));
        raw
    }

    async fn send_frame(&self, frame: client_frame::Frame) {
        self.outgoing.send(proto::ClientFrame { frame: Some(frame) }).await.unwrap();
    }

    /// Sends all calls in one frame.
    async fn call(&self, calls: impl IntoIterator<Item = call::Call>) {
        let calls = calls.into_iter().zip(1..).map(|(call, request_id)| proto::Call { request_id, call: Some(call) });
        let calls = calls.map(|call| call.encode_to_vec().into()).collect();
        self.send_frame(client_frame::Frame::Calls(proto::Calls { calls })).await;
    }

    async fn answers(&mut self, count: usize) -> Vec<answer::Answer> {
        let mut all = Vec::new();
        while all.len() < count {
            if let Some(server_frame::Frame::Answers(answers)) = self.incoming.message().await.unwrap().unwrap().frame {
                all.extend(answers.answers.into_iter().filter_map(|answer| answer.answer));
            }
        }
        all
    }
}

fn newest() -> call::Call {
    call::Call::FindNewest(proto::FindNewest::default())
}

fn claim() -> call::Call {
    call::Call::ClaimSlices(proto::ClaimSlices { projection: "carts".into(), first: 7, last: 7 })
}

/// Rule persistence §4.4a (`service.max_in_flight`): however many calls a client sends at once, no more than the limit
/// are in progress, and all are answered.
///
/// On one thread: when the session has begun any calls, it has begun all that it may.
#[tokio::test]
async fn no_more_calls_of_a_client_are_in_progress_than_may_be() {
    const CALLS: usize = 200;
    let gated = GatedQueries::new();
    let (server, _) = serve(gated.clone(), ServerSettings { max_in_flight: 3, ..ServerSettings::test() }).await;
    let mut raw = RawClient::welcomed(&server, 1).await;
    raw.call((0..CALLS).map(|_| newest())).await;
    raw.call((0..CALLS).map(|_| newest())).await;
    gated.begun.subscribe().wait_for(|begun| *begun >= 3).await.unwrap();
    gated.answers.add_permits(2 * CALLS);
    raw.answers(2 * CALLS).await;
    assert_eq!(gated.most.load(Ordering::SeqCst), 3);
}

/// The same for the bytes that calls and their answers may take: a page counts with its largest size.
///
/// On one thread: when the session has begun any calls, it has begun all that it may.
#[tokio::test]
async fn no_more_bytes_of_a_client_are_kept_than_may_be() {
    const CALLS: usize = 50;
    let gated = GatedQueries::new();
    let settings = ServerSettings { max_in_flight_bytes: 8 << 20, ..ServerSettings::test() };
    let (server, _) = serve(gated.clone(), settings).await;
    let mut raw = RawClient::welcomed(&server, 1).await;
    let query = PageQuery {
        of: EventsOf::Tag("any".into()),
        after: greylag_persistence::Cursor::Start,
        until: None,
        visible: greylag_persistence::Visible::All,
        limit: 1000,
        load: true,
    };
    raw.call((0..CALLS).map(|_| call::Call::FindEvents(wire::from_page_query(&query)))).await;
    gated.begun.subscribe().wait_for(|begun| *begun >= 2).await.unwrap();
    gated.answers.add_permits(CALLS);
    raw.answers(CALLS).await;
    assert_eq!(gated.most.load(Ordering::SeqCst), 2, "two pages of 4 MiB");
}

/// Rule persistence §4.4a (retry after a reconnect): once a client is back, no call of its old session is carried out
/// any more. A late copy of a claim of slices would fence the owner that repeated it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_an_old_session_are_not_executed_after_a_reconnect() {
    let gated = GatedQueries::new();
    let (server, offsets) = serve(gated.clone(), ServerSettings { max_in_flight: 1, ..ServerSettings::test() }).await;
    let mut old = RawClient::welcomed(&server, 1).await;
    old.call([newest(), claim(), claim(), claim()]).await;
    gated.begun.subscribe().wait_for(|begun| *begun == 1).await.unwrap();
    // The old connection still exists, but the client reads it no longer.
    let mut new = RawClient::welcomed(&server, 1).await;
    new.call([claim()]).await;
    let owned = new.answers(1).await;
    assert!(matches!(&owned[..], [answer::Answer::Owned(owned)] if owned.epochs == [1]), "{owned:?}");
    gated.answers.add_permits(9);
    let ended = old.incoming.message().await.unwrap_err();
    assert_eq!(ended.code(), Code::Aborted, "{ended}");
    new.call([claim()]).await;
    let owned = new.answers(1).await;
    assert!(matches!(&owned[..], [answer::Answer::Owned(owned)] if owned.epochs == [2]), "{owned:?}");
    assert_eq!(offsets.claim("carts", 7..=7).await.unwrap().epochs[&7].as_u64(), 3);
    // Another client does not end the session of this one.
    let _other = RawClient::welcomed(&server, 2).await;
    new.call([claim()]).await;
    new.answers(1).await;
}

/// The same if the old session waits for a client that no longer reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_replaces_an_old_one_that_is_not_read() {
    let gated = GatedQueries::new();
    let (server, _) = serve(gated.clone(), ServerSettings { max_in_flight: 1, ..ServerSettings::test() }).await;
    let old = RawClient::welcomed(&server, 1).await;
    let list = || call::Call::ListIds(proto::ListIds { entity_type: None, after: None, limit: 4000, changes: false });
    old.call((0..100).map(|_| list())).await;
    // Answers of 800 kB each: the connection and the waiting frames are full before the last call is begun.
    gated.begun.subscribe().wait_for(|begun| *begun >= 5).await.unwrap();
    let mut new = RawClient::welcomed(&server, 1).await;
    new.call([claim()]).await;
    new.answers(1).await;
    assert!(*gated.begun.borrow() < 100, "the old session has stood still");
}

/// Rule persistence §4.4a: requests carry the protocol version; another version is refused with both versions in the
/// text, and the client does not try again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_of_the_protocol_is_refused_by_name() {
    let (server, _) = serve(GatedQueries::new(), ServerSettings::test()).await;
    let mut raw = RawClient::hello(&server, 1, VERSION + 1).await;
    let refused = raw.incoming.message().await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("versions 2 to 2") && refused.message().contains("speaks 1"), "{refused}");
    assert!(matches!(crate::driver::link::session_error(&refused), crate::driver::link::SessionError::Refused(_)));
    let mut service = dial(&server).await;
    let load = proto::LoadSnapshotRequest { version: VERSION + 1, persistence_id: "a".into(), criteria: None };
    let refused = service.load_snapshot(load).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    // A client of both versions is accepted; a session that begins with another frame than hello is not.
    check_version(1, 2).unwrap();
    let (frames, outgoing) = mpsc::channel(1);
    frames.send(proto::ClientFrame { frame: None }).await.unwrap();
    let mut rude = service.session(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    assert_eq!(rude.message().await.unwrap_err().code(), Code::InvalidArgument);
}

/// An answer too large for a frame is replaced by an error that says so; the session and its other calls go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_answer_is_replaced_by_an_error() {
    let gated = GatedQueries::new();
    gated.answers.add_permits(1);
    let (server, _) = serve(gated, ServerSettings::test()).await;
    let client = JournalClient::connect(&server.local_address().to_string(), ClientSettings::test()).await.unwrap();
    let queries = client.queries().unwrap();
    let read = queries.read(&"a".parse().unwrap(), ReadRange::all()).await;
    assert!(
        matches!(&read, Err(ReadError::Unavailable(why)) if why.text().contains("that a frame can hold")),
        "{read:?}"
    );
    assert_eq!(queries.newest().await, Ok(None));
}

/// The bytes by which a client opens a session and says its whole Hello.
fn spoken_hello() -> Vec<u8> {
    const METHOD: &[u8] = b"/greylag.journal.v1.JournalService/Session";
    let hello = proto::Hello {
        oldest_version: VERSION,
        newest_version: VERSION,
        client: "spoken".into(),
        client_id: Bytes::copy_from_slice(&9_u128.to_be_bytes()),
    };
    let message = proto::ClientFrame { frame: Some(client_frame::Frame::Hello(hello)) }.encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let mut head = vec![0x83, 0x86, 0x04, METHOD.len() as u8];
    head.extend(METHOD);
    head.extend(b"\x01\x01x\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
    let (settings, session, hello) = (frame(4, 0, 0, &[]), frame(1, 4, 1, &head), frame(0, 0, 1, &message));
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &session, &hello].concat()
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection on which these bytes were sent, and nothing more.
async fn send_bytes(server: &JournalServer, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.local_address()).await.unwrap();
    connection.write_all(bytes).await.unwrap();
    connection
}

/// Reads up to a message of the session, and fails if the connection ends before it.
async fn receives_a_message(connection: &mut TcpStream) {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.expect("it is welcomed");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        connection.read_exact(&mut payload).await.unwrap();
        // Data, of the one stream.
        if head[3] == 0 && head[5..] == [0, 0, 0, 1] {
            return;
        }
    }
}

/// What clients may send without saying hello: nothing at all, half the preface of HTTP/2, a Hello but for its last
/// byte.
fn without_hello() -> [Vec<u8>; 3] {
    let mut hello = spoken_hello();
    hello.pop();
    [Vec::new(), b"PRI * HTTP/2.0\r\n".to_vec(), hello]
}

/// Shorter than the time after which unanswered pings end a connection.
const KEEP_ALIVE_ENDS: Duration = Duration::from_secs(8);

/// Scenario persistence 72: a client that connects and does not say hello is cut off, whatever part it has sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_72_a_session_without_a_hello_is_closed() {
    assert_eq!(ServerSettings::default().hello_timeout, Duration::from_secs(5));
    let settings = ServerSettings { hello_timeout: Duration::from_millis(200), ..ServerSettings::test() };
    let (server, _) = serve(GatedQueries::new(), settings).await;
    let began = std::time::Instant::now();
    let mut silent = Vec::new();
    for bytes in without_hello() {
        silent.push(send_bytes(&server, &bytes).await);
    }
    // This client opens a session and sends nothing in it.
    let mut raw = RawClient::silent(&server).await;
    for (number, connection) in silent.iter_mut().enumerate() {
        let mut rest = Vec::new();
        // Must be closed, with or without an error, before unanswered pings would end the connection.
        let closed =
            tokio::time::timeout(KEEP_ALIVE_ENDS.saturating_sub(began.elapsed()), connection.read_to_end(&mut rest))
                .await;
        assert!(closed.is_ok(), "{number} is still open");
        assert!(began.elapsed() >= Duration::from_millis(200), "{number} had no time to say hello");
    }
    let ended = tokio::time::timeout(Duration::from_secs(30), raw.incoming.message()).await;
    let status = ended.expect("it is still open").unwrap_err();
    // The connection may break before the status arrives.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Unknown | Code::Unavailable), "{status}");
    assert!(status.code() != Code::DeadlineExceeded || status.message() == "no hello within 200ms", "{status}");
    drop(raw.outgoing);
    // A client that said hello stays connected.
    let mut known = RawClient::welcomed(&server, 1).await;
    tokio::time::timeout(Duration::from_millis(600), known.incoming.message()).await.unwrap_err();
}

/// Scenario persistence 72: the second half of a Hello completes it, which shows that the server waited for that half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_sent_in_two_parts_is_accepted() {
    let settings = ServerSettings { hello_timeout: Duration::from_secs(3600), ..ServerSettings::test() };
    let (server, _) = serve(GatedQueries::new(), settings).await;
    let [_, _, half] = without_hello();
    let mut connection = send_bytes(&server, &half).await;
    connection.write_all(&spoken_hello()[half.len()..]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), receives_a_message(&mut connection)).await.expect("it is welcomed");
}

/// Scenario persistence 72: a stop does not wait for clients that have not said hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_72_a_stop_does_not_wait_for_sessions_without_a_hello() {
    let ever = Duration::from_secs(3600);
    let settings = ServerSettings { hello_timeout: ever, shutdown_timeout: ever, ..ServerSettings::test() };
    let (server, _) = serve(GatedQueries::new(), settings).await;
    let mut silent = Vec::new();
    for bytes in without_hello() {
        silent.push(send_bytes(&server, &bytes).await);
    }
    let raw = RawClient::silent(&server).await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), server.shutdown()).await;
    assert!(stopped.is_ok(), "the stop waits for a client that says nothing");
    drop((silent, raw));
}

/// Scenario persistence 72: a thousand clients that send nothing, or a part of a Hello, do not keep another from saying
/// hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_72_a_thousand_sessions_without_a_hello_leave_room_for_others() {
    let settings = ServerSettings { hello_timeout: Duration::from_secs(3600), ..ServerSettings::test() };
    let (server, _) = serve(GatedQueries::new(), settings).await;
    let (without_hello, mut crowd) = (without_hello(), Vec::new());
    for number in 0..1000 {
        crowd.push(send_bytes(&server, &without_hello[number % without_hello.len()]).await);
    }
    let served = tokio::time::timeout(Duration::from_secs(60), RawClient::welcomed(&server, 1)).await;
    assert!(served.is_ok(), "an honest client finds no room");
    drop(crowd);
}
