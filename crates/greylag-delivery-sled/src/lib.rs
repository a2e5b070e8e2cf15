//! Producer queues in an embedded store: a local directory, opened by one process at a time.
//!
//! ```
//! use greylag_codec::json;
//! use greylag_delivery::queue::MessageSent;
//! use greylag_delivery::{ControllerRef, DurableProducerQueue, KvProducerQueue, SeqNr};
//! use greylag_delivery_sled::{SledQueueSettings, SledQueues};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let data = tempfile::tempdir()?;
//! let queues = SledQueues::open(data.path().join("queues"), SledQueueSettings::default()).await?;
//! let mut mails = KvProducerQueue::open(queues.clone(), "mails", Default::default())?.typed(json::<String>("mail"));
//! let controller = ControllerRef { node: "localhost:17355#1".parse()?, path: "mails".into(), instance: 1 };
//! let first = mails.load(&controller).await?.current_seq_nr;
//! let mail = MessageSent { seq_nr: first, message: "to Ada".to_owned(), ack: false, qualifier: "".into(), timestamp_ms: 1 };
//! assert_eq!(mails.store_message_sent(vec![mail]).await?, SeqNr(1)); // durable now, also against power loss
//! queues.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each change is one request to the committer of the store, which compares the head row and makes the change on one
//! thread; the changes of many queues share a group commit. A store that has lost acknowledged commits, at its end or
//! in its middle, cannot be opened. The bytes are described in `docs/formats/delivery-queue.md`.
//!
//! Source: delivery §4.4; persistence §4.3 (the engine).

mod keys;
mod message;
mod planner;
mod queues;
mod settings;

pub use greylag_store_sled::{OpenError, StoreError};
pub use queues::SledQueues;
pub use settings::SledQueueSettings;
