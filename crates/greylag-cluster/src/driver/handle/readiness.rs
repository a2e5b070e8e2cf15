//! Decides whether this node should be given work: by its own status, and by checks of the layers above.
//!
//! Health is for operators, who repair a cluster; readiness is for the load balancer that routes requests to this node,
//! and that can only choose another node. So trouble of other nodes does not count here. A layer adds a check once,
//! which runs at every call. Source: persistence §4.1 (Health).

use std::sync::{Mutex, PoisonError};

use greylag_transport::DEGRADED_DAYS;

use crate::membership::member::MemberStatus;
use crate::membership::view::MembershipView;

/// Whether a node should be given work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "it only says something"]
pub struct Readiness {
    /// Reasons why the node should not be given work, in words. Empty: the node is ready.
    pub not_ready: Vec<String>,
    /// Conditions that do not prevent work, but need attention.
    pub degraded: Vec<String>,
}

impl Readiness {
    /// Whether the node should be given work.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_empty()
    }

    fn extend(&mut self, other: Self) {
        self.not_ready.extend(other.not_ready);
        self.degraded.extend(other.degraded);
    }
}

type Check = Box<dyn Fn() -> Readiness + Send + Sync>;

/// The checks that layers above added.
#[derive(Default)]
pub(crate) struct Checks(Mutex<Vec<Check>>);

impl Checks {
    /// Adds a layer's check.
    pub(crate) fn add(&self, check: impl Fn() -> Readiness + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(check));
    }

    /// Whether a node with this view should be given work; `ended`: its tasks have ended.
    pub(crate) fn judge(&self, view: &MembershipView, ended: bool, certificate_days_left: Option<i64>) -> Readiness {
        let mut readiness = Readiness::default();
        match view.self_status() {
            _ if ended => readiness.not_ready.push("this node has ended".to_owned()),
            None => readiness.not_ready.push("this node is no member of a cluster".to_owned()),
            Some(MemberStatus::Up) => {}
            Some(status) => readiness.not_ready.push(format!("this node is {status}")),
        }
        if view.self_suspect {
            readiness
                .not_ready
                .push("this node may have been removed without knowing it; its single writers wait".to_owned());
        }
        readiness.degraded.extend(certificate_that_ends(certificate_days_left));
        for check in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            readiness.extend(check());
        }
        readiness
    }
}

/// The text about a certificate that ends within a week, or has ended (cluster 83).
fn certificate_that_ends(days_left: Option<i64>) -> Option<String> {
    match days_left.filter(|days| *days < DEGRADED_DAYS)? {
        ..0 => Some("this node's certificate has expired; no peer accepts a new connection by it".to_owned()),
        days => Some(format!("this node's certificate ends in {days} days; replace its file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario 83: a certificate with less than seven days left degrades readiness.
    #[test]
    fn scenario_83_a_certificate_that_ends_within_a_week_degrades_readiness() {
        let said = [None, Some(30), Some(7), Some(6), Some(0), Some(-1)].map(certificate_that_ends);
        let holds = |index: usize, text: &str| said[index].as_ref().is_some_and(|said| said.contains(text));
        assert_eq!(said.each_ref().map(Option::is_some), [false, false, false, true, true, true]);
        assert!(holds(3, "ends in 6 days") && holds(4, "ends in 0 days") && holds(5, "has expired"), "{said:?}");
    }
}
