//! Effect, message, effect: orders that are paid for exactly once, while the processes that host them are killed.
//!
//! ```sh
//! cargo run --package paid-orders
//! ```
//! An order that is placed stores two things in one append: that it is placed, and the message to its card. The card
//! stores the charge together with the message back, and the order stores that it is paid. Each of these steps is in an
//! entity's journal before the next one begins, and each message has the number that it got there. After any crash, the
//! next incarnation sends the unconfirmed messages again, and an entity that has already applied a message recognises
//! its number. So no order stays unpaid, and none is paid twice.
//!
//! Two processes host orders and cards; this one serves their journal, places orders, and kills one of the two after a
//! third of the orders, and the other one after two thirds.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

mod card;
mod order;

use std::time::Duration;

use greylag::journal_service::{ClientSettings, JournalClient, JournalServer, ServerSettings};
use greylag::journal_sled::{SledJournal, SledJournalSettings};
use greylag::persistence::Journal;
use greylag::prelude::*;
use tokio::process::{Child, Command};

use card::CHARGED;
use order::{ASKED, ORDER, OrderMessage};

const ORDERS: u64 = 60;
const CARDS: u64 = 5;
const CENTS: u64 = 990;
/// The time limit for each step, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Starts a node with this role, which uses the journal served at this address.
async fn start(role: &str, seed: Option<&str>, journal: &str) -> greylag::Result<Node> {
    let stores = JournalClient::connect(journal, ClientSettings::default()).await?.stores();
    let builder = Node::builder("shop").bind("127.0.0.1", 0).roles([role]).seed_nodes(seed).stores(stores);
    let builder = match role {
        "shop" => builder.entity(order::orders()).entity(card::cards()),
        _ => builder.proxy(order::orders_elsewhere()).proxy(card::cards_elsewhere()),
    };
    Ok(builder.start().await?)
}

/// Starts this program as a host of orders and cards, which ends no later than this process.
fn start_host(seed: &str, journal: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).args(["--host", seed, journal]).kill_on_drop(true).spawn()
}

/// Asks again until there is an answer: an entity that moves, or whose node was killed, does not answer.
async fn ask<M: Send + 'static, R: Send + 'static>(
    entity: &EntityRef<M>,
    question: impl Fn(ReplyTo<R>) -> M + Copy,
) -> greylag::Result<R> {
    let answered = async {
        loop {
            match entity.ask(question).timeout(Duration::from_secs(5)).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => return Err(error.into()),
            }
        }
    };
    tokio::time::timeout(TIME_LIMIT, answered).await?
}

#[tokio::main]
async fn main() -> greylag::Result {
    if let [flag, seed, journal] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && flag == "--host"
    {
        start("shop", Some(seed), journal).await?.run().await;
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let disk = SledJournal::open(directory.path(), SledJournalSettings::default()).await?;
    let served = JournalServer::bind("127.0.0.1:0".parse()?, disk.stores(), ServerSettings::default()).await?;
    let journal = served.local_address().to_string();
    let node = start("till", None, &journal).await?;
    let seed = node.address().to_string();
    let mut hosts = vec![start_host(&seed, &journal)?, start_host(&seed, &journal)?];

    let till = node.delivery().producer(ORDER, ProducerId::per_node("till")).start().await?;
    for number in 0..ORDERS {
        let place = OrderMessage::Place { card: format!("card-{}", number % CARDS), cents: CENTS };
        let placed = till.send(format!("order-{number}"), place).await?;
        if number == ORDERS / 3 || number == ORDERS * 2 / 3 {
            placed.confirmed().await?;
            hosts.remove(0).kill().await?;
            hosts.push(start_host(&seed, &journal)?);
            println!("{number} orders were sent, and a host is killed; another one comes");
        }
    }
    till.drain(TIME_LIMIT).await?;

    for number in 0..ORDERS {
        let order = node.entity_ref(ASKED, format!("order-{number}"));
        let paid = async {
            while ask(&order, order::Query::Payments).await? == (0, 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            greylag::Result::Ok(())
        };
        tokio::time::timeout(TIME_LIMIT, paid).await??;
    }
    let mut charged = 0;
    for number in 0..CARDS {
        charged += ask(&node.entity_ref(CHARGED, format!("card-{number}")), card::Query::Charged).await?;
    }
    let mut is_right = charged == ORDERS * CENTS;
    for number in 0..ORDERS {
        let payments = ask(&node.entity_ref(ASKED, format!("order-{number}")), order::Query::Payments).await?;
        is_right &= payments == (CENTS, 1);
    }
    println!("{ORDERS} orders of {CENTS} cents: the cards were charged {charged}");

    for mut host in hosts {
        host.kill().await?;
    }
    node.shutdown().await?;
    served.shutdown().await;
    disk.close().await?;
    if is_right { Ok(()) } else { Err(greylag::Error::new("not every order was paid for once")) }
}
