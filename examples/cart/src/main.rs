//! A shopping cart in replicated data, changed on two nodes at once.
//!
//! A cart is a map from articles to the options chosen of each. Two devices of one customer talk to two
//! nodes and change the cart at the same time; neither waits for the other, and no choice is lost: what
//! one device put in while the other took the article out stays in, and nothing else comes back.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::convert::Infallible;
use std::time::Duration;

use greylag::crdt::{OrMultiMap, UpdateCx};
use greylag::ddata::{Key, ReadLevel, Replicator, TypeTable, WriteLevel};
use greylag::prelude::*;

/// Articles, and the options chosen of each.
type Cart = OrMultiMap<String, String>;
type Failure = Box<dyn std::error::Error>;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The cart as one node has it.
struct Shop {
    replicator: Replicator,
    cart: Key<Cart>,
}

impl Shop {
    async fn open(node: &Node) -> Result<Self, Failure> {
        let replicator = node.replicator(TypeTable::new())?;
        Ok(Self { replicator, cart: Key::new("cart-7")? })
    }

    async fn change(
        &self,
        level: WriteLevel,
        change: impl FnOnce(&mut Cart, &mut UpdateCx<'_>) + Send + 'static,
    ) -> Result<(), Failure> {
        let change = move |cart: &mut Cart, cx: &mut UpdateCx<'_>| {
            change(cart, cx);
            Ok::<_, Infallible>(())
        };
        Ok(self.replicator.update(&self.cart, level, Cart::new, change).await?)
    }

    /// What a majority of the nodes knows of the cart.
    async fn show(&self) -> Result<String, Failure> {
        let cart = self.replicator.get(&self.cart, ReadLevel::majority(PATIENCE)).await?.found().unwrap_or_default();
        let lines = cart.iter().map(|(article, options)| {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            format!("{article} ({})", options.join(", "))
        });
        Ok(lines.collect::<Vec<_>>().join("; "))
    }
}

async fn run() -> Result<bool, Failure> {
    let berlin = Node::builder("shop").bind("127.0.0.1", 0).start().await?;
    let lagos = Node::builder("shop").bind("127.0.0.1", 0).seed_nodes([berlin.address().to_string()]).start().await?;
    let (phone, laptop) = (Shop::open(&berlin).await?, Shop::open(&lagos).await?);
    for shop in [&phone, &laptop] {
        shop.replicator.replicas().wait_for(|replicas| replicas.voter_count() == 2).await?;
        shop.replicator.wait_synced(PATIENCE).await;
    }

    let majority = WriteLevel::majority(PATIENCE);
    phone.change(majority, |cart, cx| cart.add_binding(cx, "mug".into(), "blue".into())).await?;
    phone.change(majority, |cart, cx| cart.add_binding(cx, "tea".into(), "green".into())).await?;
    println!("laptop sees {}", laptop.show().await?);

    // At the same time: the phone takes the mug out, the laptop wants a red one too.
    phone.change(WriteLevel::Local, |cart, cx| _ = cart.remove(cx, "mug")).await?;
    laptop.change(WriteLevel::Local, |cart, cx| cart.add_binding(cx, "mug".into(), "red".into())).await?;
    laptop
        .change(WriteLevel::Local, |cart, cx| {
            cart.replace_binding(cx, "tea".into(), &"green".into(), "black".into());
        })
        .await?;

    let (on_phone, on_laptop) = (phone.show().await?, laptop.show().await?);
    println!("phone sees {on_phone}");
    println!("laptop sees {on_laptop}");
    lagos.shutdown().await?;
    berlin.shutdown().await?;
    Ok(on_phone == on_laptop && on_phone == "mug (red); tea (black)")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if run().await? { Ok(()) } else { Err("the two do not agree".into()) }
}
