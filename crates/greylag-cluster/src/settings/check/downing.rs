//! Checks whether the settings of downing can work.
//!
//! Source: cluster §6, "Validation at start".

use crate::error::ConfigError;
use crate::settings::ClusterSettings;
use crate::settings::downing::{DownAllWhenUnstable, Downing, RemovalMargin, Strategy};

/// Adds the problems of the settings of downing.
pub(in crate::settings) fn validate(settings: &ClusterSettings, problems: &mut Vec<ConfigError>) {
    let mut check = |ok: bool, setting: &'static str, value: String, why: &'static str| {
        if !ok {
            problems.push(ConfigError { setting: setting.into(), value, why });
        }
    };
    if let RemovalMargin::Fixed(margin) = settings.down_removal_margin {
        check(!margin.is_zero(), "down_removal_margin", format!("{margin:?}"), "must be longer than 0, or off");
    }
    let (unnoticed, takeover) = (settings.failure_detector.tick_counts_for(), settings.stable_after());
    check(
        unnoticed <= takeover,
        "failure_detector.local_pause_threshold",
        format!("{:?}", settings.failure_detector.local_pause_threshold),
        "with heartbeat_interval it must be at most sbr.stable_after (20s without a resolver), or others could start what \
         runs here during a pause that this node does not notice",
    );
    let detector = &settings.failure_detector;
    check(
        detector.local_pause_threshold > detector.heartbeat_interval,
        "failure_detector.local_pause_threshold",
        format!("{:?}", detector.local_pause_threshold),
        "must be longer than heartbeat_interval, or a lag of this process is never told from the silence of its peers",
    );
    let Downing::SplitBrainResolver(sbr) = &settings.downing else { return };
    let least = settings.failure_detector.detection();
    check(
        sbr.stable_after >= least,
        "sbr.stable_after",
        format!("{:?}", sbr.stable_after),
        "must be at least acceptable_heartbeat_pause + expected_response_after + 3 heartbeat_interval",
    );
    if let DownAllWhenUnstable::After(patience) = sbr.down_all_when_unstable {
        let why = "must be longer than 0, or off";
        check(!patience.is_zero(), "sbr.down_all_when_unstable", format!("{patience:?}"), why);
    }
    if let Some(fraction) = sbr.down_all_when_indirectly_connected {
        let ok = fraction > 0.0 && fraction <= 1.0;
        let why = "must be above 0 and at most 1, or off";
        check(ok, "sbr.down_all_when_indirectly_connected", fraction.to_string(), why);
    }
    if sbr.strategy.role() == Some("") {
        check(false, "sbr.role", String::new(), "must not be empty; leave it out to count all members");
    }
    match &sbr.strategy {
        Strategy::StaticQuorum { quorum_size, .. } => {
            check(*quorum_size >= 1, "sbr.static_quorum.quorum_size", quorum_size.to_string(), "must be at least 1");
        }
        Strategy::LeaseMajority { release_after, lease_name, acquire_lease_delay_for_minority, .. } => {
            let text = format!("{acquire_lease_delay_for_minority:?}");
            let setting = "sbr.lease_majority.acquire_lease_delay_for_minority";
            check(!acquire_lease_delay_for_minority.is_zero(), setting, text, "must be longer than 0");
            let text = format!("{release_after:?}");
            check(!release_after.is_zero(), "sbr.lease_majority.release_after", text, "must be longer than 0");
            let kept = settings.leases.is_some();
            let why = "lease_majority needs `leases`: a store that all nodes share";
            check(kept, "sbr.lease_majority.lease", "none".to_owned(), why);
            let named = lease_name.as_ref().is_none_or(|name| !name.is_empty());
            check(named, "sbr.lease_majority.lease_name", String::new(), "must not be empty");
        }
        Strategy::KeepMajority { .. } | Strategy::KeepOldest { .. } | Strategy::DownAll => {}
    }
}
