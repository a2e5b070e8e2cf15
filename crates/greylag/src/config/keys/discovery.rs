//! `cluster.discovery.*` and `cluster.bootstrap.*`. Source: cluster M24, `docs/design/bootstrap.md`.

use super::Key;
use crate::config::given::words;
use crate::settings::DiscoveryMethod;

words!(DiscoveryMethod {
    "seed_nodes" => Self::SeedNodes,
    "dns_addresses" => Self::DnsAddresses,
    "dns_service" => Self::DnsService,
});

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new("cluster.discovery.method", "", "How nodes find each other: by the list `cluster.seed_nodes`, by the addresses of a name, or by the targets of a service (SRV). DNS needs the feature `discovery-dns`.", |draft| &mut draft.settings.discovery.method),
        Key::new("cluster.discovery.name", "", "The name to look up.", |draft| &mut draft.settings.discovery.name).default_is("required by DNS"),
        Key::new("cluster.discovery.port", "", "The port of every address found.", |draft| &mut draft.settings.discovery.port).default_is("required by dns_addresses"),
        Key::new("cluster.bootstrap.required_contacts", "", "So many nodes must be found, and choose the same one of them, before a cluster is founded: more than half of the processes that start together.", |draft| &mut draft.settings.bootstrap.required_contacts).default_is("required by discovery"),
        Key::new("cluster.bootstrap.stable_margin", "", "An answer of discovery counts once it was the same for so long.", |draft| &mut draft.settings.bootstrap.stable_margin),
        Key::new("cluster.bootstrap.lookup_interval", "", "Between look-ups.", |draft| &mut draft.settings.bootstrap.lookup_interval),
        Key::new("cluster.bootstrap.ask_interval", "", "Between requests for votes.", |draft| &mut draft.settings.bootstrap.ask_interval),
    ]
}
