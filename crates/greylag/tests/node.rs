//! Nodes as programs start them: over real sockets, with the facade's defaults.

use std::time::Duration;

use greylag::cluster::{Downing, MemberStatus};
use greylag::prelude::*;
use greylag::{NodeBuilder, StartError};

fn builder() -> NodeBuilder {
    Node::builder("test").bind("127.0.0.1", 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_joins_through_the_first_and_leaves_in_order() {
    let first = builder().start().await.expect("a cluster of one");
    let second = builder().roles(["guest"]).seed_nodes([first.address().to_string()]).start().await.expect("it joins");
    first.cluster().wait_for(|view| up(view) == 2).await.expect("both are Up");
    second.shutdown().await;
    let alone = first.cluster().wait_for(|view| view.members.len() == 1);
    tokio::time::timeout(Duration::from_secs(30), alone).await.expect("nobody has to be downed").expect("it stays");
    first.shutdown().await;
}

fn up(view: &greylag::cluster::MembershipView) -> usize {
    view.members.iter().filter(|member| member.status == MemberStatus::Up).count()
}

/// cluster S1: the crate below decides nothing by default, the facade does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_builder_turns_the_resolver_on_unless_told_otherwise() {
    let node = builder().start().await.expect("a cluster of one");
    assert!(matches!(node.cluster().settings().downing, Downing::SplitBrainResolver(_)));
    node.shutdown().await;
    let node = builder().configure(|settings| settings.cluster.downing = Downing::None).start().await.expect("starts");
    assert!(matches!(node.cluster().settings().downing, Downing::None));
    node.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_node_is_said_before_it_joins_anything() {
    let seed = builder().seed_nodes(["nowhere"]).start().await.expect_err("no port");
    assert!(matches!(&seed, StartError::Seed(error) if error.to_string().contains("nowhere")), "{seed}");
    let name = Node::builder("").bind("127.0.0.1", 0).start().await.expect_err("no name");
    assert!(matches!(name, StartError::Bind(_)), "{name}");
    let role = builder().roles(["dc-west"]).start().await.expect_err("reserved");
    assert!(role.to_string().contains("dc-"), "{role}");
}
