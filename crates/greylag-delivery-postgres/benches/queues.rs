//! Durable producers over queues in PostgreSQL.
//!
//! `cargo bench -p greylag-delivery-postgres`: a throw-away server on this machine that syncs every commit.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-delivery/benches/durable/mod.rs"]
mod durable;

use greylag_delivery::KvProducerQueue;
use greylag_delivery_postgres::PostgresQueues;
use greylag_testkit::postgres::Postgres;

fn main() {
    let Some(server) = Postgres::start_with(&["fsync=on", "full_page_writes=on", "max_connections=50"]) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(durable::measure("PostgreSQL", async |name| {
        let queues = PostgresQueues::connect(&server.config()).await.expect("it connects");
        Box::new(KvProducerQueue::open(queues, name, Default::default()).expect("valid settings")) as _
    }));
}
