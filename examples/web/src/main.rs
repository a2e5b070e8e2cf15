//! A web server in front of counters: the node of the web server hosts none of them.
//!
//! Two nodes with the role `counters` host the counters. The third node has the role `web`: it knows the entity type
//! and the codec of its commands, and only sends. Such nodes can be added and removed as traffic changes, and no entity
//! moves.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use greylag::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const COUNTER: EntityKey<Command> = EntityKey::new("Counter");

#[derive(Serialize, Deserialize)]
enum Command {
    Increment,
    Get(ReplyTo<u64>),
}

#[derive(Serialize, Deserialize)]
struct Incremented;

struct Counter;

impl EventSourced for Counter {
    type Command = Command;
    type Event = Incremented;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &u64, command: Command) -> Effect<Self> {
        match command {
            Command::Increment => Effect::persist(Incremented),
            Command::Get(reply_to) => Effect::reply(reply_to, *count),
        }
    }

    fn apply(count: &mut u64, _: &Incremented) {
        *count += 1;
    }
}

/// The HTTP status for an error: whether the browser may try again.
fn status(error: AskError) -> (StatusCode, String) {
    let status = if error.is_retryable() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, error.to_string())
}

async fn show(State(node): State<Node>, Path(name): Path<String>) -> Result<String, (StatusCode, String)> {
    let count = node.entity_ref(COUNTER, name).ask(Command::Get).timeout(Duration::from_secs(10)).await;
    count.map(|count| count.to_string()).map_err(status)
}

async fn increment(State(node): State<Node>, Path(name): Path<String>) -> Result<StatusCode, (StatusCode, String)> {
    let told = node.entity_ref(COUNTER, name).tell(Command::Increment);
    told.map(|()| StatusCode::ACCEPTED).map_err(|error| status(error.into()))
}

/// Starts a node with the given role.
async fn start(role: &str, seeds: &[Node], stores: &Stores) -> Result<Node, greylag::StartError> {
    let seeds = seeds.iter().map(|node| node.address().to_string());
    let builder = Node::builder("counters").bind("127.0.0.1", 0).roles([role]).seed_nodes(seeds);
    let builder = if role == "web" {
        builder.proxy(COUNTER.proxy().role("counters").commands(json("counter.command")))
    } else {
        let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
            .role("counters")
            .commands(json("counter.command"))
            .events(json("counter.incremented"));
        builder.stores(stores.clone()).entity(counters)
    };
    builder.start().await
}

/// Sends a request as a browser would; returns the status line and the text.
async fn request(server: std::net::SocketAddr, method: &str, path: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(server).await?;
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.lines().next().unwrap_or_default().to_owned();
    let text = answer.split_once("\r\n\r\n").map(|(_, text)| text.to_owned()).unwrap_or_default();
    println!("{method} {path}: {status} {text}");
    Ok((status, text))
}

#[tokio::main]
async fn main() -> greylag::Result {
    let stores = Stores::in_memory_shared();
    let mut nodes = Vec::new();
    for role in ["counters", "counters", "web"] {
        let node = start(role, &nodes, &stores).await?;
        nodes.push(node);
    }
    let node = nodes[2].clone();

    let app = Router::new().route("/counters/{name}", get(show)).route("/counters/{name}", post(increment));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(axum::serve(listener, app.with_state(node.clone())).into_future());

    for _ in 0..3 {
        assert_eq!(request(server, "POST", "/counters/geese").await?.0, "HTTP/1.1 202 Accepted");
    }
    let shown = request(server, "GET", "/counters/geese").await?;
    assert_eq!(shown, ("HTTP/1.1 200 OK".to_owned(), "3".to_owned()));
    let homes = node.sharding().region(COUNTER)?.shard_homes();
    assert!(!homes.contains_key(node.unique_address()), "nothing lives on the web node");

    serving.abort();
    for node in nodes.iter().rev() {
        node.shutdown().await?;
    }
    Ok(())
}
