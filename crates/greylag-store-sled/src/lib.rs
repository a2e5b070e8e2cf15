//! The sled engine: one committer thread per store, and group commit that survives power loss.
//!
//! ```
//! use greylag_store_sled::{Batch, Planner, Reader, Request, Store, StoreError, StoreSettings};
//!
//! /// A counter on disk. Checking and writing need no transaction: one thread plans everything.
//! struct Counter;
//! struct Add(u64);
//!
//! impl Request for Add {
//!     fn bytes(&self) -> usize {
//!         8
//!     }
//! }
//!
//! impl Planner for Counter {
//!     type Request = Add;
//!     type Answer = u64;
//!
//!     fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
//!         Ok(())
//!     }
//!
//!     fn plan(&mut self, requests: Vec<Add>, reader: &Reader, batch: &mut Batch) -> Result<Vec<u64>, StoreError> {
//!         let stored = reader.get(b"counter")?;
//!         let mut total = stored.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().expect("written below")));
//!         let answers = requests.iter().map(|add| { total += add.0; total }).collect();
//!         batch.put(b"counter", &total.to_be_bytes());
//!         Ok(answers)
//!     }
//! }
//!
//! let directory = tempfile::tempdir()?;
//! let store = Store::open(directory.path(), StoreSettings::default(), Counter)?;
//! let first = store.submit(Add(40))?; // both may share one group commit
//! let second = store.submit(Add(2))?;
//! assert_eq!((first.wait()?, second.wait()?), (40, 42)); // durable now, also against power loss
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Guarantees:
//! - A [`Pending`] resolves only when its group's batch is applied, flushed **and** the data file is synced by a handle
//!   of our own: sled's flush alone does not survive power loss.
//! - A group is stored whole or not at all, and its requests are planned in submission order.
//! - After an error, a panic or a stall, everything pending resolves to [`Unanswered`] (never to a wrong answer),
//!   [`Store::health`] is [`Health::Down`], and the store reopens itself.
//! - A store whose planner numbers its commits ([`Planner::tail`]) is opened only if every acknowledged commit is
//!   there: a guard beside the log remembers the last one.
//! - Every value read is checked against a CRC-32C over its key and value.
//!
//! With the feature `ddata`, `DdataStore` keeps the durable entries of a `greylag-ddata` replicator.
//!
//! The engine knows nothing of journals: keys and their meaning belong to the crate that plans. The API shows no type
//! of sled, so that another engine can stand beside it.
//!
//! Source: persistence §4.3.

mod batch;
mod commits;
#[cfg(feature = "ddata")]
mod ddata;
mod engine;
mod error;
mod files;
mod group_commit;
mod health;
mod planner;
mod reader;
mod repair;
mod retry;
mod settings;
mod store;

pub use batch::{Batch, MAX_VALUE_BYTES};
pub use commits::Commits;
#[cfg(feature = "ddata")]
pub use ddata::{DdataStore, DdataStoreSettings};
pub use error::{OpenError, Refused, StoreError, Unanswered};
pub use files::ballast::free_bytes;
pub use files::guard::{FILE_NAME as GUARD_FILE, guarded, renew as renew_guard};
pub use files::watermark::{Disk, Room, Watermark};
pub use health::{Health, StoreStats};
pub use planner::{OnceDurable, Planner, Request};
pub use reader::Reader;
pub use repair::{rebuild, remove_all_unneeded, remove_next_unneeded, remove_unneeded};
pub use settings::StoreSettings;
pub use store::{Pending, Store};

/// For the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_ddata_record(bytes: &[u8]) {
    ddata::read_anything(bytes);
}
