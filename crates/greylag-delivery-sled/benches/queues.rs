//! Durable producers over queues in a directory.
//!
//! `cargo bench -p greylag-delivery-sled`: with the default settings, so that every append is on the disk before it is
//! answered. The data is in the directory for temporary files.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-delivery/benches/durable/mod.rs"]
mod durable;

use greylag_delivery::KvProducerQueue;
use greylag_delivery_sled::{SledQueueSettings, SledQueues};

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let data = tempfile::tempdir().expect("a directory");
    runtime.block_on(async {
        let queues = SledQueues::open(data.path().join("queues"), SledQueueSettings::default()).await;
        let queues = queues.expect("it opens");
        durable::measure("sled", async |name| {
            Box::new(KvProducerQueue::open(queues.clone(), name, Default::default()).expect("valid settings")) as _
        })
        .await;
        queues.close().await.expect("it closes");
    });
}
