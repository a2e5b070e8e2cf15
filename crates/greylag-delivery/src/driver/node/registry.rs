//! The producers and consumers of a node, for the report to operators and for the end of the node.

mod consumers;
#[cfg_attr(not(feature = "persistence"), allow(dead_code, reason = "only event-sourced entities have outboxes"))]
mod outboxes;
mod producer_reporter;
mod report;

pub(super) use consumers::ConsumerRegistry;
pub(super) use outboxes::Outboxes;
pub(super) use producer_reporter::ProducerReporter;
pub(super) use report::Reporting;
pub use report::{ConsumersReport, DeliveryReport, ProducerCounts, ProducerKind, ProducerReport};
