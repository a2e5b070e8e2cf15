//! The producers of the outboxes of this node's entities. The report has one row per sending and receiving type, since
//! there may be as many producers as entities.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::report::{ProducerCounts, ProducerKind, ProducerReport, Reporting};
use crate::ids::ProducerId;

/// Size of a group at which ended producers are first swept out.
const FIRST_SWEEP: usize = 64;

/// See the module's documentation.
#[derive(Default)]
pub(in crate::driver::node) struct Outboxes(Mutex<BTreeMap<TypePair, Group>>);

/// The sending type, and the receiving type.
type TypePair = (String, String);

struct Group {
    producers: Vec<Box<dyn Reporting>>,
    sweep_at: usize,
}

impl Default for Group {
    fn default() -> Self {
        Self { producers: Vec::new(), sweep_at: FIRST_SWEEP }
    }
}

impl Group {
    fn add(&mut self, producer: Box<dyn Reporting>) {
        if self.producers.len() >= self.sweep_at {
            self.producers.retain(|known| known.report().is_some());
            self.sweep_at = (self.producers.len() * 2).max(FIRST_SWEEP);
        }
        self.producers.push(producer);
    }

    /// The sum over the group's running producers; `None` if none runs.
    fn report(&self, (from, to): &TypePair) -> Option<ProducerReport> {
        let running = self.producers.iter().filter_map(|producer| producer.report());
        let all = running.reduce(|all, one| ProducerReport {
            trouble: all.trouble.or(one.trouble),
            counts: all.counts.plus(one.counts),
            ..all
        })?;
        let producer_id = ProducerId::new(format!("{from}/*")).ok()?;
        Some(ProducerReport { producer_id, kind: ProducerKind::Outboxes, to: to.clone(), ..all })
    }
}

impl Outboxes {
    /// Adds the producer of an entity of type `from` that sends to entities of type `to`.
    pub(in crate::driver::node) fn add(&self, from: &str, to: &str, producer: Box<dyn Reporting>) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.entry((from.to_owned(), to.to_owned())).or_default().add(producer);
    }

    /// One report per group with a running producer.
    pub(in crate::driver::node) fn report(&self) -> Vec<ProducerReport> {
        let groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().filter_map(|(types, group)| group.report(types)).collect()
    }
}

impl ProducerCounts {
    /// The counts of two producers together: sums, and the age of the older message.
    fn plus(self, other: Self) -> Self {
        Self {
            links: self.links + other.links,
            links_with_demand: self.links_with_demand + other.links_with_demand,
            waiting: self.waiting + other.waiting,
            buffered: self.buffered + other.buffered,
            unconfirmed: self.unconfirmed + other.unconfirmed,
            oldest_unconfirmed: self.oldest_unconfirmed.max(other.oldest_unconfirmed),
            sent: self.sent + other.sent,
            resent: self.resent + other.resent,
            confirmed: self.confirmed + other.confirmed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use futures::future::BoxFuture;

    use super::*;

    struct Producer {
        runs: Arc<AtomicBool>,
        report: ProducerReport,
    }

    impl Reporting for Producer {
        fn report(&self) -> Option<ProducerReport> {
            self.runs.load(Ordering::Relaxed).then(|| self.report.clone())
        }

        fn end(&self) -> BoxFuture<'static, ()> {
            unreachable!("entities end their outboxes")
        }
    }

    fn report(number: u64, age: Option<u64>, trouble: Option<&str>) -> ProducerReport {
        ProducerReport {
            producer_id: ProducerId::new(format!("Order/{number}")).unwrap(),
            kind: ProducerKind::Sharding,
            to: "Card".to_owned(),
            is_durable: true,
            trouble: trouble.map(ToOwned::to_owned),
            counts: ProducerCounts {
                links: 1,
                links_with_demand: number,
                waiting: 10 * number,
                buffered: 100 * number,
                unconfirmed: 1_000 * number,
                oldest_unconfirmed: age.map(Duration::from_secs),
                sent: 10_000 * number,
                resent: 100_000 * number,
                confirmed: 1_000_000 * number,
            },
        }
    }

    #[test]
    fn producers_of_one_type_to_another_are_shown_as_one() {
        let outboxes = Outboxes::default();
        let runs = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
        let [first, second] = [report(1, Some(3), None), report(2, Some(7), Some("it is stuck"))];
        for (runs, report) in runs.iter().zip([first, second]) {
            outboxes.add("Order", "Card", Box::new(Producer { runs: runs.clone(), report }));
        }
        let other = report(5, None, None);
        outboxes.add("Cart", "Card", Box::new(Producer { runs: runs[0].clone(), report: other }));
        let shown = |from: &str, one: ProducerReport| ProducerReport {
            producer_id: ProducerId::new(format!("{from}/*")).unwrap(),
            kind: ProducerKind::Outboxes,
            ..one
        };
        let mut both = shown("Order", report(3, Some(7), Some("it is stuck")));
        both.counts.links = 2;
        assert_eq!(outboxes.report(), [shown("Cart", report(5, None, None)), both]);
        runs[0].store(false, Ordering::Relaxed);
        assert_eq!(outboxes.report(), [shown("Order", report(2, Some(7), Some("it is stuck")))]);
        runs[1].store(false, Ordering::Relaxed);
        assert_eq!(outboxes.report(), []);
    }

    #[test]
    fn ended_producers_are_removed_from_the_report() {
        let (outboxes, kept) = (Outboxes::default(), || {
            let (runs, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
            [runs, ended].map(|runs| Producer { runs, report: report(1, None, None) })
        });
        for _ in 0..500 {
            kept().into_iter().for_each(|producer| outboxes.add("Order", "Card", Box::new(producer)));
        }
        let groups = outboxes.0.lock().unwrap();
        let known = groups.values().map(|group| group.producers.len()).sum::<usize>();
        assert!((500..=2 * 500).contains(&known), "{known} for 500 that run");
        drop(groups);
        assert_eq!(outboxes.report()[0].counts.links, 500);
    }
}
