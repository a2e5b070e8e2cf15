//! Servers, clients and messages for the tests.

use greylag_core::{CodecId, Encoded};
use greylag_delivery::ControllerRef;
use greylag_delivery::queue::MessageSent;
use greylag_testkit::postgres::Postgres;
use tokio_postgres::{Client, NoTls};

/// Runs a test against a server of its own; without PostgreSQL the test is skipped with a message.
pub(crate) fn with_server(test: impl AsyncFnOnce(Postgres)) {
    let Some(server) = Postgres::start() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(server));
}

/// A separate connection, as of an application.
pub(crate) async fn client(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.config(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "delivery/orders".into(), instance }
}

pub(crate) fn encoded(text: &str) -> Encoded {
    Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: text.to_owned().into() }
}

/// Number and text of each message.
pub(crate) fn numbered(messages: &[MessageSent<Encoded>]) -> Vec<(u64, String)> {
    let text = |sent: &MessageSent<Encoded>| String::from_utf8(sent.message.payload.to_vec()).unwrap();
    messages.iter().map(|sent| (sent.seq_nr.get(), text(sent))).collect()
}

pub(crate) fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(seq_nr, text)| (*seq_nr, (*text).to_owned())).collect()
}
