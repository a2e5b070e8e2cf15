//! A worker process: writes a record of every step, and works until it is killed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use greylag::prelude::*;

use crate::record::{Record, What, now};
use crate::{Failure, jobs};

/// The arguments of a worker.
#[derive(Debug, Clone, Args)]
pub(crate) struct Worker {
    /// The node through which to join.
    #[arg(long)]
    pub(crate) seed: String,
    /// How long a job takes, in microseconds.
    #[arg(long)]
    pub(crate) work_us: u64,
    /// Jobs at the same time.
    #[arg(long)]
    pub(crate) parallel: u32,
}

impl Worker {
    /// The command line that parses to these arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { seed, work_us, parallel } = self;
        ["worker", "--seed", seed, "--work-us", &work_us.to_string(), "--parallel", &parallel.to_string()]
            .map(str::to_owned)
            .into()
    }
}

/// Runs until the process is killed.
pub(crate) async fn run(worker: &Worker) -> Result<(), Failure> {
    let node = Node::builder("jobs").bind("127.0.0.1", 0).roles(["worker"]).seed_nodes([&worker.seed]).start().await?;
    // The file has no buffer, so the parent gets each record even if this process is killed right afterwards.
    let book = Arc::new(File::from(std::io::stdout().as_fd().try_clone_to_owned()?));
    let takes = Duration::from_micros(worker.work_us);
    let work = move |job: Delivery<u64>| {
        let book = book.clone();
        async move {
            let write = |what| (&*book).write_all(&Record { job: *job, what, at: now() }.to_bytes());
            write(What::Begun)?;
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            write(What::Done)?;
            job.confirm();
            std::io::Result::Ok(())
        }
    };
    node.delivery().worker(&jobs(), work).parallel(worker.parallel).start().await?;
    node.run().await;
    Ok(())
}
