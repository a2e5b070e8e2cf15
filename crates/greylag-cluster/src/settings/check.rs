//! Checks whether the settings of a node can work, and reports every problem together.
//!
//! Source: cluster §6, "Validation at start".

mod downing;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use super::ClusterSettings;
use crate::error::ConfigError;

/// Collects problems.
struct Check(Vec<ConfigError>);

impl Check {
    fn that(&mut self, ok: bool, setting: impl Into<Cow<'static, str>>, value: impl Display, why: &'static str) {
        if !ok {
            self.0.push(ConfigError { setting: setting.into(), value: value.to_string(), why });
        }
    }

    fn longer_than_nothing(&mut self, setting: impl Into<Cow<'static, str>>, duration: Duration) {
        self.that(!duration.is_zero(), setting, format!("{duration:?}"), "must be longer than 0");
    }

    fn at_least_one(&mut self, setting: impl Into<Cow<'static, str>>, size: usize) {
        self.that(size >= 1, setting, size, "must be at least 1");
    }
}

impl ClusterSettings {
    /// Checks every value.
    ///
    /// # Errors
    /// All problems together.
    pub fn validate(&self) -> Result<(), Vec<ConfigError>> {
        let mut check = Check(Vec::new());
        self.check_durations(&mut check);
        self.check_numbers(&mut check);
        self.check_names(&mut check);
        downing::validate(self, &mut check.0);
        check.0.extend(self.lease.validate().err().into_iter().flatten());
        if check.0.is_empty() { Ok(()) } else { Err(check.0) }
    }

    fn check_durations(&self, check: &mut Check) {
        let detector = &self.failure_detector;
        for (setting, duration) in [
            ("seed_node_timeout", self.seed_node_timeout),
            ("retry_unsuccessful_join_after", self.retry_unsuccessful_join_after),
            ("periodic_tasks_initial_delay", self.periodic_tasks_initial_delay),
            ("gossip_interval", self.gossip_interval),
            ("gossip_time_to_live", self.gossip_time_to_live),
            ("leader_actions_interval", self.leader_actions_interval),
            ("unreachable_nodes_reaper_interval", self.unreachable_nodes_reaper_interval),
            ("prune_gossip_tombstones_after", self.prune_gossip_tombstones_after),
            ("quarantine_removed_node_after", self.quarantine_removed_node_after),
            ("proof_interval", self.proof_interval),
            ("island_probe_duration", self.island_probe_duration),
            ("failure_detector.heartbeat_interval", detector.heartbeat_interval),
            ("failure_detector.min_std_deviation", detector.min_std_deviation),
            ("failure_detector.acceptable_heartbeat_pause", detector.acceptable_heartbeat_pause),
            ("failure_detector.expected_response_after", detector.expected_response_after),
            ("failure_detector.local_pause_threshold", detector.local_pause_threshold),
            ("coordinated_shutdown.default_phase_timeout", self.coordinated_shutdown.default_phase_timeout),
        ] {
            check.longer_than_nothing(setting, duration);
        }
        let off_or = [
            ("shutdown_after_unsuccessful_join_seed_nodes", self.shutdown_after_unsuccessful_join_seed_nodes),
            ("weakly_up_after", self.weakly_up_after),
            ("publish_stats_interval", self.publish_stats_interval),
        ];
        for (setting, duration) in off_or {
            duration.into_iter().for_each(|duration| check.longer_than_nothing(setting, duration));
        }
        for (phase, timeout) in &self.coordinated_shutdown.phase_timeouts {
            check.longer_than_nothing(format!("coordinated_shutdown.{phase}.timeout"), *timeout);
        }
    }

    fn check_numbers(&self, check: &mut Check) {
        let (p, threshold) = (self.gossip_different_view_probability, self.failure_detector.threshold);
        check.that((0.0..=1.0).contains(&p), "gossip_different_view_probability", p, "must be from 0 to 1");
        check.that(threshold > 0.0, "failure_detector.threshold", threshold, "must be above 0");
        for (setting, size) in [
            ("min_number_of_members", self.min_number_of_members),
            ("reduce_gossip_different_view_probability", self.reduce_gossip_different_view_probability),
            ("event_buffer", self.event_buffer),
            ("proof_dials", self.proof_dials as usize),
            ("cluster_threads", self.cluster_threads),
            ("failure_detector.max_sample_size", self.failure_detector.max_sample_size),
            ("failure_detector.monitored_by_nr_of_members", self.failure_detector.monitored_by_nr_of_members),
        ] {
            check.at_least_one(setting, size);
        }
        for (role, least) in &self.role_min_number_of_members {
            check.at_least_one(format!("role.{role}.min_number_of_members"), *least);
        }
    }

    fn check_names(&self, check: &mut Check) {
        for role in &self.roles {
            check.that(!role.starts_with("dc-"), "roles", role, "must not begin with dc-");
            check.that(!role.is_empty() && role.len() <= 255, "roles", role, "must have 1 to 255 bytes");
        }
        let several = "must be default: several data centres are reserved for later";
        check.that(self.data_center == "default", "data_center", &self.data_center, several);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FailureDetectorSettings, SbrSettings};
    use super::*;

    #[test]
    fn defaults_and_presets_are_valid_and_problems_come_together() {
        assert_eq!(ClusterSettings::default().validate(), Ok(()));
        assert_eq!(ClusterSettings::test().validate(), Ok(()));
        let quick = SbrSettings { stable_after: Duration::from_secs(2), ..SbrSettings::default() };
        let settings = ClusterSettings { gossip_interval: Duration::ZERO, ..ClusterSettings::default() };
        let problems = settings.with_roles(["dc-a"]).with_resolver(quick).validate().unwrap_err();
        let names: Vec<&str> = problems.iter().map(|problem| &*problem.setting).collect();
        assert_eq!(names, ["gossip_interval", "roles", "failure_detector.local_pause_threshold", "sbr.stable_after"]);
    }

    /// cluster M1, §6.
    #[test]
    fn invalid_settings_are_named() {
        type Change = fn(&mut ClusterSettings);
        let detector = |change: fn(&mut FailureDetectorSettings)| {
            let mut settings = ClusterSettings::default();
            change(&mut settings.failure_detector);
            settings
        };
        let wrong: [(Change, &str); 9] = [
            (|s| s.gossip_different_view_probability = 1.5, "gossip_different_view_probability"),
            (|s| s.gossip_different_view_probability = f64::NAN, "gossip_different_view_probability"),
            (|s| s.weakly_up_after = Some(Duration::ZERO), "weakly_up_after"),
            (|s| s.publish_stats_interval = Some(Duration::ZERO), "publish_stats_interval"),
            (|s| s.data_center = "east".into(), "data_center"),
            (|s| s.event_buffer = 0, "event_buffer"),
            (|s| s.min_number_of_members = 0, "min_number_of_members"),
            (|s| s.role_min_number_of_members = [("a".into(), 0)].into(), "role.a.min_number_of_members"),
            (|s| s.roles = [String::new()].into(), "roles"),
        ];
        for (change, name) in wrong {
            let mut settings = ClusterSettings::default();
            change(&mut settings);
            let problems = settings.validate().unwrap_err();
            assert_eq!(problems.iter().map(|problem| &*problem.setting).collect::<Vec<_>>(), [name]);
        }
        let problems = detector(|d| d.threshold = 0.0).validate().unwrap_err();
        assert_eq!(problems[0].to_string(), "cluster.failure_detector.threshold = 0: must be above 0");
        let off = ClusterSettings { weakly_up_after: None, ..ClusterSettings::default() };
        assert_eq!(off.validate(), Ok(()), "off is no duration");
    }
}
