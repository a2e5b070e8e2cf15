//! Floods of foreign connections and of clients, against real nodes over real sockets: refusals are counted, and
//! members stay members. No test depends on the speed of the machine.

#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "the processes of one test hear each other so")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterEvent, ClusterEvents, ClusterSettings, MemberStatus, Message};
use greylag_core::{CodecId, NodeAddress, Registry, UniqueAddress};
use greylag_management::{ManagementServer, ManagementSettings, connect, v1};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Intrusion, Receiver, Recipient, RejectCode, Remoting,
    TransportSettings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tonic::Code;

/// Timeout for events that must happen; far longer than they take.
const LONG: Duration = Duration::from_secs(120);

/// A member.
struct Node {
    transport: Arc<GrpcTransport>,
    cluster: Cluster,
    events: ClusterEvents,
}

impl Node {
    /// A node whose failure detector tolerates the long pauses of a busy machine.
    async fn patient() -> Self {
        let mut settings = ClusterSettings::test();
        settings.failure_detector.acceptable_heartbeat_pause = Duration::from_secs(30);
        Self::start(settings).await
    }

    async fn start(settings: ClusterSettings) -> Self {
        let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
        let cluster = Cluster::start_on(transport.control_runtime(), settings, transport.clone()).await.unwrap();
        let events = cluster.subscribe();
        Self { transport, cluster, events }
    }

    async fn join(&self, seeds: &[&Self]) {
        let seeds = seeds.iter().map(|seed| seed.cluster.self_address().address().clone()).collect::<Vec<_>>();
        let joining = async {
            if seeds.is_empty() {
                self.cluster.join_self().await.unwrap();
            } else {
                self.cluster.join_seed_nodes(seeds).await.unwrap();
            }
            self.cluster.wait_up().await.unwrap();
        };
        tokio::time::timeout(LONG, joining).await.expect("it becomes a member");
    }

    /// Ports of the members that are up in its view.
    fn up(&self) -> Vec<u16> {
        let view = self.cluster.view();
        let up = view.members.iter().filter(|member| member.status == MemberStatus::Up);
        up.map(|member| member.address.address().port()).collect()
    }

    fn port(&self) -> u16 {
        self.cluster.self_address().address().port()
    }

    /// Events so far that find a member unreachable or down.
    fn accusations(&mut self) -> Vec<ClusterEvent> {
        let mut accusations = Vec::new();
        while let Some(Some(event)) = futures_now(self.events.next()) {
            if matches!(event, ClusterEvent::UnreachableMember(_) | ClusterEvent::MemberDowned(_)) {
                accusations.push(event);
            }
        }
        accusations
    }
}

/// The value of a future that is ready now.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let come = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, come).await.unwrap_or_else(|_| panic!("{what} does not come about"));
}

// --- cluster 79 ---------------------------------------------------------------------------------------------------

/// Sockets of the attack, all from one address, each with its own name.
const SOCKETS: usize = 20_000;
const PROCESSES: usize = 4;
const EACH: usize = SOCKETS / PROCESSES;
/// Connections that one host without members may have (cluster T21).
const SLOTS: usize = 64;
/// The address that all sockets come from, and name in their Hello.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// Limit of open files of each process of this test.
const FILES: usize = 8192;

const ROLE: &str = "GREYLAG_TEST_LOAD_ROLE";

/// Scenario cluster 79: 20,000 sockets that stay open, from one address, each saying Hello in another name. Few are
/// accepted, each of the others is counted, the table of peers and the memory of the node stay small, another node
/// joins meanwhile, and the node dials none of the names.
///
/// One process would need more files than many systems allow, so the node and each quarter of the sockets have a
/// process of their own, started by a shell that raises the limit of open files.
#[test]
fn scenario_79_twenty_thousand_sockets_of_one_host() {
    match std::env::var(ROLE).as_deref() {
        Ok("scene") => run(scene()),
        Ok(attacker) => run(attack(attacker)),
        Err(_) => {
            let ended = this_test("scene").stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            let (said, wrong) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
            assert!(ended.status.success(), "{}\n{said}\n{wrong}", ended.status);
            assert!(said.contains("scene: passed"), "{said}\n{wrong}");
        }
    }
}

fn run(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future);
}

/// Runs this test in a process of its own with the role `role`, and with a raised limit of open files.
fn this_test(role: &str) -> Command {
    let enough = format!(
        "ulimit -S -n {FILES} || {{ echo 'cluster 79 needs {FILES} open files for each of its processes, and this system \
         gives fewer: raise the hard limit (ulimit -Hn, LimitNOFILE)' >&2; exit 9; }}; exec \"$0\" \"$@\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &enough]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "scenario_79_twenty_thousand_sockets_of_one_host", "--nocapture"]);
    command.env(ROLE, role);
    command
}

/// A process with a quarter of the sockets. It is killed when this is dropped.
struct Attacker {
    process: Child,
    orders: ChildStdin,
    said: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Attacker {
    /// `role` is `to_port first_name held...`.
    fn begin(role: &str) -> Self {
        let mut process = this_test(role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (say, said) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|line| line.starts_with("attacker:")) {
                say.send(line).ok();
            }
        });
        Self { process, orders, said }
    }

    async fn says(&mut self, wanted: &str) -> String {
        let said = tokio::time::timeout(LONG, self.said.recv()).await;
        let said = said.expect("an attacker goes on").expect("an attacker that ended has said why");
        assert!(said.contains(wanted), "{said}");
        said
    }

    fn go_on(&mut self) {
        self.orders.write_all(b"go\n").unwrap();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

async fn scene() {
    let mut node = Node::patient().await;
    node.join(&[]).await;
    // The accepted names have real listeners, so that a node that dialled one would be noticed.
    let mut named = Vec::new();
    for _ in 0..SLOTS {
        named.push(TcpListener::bind((ATTACKER, 0)).await.unwrap());
    }
    let ports: Vec<u16> = named.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let mut attackers = Vec::new();
    for (number, ports) in ports.chunks(SLOTS / PROCESSES).enumerate() {
        let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
        attackers.push(Attacker::begin(&format!("{} {} {}", node.port(), number * EACH + 1, ports.join(" "))));
    }
    for attacker in &mut attackers {
        attacker.says("held").await;
    }
    let name = |port: u16| NodeAddress::new(&ATTACKER.to_string(), port).unwrap();
    until("a slot for each", || ports.iter().all(|port| node.transport.peer(&name(*port)).is_some())).await;
    let (before, most) = (resident_bytes(), std::sync::atomic::AtomicU64::new(0));
    attackers.iter_mut().for_each(Attacker::go_on);

    let count = |what| node.transport.stats().intruded(what);
    let refused = || count(Intrusion::Refused(RejectCode::TooManyStreams)) + count(Intrusion::Crowded);
    until("a fourth of the refusals", || refused() >= (SOCKETS / 4) as u64).await;
    let mut joining = Node::patient().await;
    joining.join(&[&node]).await;
    for attacker in &mut attackers {
        println!("scene: {}", attacker.says("connected").await);
    }
    // All sockets are open at the attackers' end, and every Hello is answered or counted.
    until("the last refusal", || {
        most.fetch_max(resident_bytes(), std::sync::atomic::Ordering::Relaxed);
        refused() >= (SOCKETS - SLOTS) as u64
    })
    .await;
    println!("scene: {:?}", node.transport.stats().intrusions);
    assert_eq!(refused(), (SOCKETS - SLOTS) as u64, "each is refused once: {:?}", node.transport.stats().intrusions);
    assert!(count(Intrusion::Refused(RejectCode::TooManyStreams)) > 0, "not all were closed unread");
    for offence in [Intrusion::Banned, Intrusion::NoHello, Intrusion::NotGrpc, Intrusion::Malformed] {
        assert_eq!(count(offence), 0, "{offence:?}");
    }
    // The table of peers has the accepted names, and the member.
    let known = (1..=SOCKETS as u16).chain(ports).filter(|port| node.transport.peer(&name(*port)).is_some()).count();
    assert_eq!(known, SLOTS);
    assert!(node.transport.stats().inbound_streams <= SLOTS + 8, "{}", node.transport.stats().inbound_streams);
    let grown = most.into_inner().saturating_sub(before) / (1 << 20);
    assert!(grown < 256, "the process grew by {grown} MiB");
    for listener in &named {
        assert!(futures_now(listener.accept()).is_none(), "a name that a stranger named was dialled");
    }
    let mut ports = [node.port(), joining.port()];
    ports.sort_unstable();
    for node in [&mut node, &mut joining] {
        let mut up = node.up();
        up.sort_unstable();
        assert_eq!((up, node.accusations()), (ports.to_vec(), Vec::new()));
    }
    println!("scene: passed, grown by {grown} MiB");
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs a quarter of the sockets. Each printed line begins with `attacker:`.
async fn attack(role: &str) {
    let numbers: Vec<usize> = role.split(' ').map(|number| number.parse().unwrap()).collect();
    let (node, first, held) = (SocketAddr::from((Ipv4Addr::LOCALHOST, numbers[0] as u16)), numbers[1], &numbers[2..]);
    let mut open = Vec::new();
    for name in held {
        let (socket, accepted) = hello(node, *name as u16).await;
        assert!(accepted, "a slot is free for {name}");
        open.push(socket);
    }
    println!("attacker: held {}", open.len());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let mut rest = (first..first + EACH - held.len()).map(|name| name as u16);
    let mut callers = JoinSet::new();
    let mut accepted_more = 0;
    loop {
        while callers.len() < 16
            && let Some(name) = rest.next()
        {
            callers.spawn(hello(node, name));
        }
        let Some(called) = callers.join_next().await else { break };
        let (socket, accepted) = called.unwrap();
        accepted_more += usize::from(accepted);
        // The socket stays open at this end, whatever the node did with it.
        open.push(socket);
    }
    println!("attacker: {} connected, {accepted_more} more accepted", open.len());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(open);
}

/// Connects from [`ATTACKER`] and says Hello in the name of port `name` there; answers whether the node accepted it.
async fn hello(node: SocketAddr, name: u16) -> (TcpStream, bool) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ATTACKER, 0).into()).expect("a port of its own");
    let mut socket = socket.connect(node).await.expect("the node listens, or its system does");
    let greeting = greeting(name, node.port());
    let mut heard = Vec::new();
    if socket.write_all(&greeting).await.is_ok() {
        let mut buffer = [0; 2048];
        // An answer names the node, a refusal adds the reason; a connection closed unread gives no answer at all.
        while !contains(&heard, b"127.0.0.1")
            && let Ok(read @ 1..) = socket.read(&mut buffer).await
        {
            heard.extend(&buffer[..read]);
        }
    }
    let is_accepted = contains(&heard, b"127.0.0.1") && !contains(&heard, b"have called this node");
    (socket, is_accepted)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The preface of HTTP/2, a call of the transport's method, and a Hello for the control lane.
fn greeting(port: u16, to_port: u16) -> Vec<u8> {
    const METHOD: &[u8] = b"/greylag.transport.v1.Transport/Open";
    let mut head = vec![0x83, 0x86, 0x04, METHOD.len() as u8];
    head.extend(METHOD);
    head.extend(b"\x01\x01x\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
    let host = ATTACKER.to_string();
    let from = [bytes(1, host.as_bytes()), number(2, port.into()), vec![3 << 3 | 1], 77_u64.to_le_bytes().to_vec()];
    let hello = [
        number(1, 1),
        number(2, 1),
        bytes(3, b"test"),
        bytes(4, &from.concat()),
        bytes(5, b"127.0.0.1"),
        number(6, to_port.into()),
        number(8, 1),
        number(10, 1),
        number(11, 1),
    ];
    let message = bytes(1, &hello.concat());
    let message = [vec![0], (message.len() as u32).to_be_bytes().to_vec(), message].concat();
    let frames = [frame(4, 0, 0, &[]), frame(4, 1, 0, &[]), frame(1, 4, 1, &head), frame(0, 0, 1, &message)];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frames.concat()].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn number(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3], varint(value)].concat()
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [vec![field << 3 | 2], varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

// --- cluster 80 ---------------------------------------------------------------------------------------------------

/// Limit of connections of the admin service.
const CLIENTS: usize = 64;
/// Concurrent calls of each client.
const AT_ONCE: usize = 8;
/// Duration of the load: three times as long as a member may be silent before it is found unreachable.
const LOAD: Duration = Duration::from_secs(7);
/// Interval of the probe's heartbeats.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Limit of the additional delay of a heartbeat.
const LATE: Duration = Duration::from_millis(100);

/// Duration of the load, and whether every single heartbeat is judged, which needs a machine that does nothing else.
fn load() -> (Duration, bool) {
    let given = std::env::var("GREYLAG_LOAD_SECONDS").ok();
    let given = given.map(|text| Duration::from_secs(text.parse().expect("whole seconds")));
    (given.unwrap_or(LOAD), given.is_some())
}

/// Sends heartbeats as a process that is no member. Each node answers them on the path of its members' heartbeats.
struct Probe {
    transport: Arc<GrpcTransport>,
    shown: Arc<Mutex<Shown>>,
}

/// Heartbeats of a probe and their answers.
#[derive(Default)]
struct Shown {
    /// Unanswered heartbeats by number, with receiver and time.
    waiting: BTreeMap<u64, (UniqueAddress, Instant)>,
    took: BTreeMap<UniqueAddress, Vec<Duration>>,
}

struct Answers(Arc<Mutex<Shown>>);

impl Receiver for Answers {
    fn receive(&self, message: Inbound) {
        let Ok(Message::HeartbeatRsp { seq, .. }) = Message::from_bytes(&message.manifest, message.payload) else {
            return;
        };
        let mut shown = self.0.lock().unwrap();
        if let Some((node, sent_at)) = shown.waiting.remove(&seq) {
            shown.took.entry(node).or_default().push(sent_at.elapsed());
        }
    }
}

impl Probe {
    async fn start() -> Self {
        let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
        let shown = Arc::new(Mutex::new(Shown::default()));
        transport.register(Recipient::HEARTBEAT, Arc::new(Answers(shown.clone())));
        Self { transport, shown }
    }

    /// Sends `count` heartbeats to each node, from the runtime of the control lane, and waits for all answers; answers
    /// the round-trip times of each node, the shortest first.
    async fn measure(&self, nodes: [UniqueAddress; 2], count: u64) -> [Vec<Duration>; 2] {
        let (port, shown, peers) = (self.transport.clone(), self.shown.clone(), nodes.clone());
        let sending = self.transport.control_runtime().spawn(async move {
            let mut ticks = tokio::time::interval(PROBE_INTERVAL);
            for seq in 0..count * 2 {
                let to = peers[(seq % 2) as usize].clone();
                if seq % 2 == 0 {
                    ticks.tick().await;
                }
                shown.lock().unwrap().waiting.insert(seq, (to.clone(), Instant::now()));
                let heartbeat = Message::Heartbeat { to: to.clone(), seq };
                let recipient = Recipient::new(Recipient::HEARTBEAT);
                let envelope = Envelope::new(recipient, CodecId::INTERNAL, heartbeat.manifest(), heartbeat.to_bytes());
                port.send(&Destination::Incarnation(to), envelope).unwrap();
            }
        });
        sending.await.unwrap();
        until("the last answer", || self.shown.lock().unwrap().waiting.is_empty()).await;
        let mut took = std::mem::take(&mut self.shown.lock().unwrap().took);
        nodes.map(|node| {
            let mut took = took.remove(&node).unwrap();
            took.sort_unstable();
            took
        })
    }
}

/// Scenario cluster 80: 64 clients ask a member's admin service for health and members without pause. Each call is
/// answered or refused as `RESOURCE_EXHAUSTED`, one more connection is closed, and no member is found unreachable. The
/// loaded member answers heartbeats as fast as the other one; both are on the same busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_sixty_four_admin_clients() {
    let (mut node, mut other) =
        (Node::start(ClusterSettings::test()).await, Node::start(ClusterSettings::test()).await);
    let admin =
        ManagementServer::start(ManagementSettings::at("127.0.0.1:0"), node.cluster.clone(), node.transport.clone());
    let admin = admin.await.unwrap().expect("it is on");
    node.join(&[]).await;
    other.join(&[&node]).await;
    let probe = Probe::start().await;
    let nodes = [&node, &other].map(|node| node.cluster.self_address().clone());
    // The first heartbeat makes the connections.
    probe.measure(nodes.clone(), 1).await;
    let address = admin.local_address().to_string();
    // Every client is connected before the load begins.
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = connect(&address).unwrap();
        client.health(v1::HealthRequest {}).await.unwrap();
        clients.push(client);
    }
    let one_more = connect(&address).unwrap().health(v1::HealthRequest {}).await;
    assert_eq!(one_more.err().map(|status| status.code()), Some(Code::Unavailable), "64 connections are open");

    let mut asking = JoinSet::new();
    let (load, by_the_letter) = load();
    let end = Instant::now() + load;
    for (number, client) in clients.iter().enumerate() {
        for call in 0..AT_ONCE {
            let mut client = client.clone();
            asking.spawn(async move {
                let mut outcomes = Vec::new();
                while Instant::now() < end {
                    let outcome = if (number + call) % 2 == 0 {
                        client.health(v1::HealthRequest {}).await.map(drop)
                    } else {
                        client.members(v1::MembersRequest {}).await.map(drop)
                    };
                    outcomes.push(outcome.err().map(|status| status.code()));
                }
                outcomes
            });
        }
    }
    let count = load.as_millis() / PROBE_INTERVAL.as_millis();
    let [asked, spared] = probe.measure(nodes, count as u64).await;
    let mut outcomes: BTreeMap<Option<i32>, usize> = BTreeMap::new();
    while let Some(told) = tokio::time::timeout(LONG, asking.join_next()).await.expect("each call ends") {
        for outcome in told.unwrap() {
            *outcomes.entry(outcome.map(|code| code as i32)).or_default() += 1;
        }
    }
    let exhausted = Some(Code::ResourceExhausted as i32);
    assert_eq!(outcomes.keys().copied().collect::<Vec<_>>(), [None, exhausted], "{outcomes:?}");
    // The 90th percentile: other work on the machine may delay any single heartbeat.
    let nine = |took: &[Duration]| took[took.len() * 9 / 10];
    assert!(nine(&asked) < nine(&spared) + LATE, "{asked:?} of the member that was asked, {spared:?} of the other one");
    if by_the_letter {
        let worst = |took: &[Duration]| took[took.len() - 1];
        assert!(worst(&asked) < worst(&spared) + LATE, "{:?} and {:?}", worst(&asked), worst(&spared));
    }
    // The service answers a hundred calls a second, so at least this many in the whole time.
    assert!(outcomes[&None] >= 500, "{outcomes:?}");

    drop(clients);
    let again = || async {
        let mut client = connect(&address).unwrap();
        client.members(v1::MembersRequest {}).await.map(|reply| reply.into_inner().members.len())
    };
    let mut members = again().await;
    while members.as_ref().is_err_and(|status| matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)) {
        members = again().await;
    }
    assert_eq!(members.unwrap(), 2, "it answers as before");
    let mut ports = [node.port(), other.port()];
    ports.sort_unstable();
    for node in [&mut node, &mut other] {
        let mut up = node.up();
        up.sort_unstable();
        assert_eq!((up, node.accusations()), (ports.to_vec(), Vec::new()));
    }
    admin.shutdown().await;
}
