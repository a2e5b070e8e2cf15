//! Purchases through all layers at once: shop, region, shard, customer, journal, and back.
//!
//! The real machines of delivery, sharding and persistence run on the cluster of the sharding world, which crashes,
//! pauses, cuts and removes nodes. Checked while it runs: every event stored is its customer's next purchase (so each
//! is applied once, in order); a purchase that is confirmed or suppressed is stored; no customer and no shard lives
//! twice among nodes that share a view. After healing everything is sold, and every customer answers every node with
//! the right total.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greylag_core::Generation;
use greylag_delivery::machine::sharding_consumer::ShardingConsumerSettings;
use greylag_delivery::machine::sharding_producer::{Input as ShopInput, ShardingProducerSettings};
use greylag_delivery::{ControllerRef, DeliverySettings, Omissions, ProducerStopped, UpstreamMessage};
use greylag_persistence::{Incarnation, StoreCall};
use greylag_sharding::Clause;
use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::region::{self, Provenance, RegionState};
use greylag_sharding::machine::shard::SlotId;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::sharding::world::{self, Application, Faults, MS, News, Sabotage, World};
use crate::{Omission, Outcome, Violation};

mod account;
mod customer;
mod hosting;
mod ledger;
mod shop;

use customer::{MailboxMessage, Msg};
use hosting::{Control, Hosted, ShardPhase};
use ledger::Ledger;
use shop::Shop;

type Market = World<Purchases>;

/// Limit for everything after healing.
const TIME_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let unchecked = without == Some(Omission::GenerationCheck);
    let forgets = without == Some(Omission::DeliveryPosition);
    let sabotage = Sabotage { clause: unchecked.then_some(Clause::GenerationCheck), ..Sabotage::default() };
    let mut market = World::with(seed, Faults::of(seed), sabotage, |rng, _| Purchases::draw(rng, unchecked, forgets));
    let tally = market.run(world::SAFETY, TIME_LIMIT).map_err(|what| Violation {
        promise: "every purchase is applied exactly once, in order, and every customer answers",
        what: what.trim().to_owned(),
    })?;
    Ok(Outcome {
        steps: tally.steps + market.app.runs,
        faults: tally.faults,
        checked: tally.handled,
        ..Outcome::default()
    })
}

/// Messages between nodes outside the regions.
#[derive(Debug, Clone)]
pub(crate) enum DirectMessage {
    Upstream(UpstreamMessage),
    Stopped { to: ControllerRef, message: ProducerStopped },
}

#[derive(Debug)]
pub(crate) enum Timer {
    Ready {
        node: usize,
        shard: ShardId,
        generation: Generation,
    },
    Run {
        node: usize,
        shard: ShardId,
        generation: Generation,
    },
    Control {
        node: usize,
        shard: ShardId,
        generation: Generation,
        control: Control,
    },
    Fenced {
        node: usize,
        shard: ShardId,
        generation: Generation,
        stored: Option<Generation>,
    },
    Journal {
        node: usize,
        shard: ShardId,
        generation: Generation,
        slot: SlotId,
        incarnation: u64,
        of: Incarnation,
        call: Box<StoreCall>,
    },
    Open,
    Submit {
        node: usize,
        epoch: u64,
    },
    ShopTick {
        node: usize,
        epoch: u64,
    },
    ShopNews {
        node: usize,
        news: News,
    },
    Ask,
}

pub(crate) struct Purchases {
    /// The customer of each purchase.
    input: Vec<u32>,
    customers: u32,
    is_slow: bool,
    journal: Ledger,
    /// Purchases that the journal took, by customer.
    applied: BTreeMap<u32, Vec<u64>>,
    consumer: ShardingConsumerSettings,
    producer: ShardingProducerSettings,
    shop: Option<Shop>,
    epoch: u64,
    /// Live incarnations: customer, node, incarnation.
    live: BTreeSet<(u32, usize, u64)>,
    shard_serial: u32,
    starts: u64,
    runs: u64,
    /// With the omission: claims name no generation.
    unfenced: bool,
    asked: bool,
    next_question: u64,
    /// The node that waits for each answer, and the customer that was asked.
    questions: BTreeMap<u64, (usize, u32)>,
}

impl Purchases {
    fn draw(rng: &mut ChaCha8Rng, unfenced: bool, forgets: bool) -> Self {
        let mut pick = |choices: &[usize]| choices[rng.random_range(0..choices.len())];
        let mut settings = DeliverySettings::test();
        settings.consumer.flow_control_window = pick(&[1, 2, 5, 20]) as u32;
        settings.consumer.max_outstanding_deliveries =
            (pick(&[1, 2, 5]) as u32).min(settings.consumer.flow_control_window);
        settings.consumer.ack_max_delay = MS * pick(&[0, 5]) as u32;
        settings.consumer.resend_interval_min = Duration::from_millis(200);
        settings.consumer.resend_interval_max = Duration::from_secs(1);
        settings.consumer.redelivery_backoff = Duration::from_millis(10);
        settings.producer.resend_first_interval = Duration::from_millis(100);
        settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(1);
        settings.sharding.buffer_size = pick(&[10, 100]);
        settings.sharding.buffer_size_per_entity = pick(&[1, 5, 10]);
        settings.validate().expect("drawn settings work");
        let customers = pick(&[1, 2, 3, 5, 8]) as u32;
        let count = pick(&[20, 40, 80]);
        let is_slow = pick(&[0, 1]) == 1;
        let input = (0..count).map(|_| rng.random_range(0..customers)).collect();
        let mut consumer = settings.sharding_consumer();
        let omissions = Omissions::of(forgets.then_some(greylag_delivery::Clause::Marks));
        std::sync::Arc::make_mut(&mut consumer.link).omissions = omissions;
        Self {
            input,
            customers,
            is_slow,
            journal: Ledger::new(),
            applied: BTreeMap::new(),
            consumer,
            producer: settings.sharding_producer(),
            shop: None,
            epoch: 0,
            live: BTreeSet::new(),
            shard_serial: 0,
            starts: 0,
            runs: 0,
            unfenced,
            asked: false,
            next_question: 0,
            questions: BTreeMap::new(),
        }
    }
}

impl Application for Purchases {
    type Msg = Msg;
    type Beside = DirectMessage;
    type Timer = Timer;
    type Shard = Hosted;

    fn begin(world: &mut Market) {
        world.later(300 * MS, Timer::Open);
    }

    fn start_shard(world: &mut Market, node: usize, shard: ShardId, generation: Generation) {
        world.open_shard(node, shard, generation);
    }

    fn end_shard(world: &mut Market, node: usize, shard: ShardId, generation: Generation, at_once: bool) {
        let hosted = world.hosted(node, &shard, generation).expect("only a running shard is stopped");
        hosted.phase = ShardPhase::Stopping;
        let (delay, control) =
            if at_once { (world.random(0, 20), Control::Kill) } else { (world.random(0, 100), Control::Stop) };
        world.control_later(delay, node, &shard, control);
    }

    /// Fails a shard, whose messages are then lost with its machine; or the shop.
    fn fail_shard(world: &mut Market, node: usize) {
        if world.chance(0.3) && world.app.shop.is_some() {
            return world.lose_shop();
        }
        let serving = world.nodes[node].shards.iter().find(|(_, hosted)| hosted.phase != ShardPhase::Starting);
        let Some(shard) = serving.map(|(shard, _)| shard.clone()) else { return };
        world.note(|| format!("n{node}: shard {shard} fails"));
        let failed = world.nodes[node].shards.remove(&shard).expect("found above");
        let shards = world.shards;
        world.app.forget(node, |number| ShardId::from_index(number % shards) == shard);
        let unprocessed = world.give_back(node, failed.inbox);
        world.tell(node, region::Input::ShardFailed { shard, generation: failed.generation, unprocessed });
    }

    fn push(
        world: &mut Market,
        node: usize,
        shard: &ShardId,
        generation: Generation,
        msg: Msg,
        provenance: Provenance,
    ) {
        let hosted = world.hosted(node, shard, generation).expect("a delivery names the shard that runs");
        assert_eq!(
            hosted.phase,
            ShardPhase::Serving,
            "nothing is delivered before the start or behind the stop marker"
        );
        hosted.inbox.push_back((msg, provenance));
        world.schedule(node, shard);
    }

    fn release(world: &mut Market, node: usize) {
        for shard in world.nodes[node].shards.keys().cloned().collect::<Vec<_>>() {
            world.schedule(node, &shard);
        }
    }

    fn is_live(hosted: &Hosted) -> bool {
        hosted.phase != ShardPhase::Starting
    }

    fn on_timer(world: &mut Market, timer: Timer) {
        match timer {
            Timer::Ready { node, shard, generation } => {
                let starting =
                    world.hosted(node, &shard, generation).filter(|hosted| hosted.phase == ShardPhase::Starting);
                if let Some(hosted) = starting {
                    hosted.phase = ShardPhase::Serving;
                    world.check_exclusive(node, &shard);
                    world.tell(node, region::Input::ShardInitialized { shard, generation });
                }
            }
            Timer::Run { node, shard, generation } => world.run_shard(node, &shard, generation),
            Timer::Control { node, shard, generation, control } => world.control(node, &shard, generation, control),
            Timer::Fenced { node, shard, generation, stored } => {
                world.tell(node, region::Input::Fenced { shard, generation, stored });
            }
            Timer::Journal { .. } => world.on_journal(timer),
            Timer::Open => {
                if world.app.shop.is_none() {
                    world.open_shop();
                }
            }
            Timer::Submit { epoch, .. } => world.submit(epoch),
            Timer::ShopTick { epoch, .. } => world.on_shop_tick(epoch),
            Timer::ShopNews { node, news } => world.on_shop_news(node, news),
            Timer::Ask => world.ask(),
        }
    }

    fn node_of(timer: &Timer) -> Option<usize> {
        match timer {
            Timer::Ready { node, .. }
            | Timer::Run { node, .. }
            | Timer::Control { node, .. }
            | Timer::Fenced { node, .. }
            | Timer::Submit { node, .. }
            | Timer::ShopTick { node, .. }
            | Timer::ShopNews { node, .. } => Some(*node),
            // A call on its way to the journal arrives even if its sender is gone.
            Timer::Journal { .. } | Timer::Open | Timer::Ask => None,
        }
    }

    fn on_beside(world: &mut Market, _from: usize, to: usize, message: DirectMessage) {
        match message {
            DirectMessage::Upstream(message) => {
                let here = world.app.shop.as_ref().is_some_and(|shop| shop.node == to);
                if here && message.to.path == shop::path(world.app.epoch) {
                    world.tell_shop(ShopInput::Received(message));
                }
            }
            DirectMessage::Stopped { to: controller, message } => {
                let shard = controller.path.strip_prefix("shard/").and_then(|shard| ShardId::new(shard).ok());
                let Some(shard) = shard else { return };
                let message = MailboxMessage::Stopped(message);
                world.control_later(MS, to, &shard, Control::Direct { instance: controller.instance, message });
            }
        }
    }

    fn on_news(world: &mut Market, node: usize, news: News) {
        // The news goes through a channel, as in the driver.
        let delay = world.random(0, 3);
        world.later(delay, Timer::ShopNews { node, news });
    }

    fn on_end(world: &mut Market, node: usize) {
        world.app.forget(node, |_| true);
        if world.app.shop.as_ref().is_some_and(|shop| shop.node == node) {
            world.lose_shop();
        }
    }

    fn probe(world: &mut Market) {
        world.later(MS, Timer::Ask);
    }

    fn is_settled(world: &Market) -> bool {
        world.app.asked && world.app.questions.is_empty()
    }

    fn verdict(world: &Market) -> Option<String> {
        if !world.is_sold() {
            let missing: Vec<_> = (0..world.app.input.len() as u64)
                .filter(|number| !world.app.applied.values().any(|applied| applied.contains(number)))
                .collect();
            let stats = world.app.shop.as_ref().map(|shop| shop.machine.stats(world.now()));
            return Some(format!("after healing not everything is sold: {missing:?} are not stored, {stats:?}"));
        }
        let silent: BTreeSet<_> = world.app.questions.values().collect();
        (!silent.is_empty()).then(|| format!("after healing (node, customer) {silent:?} gets no answer"))
    }
}

impl Market {
    /// Asks every customer from every node for its total, once everything is sold. A question may be lost once, along a
    /// route that is two moves old (sharding §2.6); a node without an answer asks again.
    fn ask(&mut self) {
        if !self.is_sold() {
            return self.later(200 * MS, Timer::Ask);
        }
        if !std::mem::replace(&mut self.app.asked, true) {
            for node in self.living() {
                if self.nodes[node].leaving || self.nodes[node].region.state() == RegionState::Stopped {
                    continue;
                }
                for customer in 0..self.app.customers {
                    self.app.next_question += 1;
                    self.app.questions.insert(self.app.next_question, (node, customer));
                }
            }
        }
        for (question, (node, customer)) in self.app.questions.clone() {
            self.send(node, self.shard_of(customer), Msg::Ask { customer, question });
        }
        if !self.app.questions.is_empty() {
            self.later(4000 * MS, Timer::Ask);
        }
    }
}
