//! What this node says of itself when it joins, and the settings that must be equal on both sides of a join.
//!
//! Source: cluster M25a, M31, T12.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::membership::app_version::AppVersion;
use crate::membership::member::Member;
use crate::membership::message::{CheckedConfig, Message, PROTOCOL};
use crate::settings::{ClusterSettings, Downing};

/// The join key that names the downing rule: the mechanism that may declare members dead, and its strategy.
const DOWNING_KEY: &str = "cluster.downing";
/// The major version of the protocol.
const PROTOCOL_KEY: &str = "cluster.protocol";

/// The identity of this node towards those that it joins, or that join it.
#[derive(Debug)]
pub(in crate::core) struct Identity {
    /// The application's version, and whether joins wait until it is set (cluster M31).
    app_version: AppVersion,
    awaits_app_version: bool,
    /// Settings of other layers that must be equal on all nodes (cluster M25a).
    join_keys: BTreeMap<String, String>,
    /// The host of this process, where the system tells it.
    host_id: Option<Arc<str>>,
}

impl Identity {
    pub(in crate::core) fn new(settings: &ClusterSettings) -> Self {
        Self {
            app_version: settings.app_version.clone(),
            awaits_app_version: false,
            join_keys: settings.checked_config.clone(),
            host_id: None,
        }
    }

    /// Sets the host of this process.
    pub(in crate::core) fn set_host(&mut self, host_id: Option<&str>) {
        self.host_id = host_id.map(Into::into);
    }

    /// Lets joins wait until the application's version is set.
    pub(in crate::core) fn await_app_version(&mut self) {
        self.awaits_app_version = true;
    }

    /// Whether joins wait until the application's version is set.
    pub(in crate::core) fn awaits_app_version(&self) -> bool {
        self.awaits_app_version
    }

    /// Sets the application's version; joins wait no more.
    pub(in crate::core) fn set_app_version(&mut self, version: AppVersion) {
        self.app_version = version;
        self.awaits_app_version = false;
    }

    /// Adds a setting of another layer that must be equal on all nodes.
    pub(in crate::core) fn register_join_key(&mut self, key: String, value: String) {
        self.join_keys.insert(key, value);
    }

    /// The Join of this node.
    pub(in crate::core) fn join_message(&self, settings: &ClusterSettings, cluster_id: u128) -> Message {
        Message::Join {
            roles: settings.roles.iter().cloned().collect(),
            app_version: self.app_version.clone(),
            protocol: PROTOCOL,
            cluster_id,
            data_center: settings.data_center.as_str().into(),
            host_id: self.host_id.clone(),
        }
    }

    /// This node as the first member of a cluster.
    pub(in crate::core) fn founder(&self, node: UniqueAddress, settings: &ClusterSettings) -> Member {
        let roles = settings.roles.iter().cloned().collect();
        let own = joining(node, roles, &settings.data_center, self.app_version.clone());
        own.on_host(self.host_id.clone())
    }

    /// Source: cluster M25a.
    pub(in crate::core) fn checked_config(&self, settings: &ClusterSettings) -> CheckedConfig {
        let downing = match &settings.downing {
            Downing::None => "none".to_owned(),
            Downing::SplitBrainResolver(sbr) => sbr.strategy.to_string(),
            Downing::Custom(custom) => format!("custom({})", custom.name()),
        };
        let mut config = self.join_keys.clone();
        config.insert(DOWNING_KEY.to_owned(), downing);
        config.insert(PROTOCOL_KEY.to_owned(), PROTOCOL.to_string());
        // Remove key material, which never goes on the wire, whichever layer registered it.
        let sensitive = &settings.sensitive_config_prefixes;
        config.retain(|key, _| !sensitive.iter().any(|prefix| key.starts_with(prefix)));
        config
    }

    /// The settings to answer a joiner that sent `theirs`: the keys that it knows, and those that both sides must send.
    pub(in crate::core) fn config_for(&self, settings: &ClusterSettings, theirs: &CheckedConfig) -> CheckedConfig {
        let mut own = self.checked_config(settings);
        own.retain(|key, _| theirs.contains_key(key) || is_required(key));
        own
    }

    /// Every key with differing values, with both values.
    pub(in crate::core) fn differing_keys(&self, settings: &ClusterSettings, theirs: &CheckedConfig) -> Vec<String> {
        let ours = self.checked_config(settings);
        let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differs = |key: &&String| match (ours.get(*key), theirs.get(*key)) {
            (Some(ours), Some(theirs)) => ours != theirs,
            // Compare keys of other layers only if both sides know them, to permit rolling updates.
            _ => is_required(key),
        };
        let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "missing".to_owned());
        let named = |key: &String| format!("{key} (ours {}, theirs {})", shown(ours.get(key)), shown(theirs.get(key)));
        keys.into_iter().filter(differs).map(named).collect()
    }
}

/// Makes the member of a node that joins now.
pub(in crate::core) fn joining(
    address: UniqueAddress,
    roles: Vec<String>,
    data_center: &str,
    app_version: AppVersion,
) -> Member {
    // Derive the role of the data centre; ignore one that the joiner names.
    let mut roles: BTreeSet<String> = roles.into_iter().filter(|role| !role.starts_with("dc-")).collect();
    roles.insert(format!("dc-{data_center}"));
    Member::joining(address, Arc::new(roles), app_version)
}

/// Keys that both sides must send.
fn is_required(key: &str) -> bool {
    key == DOWNING_KEY || key == PROTOCOL_KEY
}
