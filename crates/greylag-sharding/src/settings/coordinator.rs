//! Settings of the coordinator's singleton. Source: sharding §1.6, §7.

use std::time::Duration;

use greylag_cluster::SingletonSettings;

/// Where the coordinators of entity types run, and how they are handed over. The same on all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorSingletonSettings {
    /// Whether a type's coordinator runs where the type is hosted, whatever `role` is; key
    /// `coordinator_singleton_role_override`. Default true.
    pub role_override: bool,
    /// The role of the nodes that run coordinators, if `role_override` is off; empty: all nodes. Every such node must
    /// set the types up, with a codec: without their role, it hosts none of their entities. Default empty.
    pub role: String,
    /// The time between requests to hand over. Default 1 s.
    pub hand_over_retry_interval: Duration,
    /// Least number of requests before trouble is reported. Default 15.
    pub min_number_of_hand_over_retries: u32,
}

impl Default for CoordinatorSingletonSettings {
    fn default() -> Self {
        let SingletonSettings { hand_over_retry_interval, min_number_of_hand_over_retries, .. } =
            SingletonSettings::default();
        Self { role_override: true, role: String::new(), hand_over_retry_interval, min_number_of_hand_over_retries }
    }
}

impl CoordinatorSingletonSettings {
    /// The role of the nodes that may run the coordinator of a type that nodes with the role `hosting` host.
    pub fn role_for<'a>(&'a self, hosting: &'a str) -> &'a str {
        if self.role_override { hosting } else { &self.role }
    }

    /// The singleton of a type that nodes with the role `hosting` host.
    pub(crate) fn singleton(&self, hosting: &str) -> SingletonSettings {
        let role = Some(self.role_for(hosting).to_owned()).filter(|role| !role.is_empty());
        let (hand_over_retry_interval, min_number_of_hand_over_retries) =
            (self.hand_over_retry_interval, self.min_number_of_hand_over_retries);
        SingletonSettings {
            role,
            hand_over_retry_interval,
            min_number_of_hand_over_retries,
            ..SingletonSettings::default()
        }
    }
}
