//! Warnings of a node. A test program of its own, since a process has only one log subscriber.

use std::io::Write;
use std::sync::{Arc, Mutex};

use greylag::cluster::{Downing, Singleton};
use greylag::prelude::*;

/// The log, in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().expect("nothing panics"))).expect("text")
    }
}

struct Idle;

impl Entity for Idle {
    type Message = u64;

    fn receive(&mut self, _: u64, _: &mut Ctx<'_, u64>) -> Result<(), Failure> {
        Ok(())
    }
}

async fn node(downing: Option<Downing>) -> Node {
    let builder = Node::builder("test").bind("127.0.0.1", 0);
    let builder = builder.configure(|settings| {
        if let Some(downing) = downing {
            settings.cluster.downing = downing;
        }
    });
    builder.start().await.expect("a cluster of one")
}

fn use_a_singleton(node: &Node) {
    let job = Singleton::job("job", |_, mut stop| async move { stop.stopped().await });
    node.cluster().singleton(job).expect("it starts");
}

fn use_sharding(node: &Node) {
    let idle = EntityType::new(EntityKey::new("Idle"), |_| Ok(Idle)).codec(json("idle"));
    node.sharding().init(idle).expect("it starts");
}

/// cluster S1: sharding or a singleton on a cluster without downing is warned of at start; with the facade's default
/// there is no warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_and_sharding_without_a_downing_strategy_are_warned_of() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(move || writer.clone())
        .init();
    for (name, start) in [("job", use_a_singleton as fn(&Node)), ("Idle", use_sharding)] {
        let decided = node(None).await;
        start(&decided);
        let quiet = log.take();
        assert!(!quiet.contains("downing = none"), "{quiet}");
        decided.shutdown().await.expect("it leaves in order");

        let undecided = node(Some(Downing::None)).await;
        assert!(!log.take().contains("downing = none"), "not before something must run once");
        start(&undecided);
        let loud = log.take();
        assert!(loud.contains("WARN") && loud.contains("downing = none") && loud.contains(name), "{name}: {loud}");
        assert!(loud.contains("cluster.downing = split_brain_resolver"), "{loud}");
        undecided.shutdown().await.expect("it leaves in order");
    }
}
