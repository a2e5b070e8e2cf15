//! Chooses the node's store of leases among the stores that the node knows.
//!
//! Source: cluster S10, S16, P5.

use crate::settings::{MakeLeases, NodeSettings, POSTGRES, STORE_KEY};

/// Puts the named store, or the only one of the program, into the settings. A store that the settings have already
/// stays. Returns the problems, as [`LeaseStoreSettings::problems`] does.
pub(crate) fn choose_store(settings: &mut NodeSettings, own: Vec<(String, MakeLeases)>) -> Vec<(String, String)> {
    if settings.cluster.leases.is_some() {
        return Vec::new();
    }
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).chain([POSTGRES.to_owned()]).collect();
    let refused = |why: String| vec![(STORE_KEY.to_owned(), why)];
    let make = match &settings.lease_store.name {
        Some(name) => match own.into_iter().find(|(own, _)| own == name) {
            Some((_, make)) => make,
            None if name == POSTGRES => match settings.lease_store.postgres.leases() {
                Ok(make) => make,
                // Reported by `LeaseStoreSettings::problems`.
                Err(_) => return Vec::new(),
            },
            None => return refused(format!("there is no store of leases {name:?}; valid are {}", names.join(", "))),
        },
        None if own.len() > 1 => {
            return refused(format!("the program has several stores of leases; name one of {}", names.join(", ")));
        }
        None => match own.into_iter().next() {
            Some((_, make)) => make,
            None => return Vec::new(),
        },
    };
    settings.cluster.leases = Some(make(&settings.transport.cluster_name));
    Vec::new()
}
