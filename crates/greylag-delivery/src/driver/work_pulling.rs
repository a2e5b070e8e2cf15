//! Work pulling: one producer of jobs, and a changing set of workers.
//!
//! Source: delivery §2, §6.

#[cfg(feature = "ddata")]
mod ddata;
mod directory;
mod local;
mod producer;
mod worker;

#[cfg(feature = "ddata")]
pub use ddata::DdataWorkerDirectory;
pub use directory::{RegisteredWorker, WorkerDirectory};
pub use local::{LocalWorkerDirectory, StaticWorkerDirectory};
pub use producer::{WorkPullingBuilder, WorkPullingProducer};
pub(crate) use worker::WorkerShutdown;
pub use worker::{WorkerBuilder, WorkerHandle};
