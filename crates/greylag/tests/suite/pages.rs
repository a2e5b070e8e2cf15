//! What the pages of docs/guide show, each on one node and on three, over gRPC on loopback.
//!
//! A test uses no more than its page: it registers no reply type, makes no id by hand, and names no timeout.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greylag::core::DeadLetterReason;
use greylag::prelude::*;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Nodes that form one cluster; `set_up` sets each up, given its number.
async fn cluster(count: usize, set_up: impl Fn(usize, NodeBuilder) -> NodeBuilder) -> Vec<Node> {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    let name = format!("pages-{}", CLUSTERS.fetch_add(1, Ordering::Relaxed));
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..count {
        let mut builder = Node::builder(&name).start_timeout(TIME_LIMIT);
        // Without seed nodes and address, the first node is a cluster of one on loopback.
        if let Some(first) = nodes.first() {
            builder = builder.bind("127.0.0.1", 0).seed_nodes([first.address().to_string()]);
        }
        nodes.push(set_up(number, builder).start().await.expect("it starts"));
    }
    nodes
}

async fn end(nodes: Vec<Node>) {
    for node in nodes.iter().rev() {
        node.shutdown().await.expect("it leaves in order");
    }
}

/// Page 1: a counter that survives.
mod counter {
    use super::*;

    const COUNTER: EntityKey<Command> = EntityKey::new("Counter");

    #[derive(Serialize, Deserialize)]
    enum Command {
        Increment,
        Get(ReplyTo<u64>),
    }

    #[derive(Serialize, Deserialize)]
    struct Incremented;

    #[derive(Default)]
    struct Counter;

    impl EventSourced for Counter {
        type Command = Command;
        type Event = Incremented;
        type State = u64;

        fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &u64, command: Command) -> Effect<Self> {
            match command {
                Command::Increment => Effect::persist(Incremented),
                Command::Get(reply_to) => Effect::reply(reply_to, *count),
            }
        }

        fn apply(count: &mut u64, _: &Incremented) {
            *count += 1;
        }
    }

    async fn counts_on(nodes: usize) {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(nodes, |_, builder| {
            let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
                .commands(json("counter.command"))
                .events(json("counter.incremented"));
            builder.stores(stores.clone()).entity(counters)
        })
        .await;
        for id in 0..20 {
            for node in &nodes {
                node.entity_ref(COUNTER, id.to_string()).tell(Command::Increment).expect("it is taken");
            }
        }
        for id in 0..20 {
            for node in &nodes {
                let counter = node.entity_ref(COUNTER, id.to_string());
                // Messages of other nodes may still be on their way.
                let counted = async {
                    while counter.ask(Command::Get).await.expect("it answers") != nodes.len() as u64 {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(TIME_LIMIT, counted).await.expect("each node is counted once");
            }
        }
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_1_a_counter_on_one_node() {
        counts_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_1_a_counter_on_three_nodes() {
        counts_on(3).await;
    }

    /// A handler as web frameworks need it: it holds clones of the node, and its futures are `Send`.
    #[expect(clippy::manual_async_fn, reason = "it says that the future is Send")]
    fn handler(node: Node, name: String) -> impl Future<Output = Result<String, bool>> + Send {
        async move {
            let asked = node.entity_ref(COUNTER, name).ask(Command::Get).timeout(TIME_LIMIT).await;
            asked.map(|count| count.to_string()).map_err(|error| error.is_retryable())
        }
    }

    /// Sets up the counters on a web node, as a proxy.
    fn from_the_web(builder: NodeBuilder) -> NodeBuilder {
        builder.proxy(COUNTER.proxy().role("counters").commands(json("counter.command")))
    }

    /// Sets up the counters on a hosting node.
    fn hosted(builder: NodeBuilder, stores: &Stores) -> NodeBuilder {
        let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
            .role("counters")
            .commands(json("counter.command"))
            .events(json("counter.incremented"));
        builder.stores(stores.clone()).entity(counters)
    }

    /// Page 4 on one node: with both roles it hosts its own counters; with the web's role alone it answers that no node
    /// hosts them, as an error that may be retried.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_4_a_web_node_alone_hosts_too_or_says_that_no_node_does() {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(1, |_, builder| from_the_web(hosted(builder.roles(["web", "counters"]), &stores))).await;
        nodes[0].entity_ref(COUNTER, "geese").tell(Command::Increment).expect("it is taken");
        assert_eq!(handler(nodes[0].clone(), "geese".to_owned()).await, Ok("1".to_owned()));
        end(nodes).await;

        let nodes = cluster(1, |_, builder| from_the_web(builder.roles(["web"]))).await;
        let asked = nodes[0].entity_ref(COUNTER, "geese").ask(Command::Get).timeout(TIME_LIMIT).await;
        let error = asked.expect_err("no node has the role");
        assert_eq!((&error, error.is_retryable()), (&AskError::Dropped(DeadLetterReason::NoHost), true));
        end(nodes).await;
    }

    /// Page 4: a node that hosts nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_4_a_node_that_hosts_nothing_reaches_what_others_host() {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(3, |number, builder| {
            if number == 0 {
                from_the_web(builder.roles(["web"]))
            } else {
                hosted(builder.roles(["counters"]), &stores)
            }
        })
        .await;
        let web = &nodes[0];
        for id in 0..10 {
            web.entity_ref(COUNTER, id.to_string()).tell(Command::Increment).expect("it is taken");
            assert_eq!(handler(web.clone(), id.to_string()).await, Ok("1".to_owned()));
        }
        let homes: BTreeMap<_, _> = web.sharding().region(COUNTER).expect("it is set up").shard_homes();
        assert!(!homes.contains_key(web.unique_address()), "{homes:?}");
        let error = web.entity_ref(EntityKey::<Command>::new("Cart"), "1").tell(Command::Increment).unwrap_err();
        assert_eq!(error, SendError::NotStarted);
        end(nodes).await;
    }
}

/// Page 2: a plain entity with a timer.
mod limiter {
    use super::*;

    const LIMITER: EntityKey<Message> = EntityKey::new("RateLimiter");

    #[derive(Serialize, Deserialize)]
    enum Message {
        Take { tokens: u32, reply_to: ReplyTo<bool> },
        Refill,
    }

    struct Limiter {
        left: u32,
    }

    impl Entity for Limiter {
        type Message = Message;

        fn on_start(&mut self, cx: &mut Ctx<'_, Message>) {
            cx.fixed_rate("refill", Duration::from_millis(100), || Message::Refill);
        }

        fn receive(&mut self, message: Message, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
            match message {
                Message::Refill => self.left = 100,
                Message::Take { tokens, reply_to } => {
                    let granted = self.left >= tokens;
                    self.left -= if granted { tokens } else { 0 };
                    reply_to.reply(granted);
                }
            }
            Ok(())
        }
    }

    async fn limits_on(nodes: usize) {
        let nodes = cluster(nodes, |_, builder| {
            builder.entity(
                EntityType::new(LIMITER, |_| Ok(Limiter { left: 100 }))
                    .codec(json("limiter.message"))
                    .passivation(Passivation::idle_after(Duration::from_secs(60))),
            )
        })
        .await;
        for node in &nodes {
            for id in 0..10 {
                let limiter = node.entity_ref(LIMITER, format!("{}-{id}", node.address()));
                let take = |tokens| limiter.ask(move |reply_to| Message::Take { tokens, reply_to }).timeout(TIME_LIMIT);
                assert!(take(100).await.expect("it answers"), "full");
                let again = async { while !take(100).await.expect("it answers") {} };
                tokio::time::timeout(TIME_LIMIT, again).await.expect("it is filled again, and again");
            }
        }
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_2_a_limiter_on_one_node() {
        limits_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_2_a_limiter_on_three_nodes() {
        limits_on(3).await;
    }
}

/// Page 3: entities that talk.
mod shop {
    use super::*;

    const ORDER: EntityKey<Command> = EntityKey::new("Order");
    const STOCK: EntityKey<Reserve> = EntityKey::new("Stock");

    #[derive(Serialize, Deserialize)]
    struct Reserve {
        reply_to: ReplyTo<bool>,
    }

    /// A stock, which begins with three items.
    struct Stock(u32);

    impl Entity for Stock {
        type Message = Reserve;

        fn receive(&mut self, Reserve { reply_to }: Reserve, _: &mut Ctx<'_, Reserve>) -> Result<(), Failure> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            reply_to.reply(left.is_some());
            Ok(())
        }
    }

    type Placed = Result<u64, String>;

    #[derive(Serialize, Deserialize)]
    enum Command {
        Place {
            sku: String,
            reply_to: ReplyTo<Placed>,
        },
        Reserved {
            outcome: Result<bool, AskError>,
            reply_to: ReplyTo<Placed>,
        },
        /// Asks for a reference to the stock of a sku.
        WhereIs {
            sku: String,
            reply_to: ReplyTo<EntityRef<Reserve>>,
        },
    }

    #[derive(Serialize, Deserialize)]
    struct Accepted;

    struct Order;

    impl EventSourced for Order {
        type Command = Command;
        type Event = Accepted;
        type State = u64;

        fn on_command(&mut self, cx: &mut Ctx<'_, Command>, _: &u64, command: Command) -> Effect<Self> {
            match command {
                Command::Place { sku, reply_to } => {
                    let stock = cx.entity_ref(STOCK, sku);
                    let reserve = |reply_to| Reserve { reply_to };
                    cx.ask(&stock, reserve, move |outcome| Command::Reserved { outcome, reply_to });
                    Effect::none()
                }
                Command::Reserved { outcome: Ok(true), reply_to } => {
                    Effect::<Self>::persist(Accepted).then_reply(reply_to, |number| Ok(*number))
                }
                Command::Reserved { outcome, reply_to } => Effect::reply(reply_to, Err(format!("{outcome:?}"))),
                Command::WhereIs { sku, reply_to } => Effect::reply(reply_to, cx.entity_ref(STOCK, sku)),
            }
        }

        fn apply(number: &mut u64, _: &Accepted) {
            *number += 1;
        }
    }

    async fn sells_on(nodes: usize) {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(nodes, |_, builder| {
            let orders = EntityType::event_sourced(ORDER, |_| Ok(Order))
                .commands(json("order.command"))
                .events(json("order.accepted"));
            let stock = EntityType::new(STOCK, |_| Ok(Stock(3))).codec(json("stock.reserve"));
            builder.stores(stores.clone()).entity(orders).entity(stock)
        })
        .await;
        let mut placed = Vec::new();
        for number in 0..12_usize {
            let node = &nodes[number % nodes.len()];
            let order = node.entity_ref(ORDER, (number % 4).to_string());
            let place = |reply_to| Command::Place { sku: "bolt".to_owned(), reply_to };
            placed.push(order.ask(place).timeout(TIME_LIMIT).await.expect("it answers"));
        }
        assert_eq!(placed.iter().filter(|placed| placed.is_ok()).count(), 3, "{placed:?}");
        assert_eq!(placed.iter().filter(|placed| **placed == Err("Ok(false)".to_owned())).count(), 9, "{placed:?}");
        // A reference from an answer reaches the same entity.
        for node in &nodes {
            let order = node.entity_ref(ORDER, "0");
            let where_is = |reply_to| Command::WhereIs { sku: "bolt".to_owned(), reply_to };
            let bolts = order.ask(where_is).timeout(TIME_LIMIT).await.expect("it answers");
            assert_eq!((bolts.entity_type(), bolts.id()), ("Stock", "bolt"));
            let left = bolts.ask(|reply_to| Reserve { reply_to }).timeout(TIME_LIMIT).await;
            assert_eq!(left, Ok(false));
        }
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_3_entities_that_talk_on_one_node() {
        sells_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_3_entities_that_talk_on_three_nodes() {
        sells_on(3).await;
    }
}

/// Page 5: reliable delivery between entities.
mod payments {
    use super::*;

    const PAYMENT: EntityKey<Pay> = EntityKey::new("Payment");
    /// The same entities, asked for the paid sum.
    const PAID: EntityKey<ReplyTo<u64>> = EntityKey::new("Payment");

    #[derive(Serialize, Deserialize)]
    struct Pay {
        cents: u64,
    }

    #[derive(Serialize, Deserialize)]
    struct Paid {
        cents: u64,
    }

    struct Payment;

    impl EventSourced for Payment {
        type Command = DeliveryCommand<Pay, ReplyTo<u64>>;
        type Event = Paid;
        type State = u64;

        fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, paid: &u64, command: Self::Command) -> Effect<Self> {
            match command {
                DeliveryCommand::Delivered(pay) => {
                    let cents = pay.cents;
                    Effect::persist_delivery(pay, vec![Paid { cents }])
                }
                DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *paid),
            }
        }

        fn apply(paid: &mut u64, event: &Paid) {
            *paid += event.cents;
        }
    }

    /// The first node sends; with more than one node it hosts no payments.
    async fn pays_on(count: usize) {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(count, |number, builder| {
            let builder = builder.stores(stores.clone());
            if count > 1 && number == 0 {
                let payments = PAYMENT.proxy().role("payments").commands(json("payment.pay"));
                return builder.proxy(payments.with_delivery_and(json::<ReplyTo<u64>>("payment.paid?")));
            }
            let payments = EntityType::event_sourced(PAYMENT, |_| Ok(Payment))
                .role("payments")
                .commands(json("payment.pay"))
                .events(json("payment.paid"))
                .with_delivery_and(json("payment.paid?"));
            builder.roles(["payments"]).entity(payments)
        })
        .await;
        let node = &nodes[0];
        let payments = node
            .delivery()
            .producer(PAYMENT, ProducerId::per_node("orders"))
            .durable()
            .start()
            .await
            .expect("it is set up");
        for order in 0..10 {
            let id = format!("order-{order}");
            let sent = payments.send(id.as_str(), Pay { cents: 990 }).await.expect("it is stored");
            sent.confirmed().await.expect("it is paid");
            let paid = node.entity_ref(PAID, id).ask(|reply_to| reply_to).timeout(TIME_LIMIT).await;
            assert_eq!(paid, Ok(990));
        }
        // A node that leaves ends its producers after their last messages are confirmed.
        let last = payments.send("order-0", Pay { cents: 10 }).await.expect("it is stored");
        let (last, ()) = tokio::join!(last.confirmed(), end(nodes));
        last.expect("it is paid");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pays_on_one_node() {
        pays_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pays_on_three_nodes() {
        pays_on(3).await;
    }

    #[tokio::test]
    async fn a_producer_of_a_type_that_is_not_set_up_says_so() {
        let nodes = cluster(1, |_, builder| builder).await;
        let refused = nodes[0].delivery().producer(PAYMENT, ProducerId::per_node("orders")).start().await;
        let refused = refused.expect_err("nothing is set up").to_string();
        assert!(refused.starts_with(r#"entity type "Payment" is not set up here with delivery of"#), "{refused}");
        end(nodes).await;
    }
}

/// Page 6: work distributed to workers.
mod work {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Thumbnail {
        path: String,
    }

    async fn works_on(count: usize) {
        let stores = Stores::in_memory_shared();
        let nodes = cluster(count, |_, builder| builder.stores(stores.clone())).await;
        let thumbnails = WorkKey::new("thumbnails", json("thumbnail"));
        let jobs = nodes[0].delivery().work_producer(&thumbnails, ProducerId::per_node("uploads")).durable();
        let jobs = jobs.start().await.expect("it starts");
        let rendered: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        for node in &nodes {
            let rendered = rendered.clone();
            let render = move |job: Delivery<Thumbnail>| {
                let rendered = rendered.clone();
                async move {
                    *rendered.lock().expect("nothing panics").entry(job.path.clone()).or_default() += 1;
                    job.confirm();
                    Ok::<_, std::io::Error>(())
                }
            };
            node.delivery().worker(&thumbnails, render).parallel(4).start().await.expect("it starts");
        }
        let all_are_there = async {
            while jobs.stats().selectable < count as u64 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIME_LIMIT, all_are_there).await.expect("workers of every node are found");
        for number in 0..40 {
            jobs.send(Thumbnail { path: format!("{number}.png") }).await.expect("it is stored");
        }
        jobs.drain(TIME_LIMIT).await.expect("all of them are done");
        let rendered = rendered.lock().expect("nothing panics").clone();
        assert_eq!(rendered.len(), 40);
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn page_6_work_on_one_node() {
        works_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn page_6_work_on_three_nodes() {
        works_on(3).await;
    }
}

/// Page 7: one live instance, and replicated data.
mod once_and_everywhere {
    use super::*;

    #[derive(Serialize, Deserialize)]
    enum Bill {
        Send { cents: u64 },
        Total(ReplyTo<(u64, u64)>),
    }

    struct Biller {
        instance: u64,
        cents: u64,
    }

    impl Biller {
        fn new(cx: SingletonContext) -> Self {
            Self { instance: cx.instance_id, cents: 0 }
        }
    }

    impl SingletonInstance for Biller {
        type Message = Bill;

        async fn run(&mut self, mailbox: &mut Mailbox<Bill>) -> greylag::Result {
            while let Some(bill) = mailbox.recv().await {
                match bill {
                    Bill::Send { cents } => self.cents += cents,
                    Bill::Total(reply_to) => reply_to.reply((self.cents, self.instance)),
                }
            }
            Ok(())
        }
    }

    async fn bills_on(count: usize) {
        let nodes = cluster(count, |_, builder| builder).await;
        let mut billers = Vec::new();
        for node in &nodes {
            let biller = node.singleton("biller", |cx| Ok(Biller::new(cx))).codec(json("bill")).start().await;
            billers.push(biller.expect("it starts"));
        }
        let mut instances = std::collections::BTreeSet::new();
        for (number, biller) in billers.iter().enumerate() {
            biller.tell(Bill::Send { cents: 100 }).expect("it is taken");
            let (cents, instance) = biller.ask(Bill::Total, TIME_LIMIT).await.expect("it answers");
            assert_eq!(cents, 100 * (number as u64 + 1), "what each node sent, and the others before it");
            instances.insert(instance);
        }
        assert_eq!(instances.len(), 1, "one live instance");
        assert_eq!(billers.iter().filter(|biller| biller.is_running_here()).count(), 1);
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_7_one_live_instance_on_one_node() {
        bills_on(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_7_one_live_instance_on_three_nodes() {
        bills_on(3).await;
    }

    /// Votes twice on a node as soon as it is Up; answers the count read from a majority.
    async fn vote(node: &Node) -> greylag::Result<i128> {
        let votes = node.replicated::<PNCounter>("votes")?;
        votes.update(|votes, cx| votes.increment(cx, 1)).await?;
        votes.update(|votes, cx| votes.increment(cx, 1)).majority().await?;
        Ok(votes.get().majority().await?.value())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_7_data_everywhere_on_one_node() {
        let nodes = cluster(1, |_, builder| builder).await;
        assert_eq!(vote(&nodes[0]).await.expect("it counts"), 2);
        end(nodes).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_7_data_everywhere_on_three_nodes() {
        let nodes = cluster(3, |_, builder| builder).await;
        let [first, second, third] = &nodes[..] else { unreachable!("three were started") };
        let (a, b, c) = tokio::join!(vote(first), vote(second), vote(third));
        for seen in [a, b, c] {
            assert!((2..=6).contains(&seen.expect("it counts")), "its own votes, and what it has heard of others");
        }
        for node in &nodes {
            let votes = node.replicated::<PNCounter>("votes").expect("the same entry again");
            let counted = async {
                while votes.get().all().await.expect("all nodes answer").value() != 6 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TIME_LIMIT, counted).await.expect("no vote is lost, and none is counted twice");
        }
        end(nodes).await;
    }

    /// An entry of a type that only one node has used so far.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_entry_that_was_named_is_received_before_it_is_used() {
        let nodes = cluster(2, |_, builder| builder).await;
        let [writer, reader] = &nodes[..] else { unreachable!("two were started") };
        let [written, read] = [writer, reader].map(|node| node.replicated::<LwwMap<u64, Vec<u8>>>("pictures"));
        let (written, read) = (written.expect("an entry"), read.expect("an entry"));
        written.update(|map, cx| map.put(cx, 7, vec![1, 2, 3])).all().timeout(TIME_LIMIT).await.expect("both have it");
        assert_eq!(read.get().await.expect("it is here").get(&7), Some(&vec![1, 2, 3]));
        written.delete().all().timeout(TIME_LIMIT).await.expect("on both");
        let error = read.get().await.unwrap_err();
        assert_eq!(error.to_string(), "\"pictures\" is deleted");
        let error = reader.replicated::<PNCounter>("pictures*").unwrap_err();
        assert_eq!(format!("{error:?}"), "key \"pictures*\" is invalid: it ends in '*', which names a prefix");
        end(nodes).await;
    }
}
