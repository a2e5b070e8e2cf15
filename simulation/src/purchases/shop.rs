//! The shop: the real sharding producer, on some node. After each of its ends it runs over the same purchases again,
//! under the next epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_producer::{Effect, Input, ShardingProducer};
use greylag_delivery::{Epoch, ProducerId, ProducerIdentity, SequencedBatch, StreamId};
use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::region::{RegionEvent, RegionState, Route};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::customer::Msg;
use super::{DirectMessage, Market, Timer};
use crate::sharding::world::{MS, News, Wire};

pub(super) const STREAM: StreamId = StreamId(77);

pub(crate) struct Shop {
    pub(super) node: usize,
    pub(super) machine: ShardingProducer<u64>,
    /// Purchases handed in so far.
    pub(super) submitted: usize,
    tick_at: Option<Instant>,
}

impl Market {
    /// Opens the shop on some node that is to stay, or tries again later.
    pub(super) fn open_shop(&mut self) {
        let fit: Vec<usize> = self.living().into_iter().filter(|node| self.is_fit(*node)).collect();
        if fit.is_empty() {
            return self.later(200 * MS, Timer::Open);
        }
        let node = fit[self.net.rng().random_range(0..fit.len())];
        self.app.epoch += 1;
        let epoch = self.app.epoch;
        self.note(|| format!("n{node}: shop {epoch} opens"));
        let identity = ProducerIdentity::stable(ProducerId::new("shop").expect("a name"), STREAM, Epoch(epoch));
        let address = self.nodes[node].address.clone();
        let machine = ShardingProducer::new(self.app.producer.clone(), identity, address, path(epoch));
        self.app.shop = Some(Shop { node, machine, submitted: 0, tick_at: None });
        self.later(MS, Timer::Submit { node, epoch });
    }

    fn is_fit(&self, node: usize) -> bool {
        let state = &self.nodes[node];
        !state.leaving && state.resumes.is_none() && state.region.state() != RegionState::Stopped
    }

    pub(super) fn submit(&mut self, epoch: u64) {
        let index = match &mut self.app.shop {
            Some(shop) if self.app.epoch == epoch && shop.submitted < self.app.input.len() => {
                shop.submitted += 1;
                shop.submitted - 1
            }
            _ => return,
        };
        let customer = self.app.input[index];
        let ack = self.chance(0.3);
        self.tell_shop(Input::Admit {
            ticket: index as u64 + 1,
            entity: customer.to_string().into(),
            shard: self.shard_of(customer).shared().clone(),
            frames: Frames::Whole(index as u64),
            bytes: 100,
            ack,
        });
        let Some(node) = self.app.shop.as_ref().map(|shop| shop.node) else { return };
        let longest = if self.app.is_slow { 600 } else { 60 };
        let pause = self.random(0, longest);
        self.later(pause, Timer::Submit { node, epoch });
    }

    pub(super) fn shard_of(&self, customer: u32) -> ShardId {
        ShardId::from_index(customer % self.shards)
    }

    pub(super) fn tell_shop(&mut self, input: Input<u64>) {
        let now = self.now();
        let epoch = self.app.epoch;
        let Some(shop) = &mut self.app.shop else { return };
        let node = shop.node;
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        shop.machine.handle(now, input, &mut effects);
        if ticks {
            assert_moved("producer", now, shop.machine.next_deadline());
        }
        let due = shop.machine.next_deadline().filter(|at| shop.tick_at.is_none_or(|armed| *at < armed));
        if let Some(at) = due {
            shop.tick_at = Some(at);
            self.later(at.saturating_duration_since(now), Timer::ShopTick { node, epoch });
        }
        self.carry_out(node, effects);
    }

    pub(super) fn on_shop_tick(&mut self, epoch: u64) {
        if self.app.epoch == epoch
            && let Some(shop) = &mut self.app.shop
        {
            shop.tick_at = None;
            self.tell_shop(Input::Tick);
        }
    }

    fn carry_out(&mut self, node: usize, effects: Vec<Effect<u64>>) {
        let mut batches: Vec<(Arc<str>, SequencedBatch<u64>)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Transmit { entity, header, message } => match batches.last_mut() {
                    Some((_, open)) if open.header == header => open.frames.push(message),
                    _ => batches.push((entity, SequencedBatch { header, frames: vec![message] })),
                },
                Effect::Stop { to, message } => {
                    let node_of = to.node.clone();
                    self.transmit(node, &node_of, Wire::Beside(DirectMessage::Stopped { to, message }));
                }
                Effect::Confirmed { ticket, .. } => self.check_confirmed(ticket - 1),
                Effect::Fenced { newer } => self.fail(format!("the newest shop is fenced by {newer}")),
                Effect::Unsendable { total, .. } => {
                    self.fail(format!("a number has its bytes, and {total} is given up"));
                }
                Effect::Admitted { .. }
                | Effect::Undelivered { .. }
                | Effect::Refused { .. }
                | Effect::Permit { .. }
                | Effect::Queue { .. }
                | Effect::StoreUnknown { .. }
                | Effect::Unavailable { .. }
                | Effect::QueueEnded(_)
                | Effect::Closed => {}
            }
        }
        for (customer, batch) in batches {
            let customer = customer.parse().expect("customers are numbered");
            self.tally.sent += 1;
            self.send(node, self.shard_of(customer), Msg::Purchases { customer, batch });
        }
    }

    /// Handles news, as the producer's task does.
    pub(super) fn on_shop_news(&mut self, node: usize, news: News) {
        if self.app.shop.as_ref().is_none_or(|shop| shop.node != node) {
            return;
        }
        match news {
            News::Routed(shard, routed) => {
                self.tell_shop(Input::RouteChanged { shard: shard.shared().clone(), routed });
            }
            News::Event(RegionEvent::ShardMoved { shard, .. }) => {
                self.tell_shop(Input::ShardMoved(shard.shared().clone()));
            }
            News::Event(RegionEvent::ShardRegionDown { .. }) => {
                for index in 0..self.shards {
                    let shard = ShardId::from_index(index);
                    let route = self.nodes[node].routes.get(&shard);
                    if matches!(route, None | Some(Route::Closed)) {
                        self.tell_shop(Input::RouteChanged { shard: shard.shared().clone(), routed: false });
                        self.tell_shop(Input::ShardMoved(shard.shared().clone()));
                    }
                }
            }
            News::Event(_) => {}
        }
    }

    /// Drops the shop: its process is gone, or it crashed alone.
    pub(super) fn lose_shop(&mut self) {
        self.note(|| "the shop is gone".into());
        self.app.shop = None;
        let delay = self.random(50, 800);
        self.later(delay + Duration::from_millis(1), Timer::Open);
    }

    /// Whether everything is handed in and confirmed.
    pub(super) fn is_sold(&self) -> bool {
        self.app.shop.as_ref().is_some_and(|shop| {
            let stats = shop.machine.stats(self.now());
            shop.submitted == self.app.input.len() && stats.unconfirmed == 0 && stats.waiting == 0
        })
    }
}

pub(super) fn path(epoch: u64) -> Arc<str> {
    format!("delivery/{epoch}").into()
}
