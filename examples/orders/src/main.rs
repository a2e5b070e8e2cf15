//! Orders and the inventory: two entity types that send each other messages, on two nodes.
//!
//! An order asks the inventory of its article to reserve some pieces, and is placed once the inventory agrees;
//! meanwhile the order handles other messages. A node may fail and lose the question or the answer. So the order asks
//! again, under its own id, and the inventory remembers its reservations: asked twice, it answers twice and reserves
//! once.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::collections::BTreeMap;
use std::time::Duration;

use greylag::prelude::*;

const ORDER: EntityKey<Order> = EntityKey::new("Order");
const INVENTORY: EntityKey<Reserve> = EntityKey::new("Inventory");
/// Pieces of every article at the start.
const IN_STOCK: u32 = 5;
/// The delay before an order repeats a question without an answer.
const RETRY_WAIT: Duration = Duration::from_millis(500);

/// Reserves pieces for an order; the answer is whether there are enough.
#[derive(Serialize, Deserialize)]
struct Reserve {
    order: String,
    pieces: u32,
    reply_to: ReplyTo<bool>,
}

#[derive(Serialize, Deserialize)]
struct Reserved {
    order: String,
    pieces: u32,
}

struct Inventory;

impl EventSourced for Inventory {
    type Command = Reserve;
    type Event = Reserved;
    /// The reserved pieces of each order.
    type State = BTreeMap<String, u32>;

    fn on_command(&mut self, _: &mut Ctx<'_, Reserve>, kept: &Self::State, command: Reserve) -> Effect<Self> {
        let Reserve { order, pieces, reply_to } = command;
        if kept.contains_key(&order) {
            return Effect::reply(reply_to, true);
        }
        if pieces > IN_STOCK - kept.values().sum::<u32>() {
            return Effect::reply(reply_to, false);
        }
        Effect::<Self>::persist(Reserved { order, pieces }).then_reply(reply_to, |_| true)
    }

    fn apply(kept: &mut Self::State, event: &Reserved) {
        kept.insert(event.order.clone(), event.pieces);
    }
}

/// What was ordered, or why the order failed.
type Outcome = Result<String, String>;

/// A customer's order, and the token for its outcome.
#[derive(Serialize, Deserialize)]
struct OrderRequest {
    article: String,
    pieces: u32,
    reply_to: ReplyTo<Outcome>,
}

#[derive(Serialize, Deserialize)]
enum Order {
    Place(OrderRequest),
    /// The inventory has answered, or failed to answer.
    Answered {
        outcome: Result<bool, AskError>,
        request: OrderRequest,
    },
}

#[derive(Serialize, Deserialize)]
struct Placed {
    what: String,
}

struct Orders;

impl Orders {
    fn ask_inventory(cx: &mut Ctx<'_, Order>, request: OrderRequest) -> Effect<Self> {
        let (order, pieces) = (cx.id().to_owned(), request.pieces);
        let inventory = cx.entity_ref(INVENTORY, request.article.as_str());
        let reserve = move |reply_to| Reserve { order, pieces, reply_to };
        cx.ask(&inventory, reserve, move |outcome| Order::Answered { outcome, request });
        Effect::none()
    }
}

impl EventSourced for Orders {
    type Command = Order;
    type Event = Placed;
    type State = Option<String>;

    fn on_command(&mut self, cx: &mut Ctx<'_, Order>, placed: &Option<String>, command: Order) -> Effect<Self> {
        match (command, placed) {
            (Order::Place(request) | Order::Answered { request, .. }, Some(what)) => {
                Effect::reply(request.reply_to, Ok(what.clone()))
            }
            (Order::Place(request), None) => Self::ask_inventory(cx, request),
            (Order::Answered { outcome: Ok(true), request: OrderRequest { article, pieces, reply_to } }, None) => {
                let what = format!("{pieces} × {article}");
                Effect::<Self>::persist(Placed { what: what.clone() }).then_reply(reply_to, |_| Ok(what))
            }
            (Order::Answered { outcome: Ok(false), request }, None) => Effect::reply(
                request.reply_to,
                Err(format!("there are not {} of {:?}", request.pieces, request.article)),
            ),
            // The inventory may have reserved the pieces already. It remembers the order, so ask again after a delay.
            (Order::Answered { outcome: Err(error), request }, None) if error.is_retryable() => {
                cx.spawn(tokio::time::sleep(RETRY_WAIT), move |()| Order::Place(request));
                Effect::none()
            }
            (Order::Answered { outcome: Err(error), request }, None) => {
                Effect::reply(request.reply_to, Err(error.to_string()))
            }
        }
    }

    fn apply(placed: &mut Option<String>, event: &Placed) {
        *placed = Some(event.what.clone());
    }
}

#[tokio::main]
async fn main() -> greylag::Result {
    let stores = Stores::in_memory_shared();
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..2 {
        let orders = EntityType::event_sourced(ORDER, |_| Ok(Orders));
        let inventory = EntityType::event_sourced(INVENTORY, |_| Ok(Inventory));
        let node = Node::builder("shop")
            .bind("127.0.0.1", 0)
            .seed_nodes(nodes.iter().map(|node| node.address().to_string()))
            .stores(stores.clone())
            .entity(orders.commands(json("order")).events(json("order.placed")))
            .entity(inventory.commands(json("inventory.reserve")).events(json("inventory.reserved")));
        nodes.push(node.start().await?);
    }

    let place = |node: usize, order: &str, pieces| {
        let order = nodes[node].entity_ref(ORDER, order);
        order.ask(move |reply_to| Order::Place(OrderRequest { article: "anvil".to_owned(), pieces, reply_to }))
    };
    for (node, order, pieces, is_placed) in
        [(0, "4711", 2, true), (1, "4712", 3, true), (0, "4712", 3, true), (1, "4713", 1, false)]
    {
        let outcome: Outcome = place(node, order, pieces).await?;
        println!("order {order}: {outcome:?}");
        assert_eq!(outcome.is_ok(), is_placed);
    }
    for node in nodes.iter().rev() {
        node.shutdown().await?;
    }
    Ok(())
}
