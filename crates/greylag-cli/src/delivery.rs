//! `greylag delivery`: the producers and consumers of reliable delivery on one node.

use std::time::Duration;

use greylag_management::v1;
use serde::Serialize;

use crate::call::Call;
use crate::failure::Failure;
use crate::table::{or_dash, table};

/// Runs the command.
pub(crate) async fn run(call: &mut Call) -> Result<(), Failure> {
    let reply = call.client.delivery(v1::DeliveryRequest {}).await;
    let view = View::from(call.answer(reply)?);
    call.print(&view, || view.show())
}

#[derive(Debug, Serialize)]
struct View {
    producers: Vec<ProducerView>,
    consumers: Vec<ConsumersView>,
}

#[derive(Debug, Serialize)]
struct ProducerView {
    producer_id: String,
    kind: String,
    to: String,
    durable: bool,
    trouble: Option<String>,
    links: u64,
    links_with_demand: u64,
    waiting: u64,
    buffered: u64,
    unconfirmed: u64,
    oldest_unconfirmed_ms: Option<u64>,
    sent: u64,
    resent: u64,
    confirmed: u64,
}

#[derive(Debug, Serialize)]
struct ConsumersView {
    name: String,
    delivered: u64,
    confirmed: u64,
    suppressed: u64,
    abandoned: u64,
    poisoned: u64,
    undecodable: u64,
}

impl From<v1::DeliveryProducer> for ProducerView {
    fn from(producer: v1::DeliveryProducer) -> Self {
        let v1::DeliveryProducer { producer_id, kind, to, durable, trouble, .. } = producer;
        let v1::DeliveryProducer { links, links_with_demand, waiting, buffered, unconfirmed, .. } = producer;
        let v1::DeliveryProducer { oldest_unconfirmed_ms, sent, resent, confirmed, .. } = producer;
        let trouble = Some(trouble).filter(|trouble| !trouble.is_empty());
        Self {
            producer_id,
            kind,
            to,
            durable,
            trouble,
            links,
            links_with_demand,
            waiting,
            buffered,
            unconfirmed,
            oldest_unconfirmed_ms,
            sent,
            resent,
            confirmed,
        }
    }
}

impl From<v1::DeliveryConsumers> for ConsumersView {
    fn from(consumers: v1::DeliveryConsumers) -> Self {
        let v1::DeliveryConsumers { name, delivered, confirmed, suppressed, abandoned, poisoned, undecodable } =
            consumers;
        Self { name, delivered, confirmed, suppressed, abandoned, poisoned, undecodable }
    }
}

impl From<v1::DeliveryReply> for View {
    fn from(reply: v1::DeliveryReply) -> Self {
        let producers = reply.producers.into_iter().map(ProducerView::from).collect();
        Self { producers, consumers: reply.consumers.into_iter().map(ConsumersView::from).collect() }
    }
}

impl View {
    fn show(&self) -> String {
        if self.producers.is_empty() && self.consumers.is_empty() {
            return "no producer and no consumer of reliable delivery was started here".to_owned();
        }
        let mut text = String::new();
        if !self.producers.is_empty() {
            let rows: Vec<Vec<String>> = self.producers.iter().map(ProducerView::row).collect();
            text.push_str(&table(&PRODUCER, &rows));
        }
        if !self.consumers.is_empty() {
            if !text.is_empty() {
                text.push('\n');
            }
            let rows: Vec<Vec<String>> = self.consumers.iter().map(ConsumersView::row).collect();
            text.push_str(&table(&CONSUMERS, &rows));
        }
        text
    }
}

const PRODUCER: [&str; 13] = [
    "PRODUCER",
    "KIND",
    "TO",
    "DURABLE",
    "LINKS",
    "DEMAND",
    "WAITING",
    "BUFFERED",
    "UNCONFIRMED",
    "OLDEST",
    "SENT",
    "RESENT",
    "TROUBLE",
];

impl ProducerView {
    fn row(&self) -> Vec<String> {
        let oldest = self.oldest_unconfirmed_ms.map(|ms| format!("{:.1?}", Duration::from_millis(ms)));
        vec![
            self.producer_id.clone(),
            self.kind.clone(),
            or_dash(self.to.clone()),
            if self.durable { "yes" } else { "no" }.to_owned(),
            self.links.to_string(),
            self.links_with_demand.to_string(),
            self.waiting.to_string(),
            self.buffered.to_string(),
            self.unconfirmed.to_string(),
            or_dash(oldest.unwrap_or_default()),
            self.sent.to_string(),
            self.resent.to_string(),
            or_dash(self.trouble.clone().unwrap_or_default()),
        ]
    }
}

const CONSUMERS: [&str; 7] =
    ["CONSUMERS", "DELIVERED", "CONFIRMED", "SUPPRESSED", "ABANDONED", "POISONED", "UNDECODABLE"];

impl ConsumersView {
    fn row(&self) -> Vec<String> {
        let counts = [self.delivered, self.confirmed, self.suppressed, self.abandoned, self.poisoned, self.undecodable];
        std::iter::once(self.name.clone()).chain(counts.iter().map(ToString::to_string)).collect()
    }
}
