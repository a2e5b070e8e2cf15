//! One job in the whole cluster: it runs on the oldest node, and on the next when that one leaves.
//!
//! Every node offers to run the job; at most one does. Here the job draws numbers from a counter
//! that stands for a resource that only one process may touch: a crawler, a billing run, a cron.
//! A real one would fence its writes with the `oldest_up_number` of its context (cluster P5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use greylag::cluster::{BoxFuture, SingletonContext, SingletonSettings, StopToken};
use greylag::prelude::*;
use tokio::sync::watch;

/// What only one process may touch, and who touches it.
#[derive(Default)]
struct Resource {
    users: AtomicUsize,
    drawn: AtomicU64,
}

/// Runs until told to stop, then ends in its own time: only after that the next one starts.
async fn job(resource: Arc<Resource>, progress: watch::Sender<u64>, mut stop: StopToken) {
    let before = resource.users.fetch_add(1, Ordering::SeqCst);
    assert_eq!(before, 0, "never two at a time");
    loop {
        tokio::select! {
            () = stop.stopped() => break,
            () = tokio::time::sleep(Duration::from_millis(10)) => {
                progress.send_replace(resource.drawn.fetch_add(1, Ordering::SeqCst) + 1);
            }
        }
    }
    resource.users.fetch_sub(1, Ordering::SeqCst);
}

/// Starts a node that offers to run the job.
async fn node(
    seed: Option<&Node>,
    resource: &Arc<Resource>,
    progress: &watch::Sender<u64>,
) -> Result<Node, Box<dyn std::error::Error>> {
    let mut builder = Node::builder("jobs").bind("127.0.0.1", 0);
    if let Some(seed) = seed {
        builder = builder.seed_nodes([seed.address().to_string()]);
    }
    let node = builder.start().await?;
    let (resource, progress) = (resource.clone(), progress.clone());
    let factory = move |_: SingletonContext, stop: StopToken| -> BoxFuture<'static, ()> {
        Box::pin(job(resource.clone(), progress.clone(), stop))
    };
    node.cluster().singleton("numbers", SingletonSettings::default(), Arc::new(factory));
    Ok(node)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let resource = Arc::new(Resource::default());
    let (progress, mut seen) = watch::channel(0);

    let first = node(None, &resource, &progress).await?;
    let second = node(Some(&first), &resource, &progress).await?;
    let ten = *seen.wait_for(|drawn| *drawn >= 10).await?;

    // The node that runs the job leaves: the job stops there, then starts on the other.
    first.shutdown().await;
    seen.wait_for(|drawn| *drawn >= ten + 10).await?;
    second.shutdown().await;
    assert_eq!(resource.users.load(Ordering::SeqCst), 0);
    Ok(())
}
