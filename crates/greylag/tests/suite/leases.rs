//! The choice of a node's store of leases.

use greylag::cluster::{ClusterSettings, Downing, InMemoryLeases, SbrSettings, Strategy};
use greylag::prelude::*;
use greylag::{Config, NodeBuilder, StartError};

fn lease_majority(settings: &mut ClusterSettings) {
    let strategy = Strategy::named("lease_majority", None).expect("it is one");
    settings.downing = Downing::SplitBrainResolver(SbrSettings::with_strategy(strategy));
}

fn node(file: &str) -> NodeBuilder {
    let builder = Node::builder("test").bind("127.0.0.1", 0).config(Config::new().text("node.toml", file));
    builder.configure(|settings| lease_majority(&mut settings.cluster))
}

fn refused(started: Result<Node, StartError>) -> String {
    match started {
        Err(StartError::Config(problems)) => problems.to_string(),
        other => panic!("{other:?}"),
    }
}

/// cluster S10: the program's only store needs no name, one of several does, and an unknown name is refused with the
/// known ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_of_leases_is_found_by_its_name() {
    let without = refused(node("").start().await);
    assert!(without.contains("cluster.sbr.lease_majority.lease"), "{without}");

    let alone = node("").lease_provider("here", InMemoryLeases::new()).start().await.expect("it is used unnamed");
    assert_eq!(
        alone.settings().cluster.leases.as_ref().expect("put there").resolver_name(),
        "test-greylag-sbr",
        "by the name of the cluster"
    );
    alone.shutdown().await.expect("it leaves in order");

    let several = |file: &str| {
        let builder = node(file).lease_provider("here", InMemoryLeases::new());
        builder.lease_provider("there", InMemoryLeases::new())
    };
    let named = several("cluster.sbr.lease_majority.lease = \"there\"").start().await.expect("it is named");
    named.shutdown().await.expect("it leaves in order");
    for file in ["", "cluster.sbr.lease_majority.lease = \"theer\"\ntransport.outbound_lanes = 0"] {
        let text = refused(several(file).start().await);
        for valid in ["here", "there", "postgres"] {
            assert!(text.contains(valid), "{valid}: {text}");
        }
        assert_eq!(text.contains("outbound_lanes"), !file.is_empty(), "all problems together: {text}");
        assert_eq!(text.contains("node.toml:1"), !file.is_empty(), "with the line: {text}");
    }
}

/// A store that the program put into the settings stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_store_in_the_settings_wins_over_named_ones() {
    let leases = greylag::cluster::Leases::new("another", InMemoryLeases::new());
    let node = node("cluster.sbr.lease_majority.lease = \"unknown\"")
        .configure(move |settings| settings.cluster.leases = Some(leases))
        .start()
        .await
        .expect("it has a store");
    assert_eq!(node.settings().cluster.leases.as_ref().expect("put there").resolver_name(), "another-greylag-sbr");
    node.shutdown().await.expect("it leaves in order");
}
