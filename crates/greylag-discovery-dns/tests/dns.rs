//! Look-ups against a name server of the test's own on loopback, and a cluster founded by them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_cluster::{BootstrapSettings, Cluster, ClusterSettings, Discovery, MemberStatus};
use greylag_core::Registry;
use greylag_discovery_dns::DnsDiscovery;
use greylag_transport::{GrpcTransport, TransportSettings};
use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

/// The server's answer to every query.
#[derive(Clone)]
enum Says {
    Records(Vec<RData>),
    NoSuchName,
    Fails,
    /// These addresses for IPv4 queries, and a failure for IPv6 queries.
    Half(Vec<RData>),
    Nothing,
}

/// A name server with one answer at a time.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    says: Arc<Mutex<Says>>,
}

impl Server {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = Self { address: socket.local_addr().unwrap(), says: Arc::new(Mutex::new(Says::NoSuchName)) };
        let says = server.says.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..length]).expect("our own resolver writes it");
                let says = says.lock().unwrap().clone();
                if let Some(answer) = answer(question, says) {
                    socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
                }
            }
        });
        server
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }
}

fn answer(mut message: Message, says: Says) -> Option<Message> {
    let query = message.queries[0].clone();
    message.metadata.message_type = MessageType::Response;
    message.additionals.clear();
    let records = match says {
        Says::Nothing => return None,
        Says::NoSuchName => {
            message.metadata.response_code = ResponseCode::NXDomain;
            Vec::new()
        }
        Says::Fails => {
            message.metadata.response_code = ResponseCode::ServFail;
            Vec::new()
        }
        Says::Half(_) if query.query_type() == RecordType::AAAA => {
            message.metadata.response_code = ResponseCode::ServFail;
            Vec::new()
        }
        Says::Records(records) | Says::Half(records) => records,
    };
    let of_type = records.into_iter().filter(|record| record.record_type() == query.query_type());
    // A time to live of an hour: a client that cached the answer would not see it change.
    message.answers = of_type.map(|data| Record::from_rdata(query.name().clone(), 3600, data)).collect();
    Some(message)
}

fn ip(last: u8) -> RData {
    RData::A(A(Ipv4Addr::new(10, 0, 0, last)))
}

fn service(port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(0, 0, port, Name::from_ascii(target).unwrap()))
}

async fn found(discovery: &DnsDiscovery) -> Result<Vec<String>, String> {
    let found = discovery.lookup().await.map_err(|error| error.to_string())?;
    let mut names: Vec<String> = found.iter().map(ToString::to_string).collect();
    names.sort();
    Ok(names)
}

#[tokio::test]
async fn addresses_of_a_name_are_nodes_at_one_port_and_nothing_is_cached() {
    let server = Server::start().await;
    let dns = DnsDiscovery::addresses("nodes.test.", 17355).unwrap().asking(server.address).unwrap();
    server.say(Says::Records(vec![ip(2), ip(1), RData::AAAA(AAAA("fd00::1".parse().unwrap()))]));
    assert_eq!(found(&dns).await.unwrap(), ["10.0.0.1:17355", "10.0.0.2:17355", "[fd00::1]:17355"]);
    server.say(Says::Records(vec![ip(3)]));
    assert_eq!(found(&dns).await.unwrap(), ["10.0.0.3:17355"], "the answer of now, not of before");
}

/// The server answers even for a name in the hosts file, since a hosts file has some of the nodes at best.
#[tokio::test]
async fn the_hosts_file_of_the_machine_does_not_answer_in_the_servers_place() {
    let server = Server::start().await;
    server.say(Says::Records(vec![ip(1), ip(2)]));
    for name in names_in_the_hosts_file() {
        let dns = DnsDiscovery::addresses(&name, 17355).unwrap().asking(server.address).unwrap();
        assert_eq!(found(&dns).await.unwrap(), ["10.0.0.1:17355", "10.0.0.2:17355"], "{name}");
    }
}

/// Names of the machine's hosts file, without `localhost`, which no resolver queries a server for.
fn names_in_the_hosts_file() -> Vec<String> {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.flat_map(|line| line.split_whitespace().skip(1));
    names.filter(|name| !name.contains("localhost")).map(|name| format!("{name}.")).collect()
}

#[tokio::test]
async fn targets_of_a_service_are_nodes_by_name_and_port() {
    let server = Server::start().await;
    let dns = DnsDiscovery::service("_greylag._tcp.bank.test.").unwrap().asking(server.address).unwrap();
    server.say(Says::Records(vec![
        service(17355, "Node-1.bank.test."),
        service(9, "node-2.bank.test."),
        service(0, "no.port."),
    ]));
    assert_eq!(found(&dns).await.unwrap(), ["node-1.bank.test:17355", "node-2.bank.test:9"]);
}

#[tokio::test]
async fn that_nobody_is_there_is_an_answer_and_that_the_server_fails_is_none() {
    let server = Server::start().await;
    let dns = DnsDiscovery::addresses("nodes.test.", 17355).unwrap().asking(server.address).unwrap();
    assert_eq!(found(&dns).await.unwrap(), Vec::<String>::new(), "NXDOMAIN");
    server.say(Says::Records(Vec::new()));
    assert_eq!(found(&dns).await.unwrap(), Vec::<String>::new(), "no record");
    server.say(Says::Fails);
    let failed = found(&dns).await.unwrap_err();
    assert!(failed.contains("nodes.test"), "{failed}");
    server.say(Says::Half(vec![ip(1)]));
    assert!(found(&dns).await.is_err(), "half an answer would look like a change");
    assert!(DnsDiscovery::addresses("", 1).is_err() && DnsDiscovery::service(&"x".repeat(300)).is_err());
}

#[tokio::test]
async fn a_silent_server_is_no_answer() {
    let server = Server::start().await;
    let dns = DnsDiscovery::addresses("nodes.test.", 17355).unwrap().asking(server.address).unwrap();
    server.say(Says::Nothing);
    let silent = tokio::time::timeout(Duration::from_secs(30), found(&dns)).await.expect("it gives up by itself");
    assert!(silent.is_err(), "{silent:?}");
}

/// cluster M24: three nodes that DNS names one after the other found one cluster, and a fourth joins it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_dns_names_found_one_cluster() {
    let server = Server::start().await;
    let (mut nodes, mut records) = (Vec::new(), Vec::new());
    let mut joins = Vec::new();
    for _ in 0..3 {
        let node = start().await;
        records.push(service(node.0.self_address().address().port(), "127.0.0.1."));
        // Each node starts with the records that DNS has by then.
        server.say(Says::Records(records.clone()));
        joins.push(bootstrap(&node.0, &server));
        nodes.push(node);
    }
    for join in joins {
        tokio::time::timeout(Duration::from_secs(60), join).await.expect("in time").expect("no panic");
    }
    let late = start().await;
    records.push(service(late.0.self_address().address().port(), "127.0.0.1."));
    server.say(Says::Records(records));
    tokio::time::timeout(Duration::from_secs(60), bootstrap(&late.0, &server))
        .await
        .expect("in time")
        .expect("no panic");
    nodes.push(late);
    let id = nodes[0].0.view().cluster_id;
    for (cluster, _) in &nodes {
        let all_up = cluster.wait_for(|view| {
            view.members.len() == 4 && view.members.iter().all(|member| member.status == MemberStatus::Up)
        });
        tokio::time::timeout(Duration::from_secs(60), all_up).await.expect("in time").expect("it runs");
        assert_eq!(cluster.view().cluster_id, id);
    }
    for (cluster, transport) in nodes.into_iter().rev() {
        cluster.shutdown().await;
        transport.shutdown().await;
    }
}

async fn start() -> (Cluster, Arc<GrpcTransport>) {
    let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
    (Cluster::start(ClusterSettings::test(), transport.clone()).await.unwrap(), transport)
}

fn bootstrap(cluster: &Cluster, server: &Server) -> tokio::task::JoinHandle<()> {
    let dns = DnsDiscovery::service("_greylag._tcp.test.").unwrap().asking(server.address).unwrap();
    let cluster = cluster.clone();
    tokio::spawn(async move { cluster.bootstrap(Arc::new(dns), BootstrapSettings::test(2)).await.expect("it joins") })
}
