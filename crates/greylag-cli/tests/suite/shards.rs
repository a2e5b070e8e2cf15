//! `greylag shards` against real nodes that host entities.

use crate::common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::{code, greylag, json, output_text};
use greylag::prelude::*;
use greylag_management::ManagementSettings;
use serde_json::Value;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const CART: EntityKey<Add> = EntityKey::new("Cart");

#[derive(Serialize, Deserialize)]
struct Add(ReplyTo<u64>);

struct Cart(u64);

impl Entity for Cart {
    type Message = Add;

    fn receive(&mut self, Add(reply_to): Add, _: &mut Ctx<'_, Add>) -> Result<(), Failure> {
        self.0 += 1;
        reply_to.reply(self.0);
        Ok(())
    }
}

async fn node(seed: Option<&Node>) -> Node {
    let carts = EntityType::new(CART, |_| Ok(Cart(0))).codec(greylag::prelude::json("cart.add"));
    let builder = Node::builder("shop").configure(|settings| {
        settings.management = ManagementSettings::at("127.0.0.1:0");
        settings.sharding.number_of_shards = 4;
        settings.sharding.rebalance_interval = Duration::from_secs(3600);
    });
    let builder = match seed {
        Some(seed) => builder.seed_nodes([seed.address().to_string()]).configure(|settings| {
            settings.transport.canonical_host = Some("127.0.0.1".to_owned());
            settings.transport.canonical_port = 0;
        }),
        None => builder,
    };
    builder.entity(carts).start().await.unwrap()
}

fn admin(node: &Node) -> String {
    node.management_address().expect("it is on").to_string()
}

/// Repeats a command until its answer satisfies `is_right`.
async fn json_at_last(node: &Node, arguments: &[&str], is_right: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let answer = json(&greylag(&admin(node), arguments).await);
        if is_right(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_shards_and_entities_are_shown_from_any_node() {
    let one = node(None).await;
    let two = node(Some(&one)).await;
    let both = [&one, &two].map(|node| node.unique_address().to_string());
    let is_complete = |answer: &Value| answer["regions"].as_array().is_some_and(|regions| regions.len() == 2);
    let regions = json_at_last(&two, &["shards", "regions", "Cart", "--json"], is_complete).await;
    let named: BTreeSet<_> = regions["regions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(named, both.iter().map(String::as_str).collect(), "{regions}");
    assert_eq!(regions["coordinator_missing"], false);
    for id in 0..40 {
        one.entity_ref(CART, id.to_string()).ask(Add).timeout(TIME_LIMIT).await.unwrap();
    }
    assert_eq!(json(&greylag(&admin(&one), &["shards", "types", "--json"]).await)["entity_types"][0], "Cart");

    for node in [&one, &two] {
        let stats = json(&greylag(&admin(node), &["shards", "stats", "Cart", "--json"]).await);
        assert_eq!(
            (&stats["failed_regions"], &stats["coordinator_missing"]),
            (&Value::from(Vec::<Value>::new()), &Value::from(false))
        );
        let shards: Vec<_> = stats["regions"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|region| region["shards"].as_array().unwrap())
            .collect();
        assert_eq!(shards.len(), 4, "{stats}");
        assert_eq!(shards.iter().filter_map(|shard| shard["total"].as_u64()).sum::<u64>(), 40);
        assert_eq!(shards.iter().filter_map(|shard| shard["active"].as_u64()).sum::<u64>(), 40);
    }
    let table = greylag(&admin(&one), &["shards", "stats", "Cart"]).await;
    for wanted in ["REGION", "PASSIVATING", &both[0], "2 regions, 4 shards, 40 entities"] {
        assert!(output_text(&table).contains(wanted), "{wanted}: {}", output_text(&table));
    }

    let mut found = BTreeSet::new();
    for region in &both {
        let page = json(&greylag(&admin(&one), &["shards", "entities", "Cart", "--region", region, "--json"]).await);
        assert_eq!((page["region"].as_str(), &page["next"]), (Some(region.as_str()), &Value::Null));
        for shard in page["shards"].as_array().unwrap() {
            found.extend(shard["entities"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(found, (0..40).map(|id| id.to_string()).collect());
    // A page may begin at any shard, and a region may be named by its address without uid.
    let own = both[0].split('#').next().unwrap();
    let all = json(&greylag(&admin(&two), &["shards", "entities", "Cart", "--region", own, "--json"]).await);
    let (shard, ids) = (&all["shards"][0]["shard"], all["shards"][0]["entities"].as_array().unwrap());
    let (shard, first) = (shard.as_str().unwrap(), ids[0].as_str().unwrap());
    let rest = ["shards", "entities", "Cart", "--region", own, "--shard", shard, "--after", first, "--json"];
    let rest = json(&greylag(&admin(&two), &rest).await);
    assert_eq!(rest["shards"][0]["entities"].as_array().unwrap(), &ids[1..]);
    let text = greylag(&admin(&one), &["shards", "entities", "Cart", "--all"]).await;
    assert!(code(&text) == 0 && output_text(&text).lines().count() == all_ids(&all), "{}", output_text(&text));

    let place = json(&greylag(&admin(&one), &["shards", "location", "Cart", first, "--json"]).await);
    assert_eq!((place["shard"].as_str(), place["region"].as_str()), (Some(shard), Some(both[0].as_str())), "{place}");
    two.shutdown().await.unwrap();
    one.shutdown().await.unwrap();
}

fn all_ids(page: &Value) -> usize {
    page["shards"].as_array().unwrap().iter().map(|shard| shard["entities"].as_array().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_to_show_say_why() {
    let one = node(None).await;
    for (arguments, exit, wanted) in [
        (&["stats", "Order"][..], 1, r#"entity type "Order" is not set up on this node; these are: ["Cart"]"#),
        (&["location", "Cart", ""], 2, "is not an entity id"),
        (&["entities", "Cart", "--region", "nonsense"], 2, "nonsense"),
        (&["entities", "Cart", "--region", "127.0.0.1:1"], 1, "no region of the type is at 127.0.0.1:1"),
        (&["entities", "Cart", "--region", "127.0.0.1:1#7", "--timeout", "500ms"], 4, "does not answer"),
        (&["entities", "Cart", "--after", "1"], 2, "--shard"),
        (&["stats"], 2, "<TYPE>"),
    ] {
        let arguments: Vec<_> = ["shards"].into_iter().chain(arguments.iter().copied()).collect();
        let refused = greylag(&admin(&one), &arguments).await;
        assert_eq!(code(&refused), exit, "{arguments:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains(wanted), "{arguments:?}: {}", output_text(&refused));
    }
    one.shutdown().await.unwrap();
    let bare = common::Node::writable().await;
    let refused = bare.run(&["shards", "types"]).await;
    assert!(code(&refused) == 1 && output_text(&refused).contains("runs no entities"), "{}", output_text(&refused));
    bare.end().await;
}
