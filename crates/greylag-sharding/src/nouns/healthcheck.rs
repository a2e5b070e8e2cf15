//! Whether the types in `healthcheck.names` have registered: a part of the node's readiness.
//!
//! ```text
//! waiting --all registered--> passed, for ever
//! waiting --disabled_after behind the first look at a member that is Up--> off, for ever
//! ```
//! The check is driven by its caller, at any pace: nothing here runs by itself. Source: sharding §6.4.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::settings::HealthCheckSettings;

/// The observed state of a type's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionStatus {
    /// Whether a coordinator has taken its registration.
    pub registered: bool,
    /// Whether the region has answered the last liveness question, or was asked none.
    pub answered: bool,
}

/// See the module's description.
#[derive(Debug)]
pub struct HealthCheck {
    settings: HealthCheckSettings,
    has_passed: bool,
    /// When the node was first observed as a member that is `Up`.
    up_since: Option<Instant>,
    /// The time of each type's last answer, or of its first unanswered question.
    asked_at: BTreeMap<String, Instant>,
}

impl HealthCheck {
    /// Waits for the types that the settings name.
    pub fn new(settings: HealthCheckSettings) -> Self {
        Self { settings, has_passed: false, up_since: None, asked_at: BTreeMap::new() }
    }

    /// The types that are awaited; none once the check is over.
    pub fn names(&self) -> &[String] {
        if self.has_passed { &[] } else { &self.settings.names }
    }

    /// Why the node is not ready, one sentence for each type; empty if it is. `status` observes a type's region, or
    /// returns `None` if the type is not set up. The caller asks each region of [`HealthCheck::names`] anew once it has
    /// answered.
    pub fn check(&mut self, now: Instant, is_up: bool, status: impl Fn(&str) -> Option<RegionStatus>) -> Vec<String> {
        if self.has_passed {
            return Vec::new();
        }
        if is_up {
            self.up_since.get_or_insert(now);
        }
        let names = std::mem::take(&mut self.settings.names);
        let missing: Vec<_> = names.iter().filter_map(|name| self.missing(now, name, status(name))).collect();
        self.settings.names = names;
        let over = |since: Instant| now.saturating_duration_since(since) > self.settings.disabled_after;
        self.has_passed = missing.is_empty() || self.up_since.is_some_and(over);
        if self.has_passed { Vec::new() } else { missing }
    }

    /// What a type lacks for readiness, if anything.
    fn missing(&mut self, now: Instant, name: &str, status: Option<RegionStatus>) -> Option<String> {
        let Some(status) = status else {
            self.asked_at.remove(name);
            return Some(format!("{name}: this entity type is not set up here"));
        };
        if status.answered {
            self.asked_at.insert(name.to_owned(), now);
        }
        let asked_at = *self.asked_at.entry(name.to_owned()).or_insert(now);
        if now.saturating_duration_since(asked_at) >= self.settings.timeout {
            return Some(format!("{name}: its region has not answered for {:?}", self.settings.timeout));
        }
        (!status.registered).then(|| format!("{name}: no coordinator has taken its region yet"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// States of a region: registered, answering but unregistered, not answering, absent.
    const TAKEN: Option<RegionStatus> = Some(RegionStatus { registered: true, answered: true });
    const WAITS: Option<RegionStatus> = Some(RegionStatus { registered: false, answered: true });
    const SILENT: Option<RegionStatus> = Some(RegionStatus { registered: true, answered: false });
    const ABSENT: Option<RegionStatus> = None;

    /// Observes the node after some time, with its regions in given states. Returns the types that are missing.
    struct Harness {
        check: HealthCheck,
        now: Instant,
    }

    impl Harness {
        fn new(names: &[&str]) -> Self {
            let names = names.iter().map(ToString::to_string).collect();
            let settings = HealthCheckSettings { names, timeout: 5 * SECOND, disabled_after: 10 * SECOND };
            Self { check: HealthCheck::new(settings), now: Instant::now() }
        }

        fn after(&mut self, seconds: u32, is_up: bool, regions: &[(&str, Option<RegionStatus>)]) -> Vec<String> {
            self.now += SECOND * seconds;
            let status = |name: &str| regions.iter().find(|(known, _)| *known == name).and_then(|(_, status)| *status);
            let missing = self.check.check(self.now, is_up, status);
            missing.iter().map(|text| text.split_once(": ").expect("a name first").0.to_owned()).collect()
        }
    }

    /// Sharding scenario 79: the seven cases of §6.4, each from the first look on.
    #[test]
    fn scenario_79_readiness_waits_for_the_named_types_and_not_for_ever() {
        type Step<'a> = (u32, bool, &'a [(&'a str, Option<RegionStatus>)], &'a [&'a str]);
        let cases: [(&str, &[&str], &[Step<'_>]); 7] = [
            ("no names: ready at once", &[], &[(0, false, &[], &[])]),
            ("all have registered", &["A", "B"], &[(0, true, &[("A", TAKEN), ("B", TAKEN)], &[])]),
            (
                "some have not, and are named",
                &["A", "B", "C"],
                &[(0, true, &[("A", WAITS), ("B", TAKEN), ("C", WAITS)], &["A", "C"])],
            ),
            (
                "a type that is not set up is named",
                &["A", "B"],
                &[(0, true, &[("A", TAKEN), ("B", ABSENT)], &["B"]), (1, true, &[("A", TAKEN), ("B", TAKEN)], &[])],
            ),
            (
                "a region that does not answer within the timeout is named, until it does",
                &["A", "B"],
                &[
                    (0, true, &[("A", SILENT), ("B", WAITS)], &["B"]),
                    (4, true, &[("A", SILENT), ("B", WAITS)], &["B"]),
                    (1, true, &[("A", SILENT), ("B", WAITS)], &["A", "B"]),
                    (1, true, &[("A", TAKEN), ("B", WAITS)], &["B"]),
                    (1, true, &[("A", SILENT), ("B", TAKEN)], &[]),
                ],
            ),
            (
                "once all have registered it is ready for ever",
                &["A"],
                &[
                    (0, true, &[("A", WAITS)], &["A"]),
                    (1, true, &[("A", TAKEN)], &[]),
                    (1, true, &[("A", WAITS)], &[]),
                    (99, true, &[("A", ABSENT)], &[]),
                ],
            ),
            (
                "more than disabled_after behind the first look at a member that is Up nothing is waited for",
                &["A"],
                &[
                    (0, false, &[("A", WAITS)], &["A"]),
                    (3600, false, &[("A", WAITS)], &["A"]),
                    (5, true, &[("A", WAITS)], &["A"]),
                    (10, true, &[("A", WAITS)], &["A"]),
                    (1, true, &[("A", ABSENT)], &[]),
                    (1, true, &[("A", WAITS)], &[]),
                ],
            ),
        ];
        for (case, names, steps) in cases {
            let mut harness = Harness::new(names);
            for (at, (seconds, is_up, regions, missing)) in steps.iter().enumerate() {
                assert_eq!(harness.after(*seconds, *is_up, regions), *missing, "{case}, step {at}");
            }
            let is_over = steps.last().is_some_and(|(.., missing)| missing.is_empty());
            assert_eq!(harness.check.names().is_empty(), is_over, "{case}: who is ready asks no region any more");
        }
    }
}
