//! `cluster.downing` and `cluster.sbr.*`. Source: cluster §4, §6.

use greylag_cluster::DownAllWhenUnstable;

use super::Key;
use crate::config::given::{Given, Value};

impl Value for DownAllWhenUnstable {
    fn expected() -> String {
        "duration, \"on\" or \"off\"".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match String::read(given)?.as_str() {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Value::read(given).map(Self::After),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::On => "\"on\"".to_owned(),
            Self::Off => "\"off\"".to_owned(),
            Self::After(time_limit) => time_limit.show(),
        }
    }
}

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "cluster.downing",
            "cluster S1",
            "Who may declare unreachable members dead: only operators and proofs, or the split brain resolver, too.",
            |draft| &mut draft.downing,
        ),
        Key::new(
            "cluster.sbr.active_strategy",
            "cluster S15",
            "Who survives a partition. The same on all nodes.",
            |draft| &mut draft.strategy,
        ),
        Key::new(
            "cluster.sbr.stable_after",
            "cluster S4",
            "How long nothing must change before a decision. 7 s for 5 nodes, 10 s for 10, 13 s for 20, 17 s for 50, 20 s for 100, 30 s for 1000.",
            |draft| &mut draft.stable_after,
        ),
        Key::new(
            "cluster.sbr.down_all_when_unstable",
            "cluster S13",
            "When to give up on a reachability that goes on changing: after `stable_after` and this; `on` is three quarters of `stable_after`, at least 4 s.",
            |draft| &mut draft.unstable,
        ),
        Key::new(
            "cluster.sbr.down_all_when_indirectly_connected",
            "cluster S12",
            "If more than this fraction of the members would be downed as indirectly connected, all are.",
            |draft| &mut draft.indirectly,
        ),
        Key::new(
            "cluster.sbr.keep_majority.role",
            "cluster S6",
            "Only members with this role count; empty: all.",
            |draft| &mut draft.strategies.majority_role,
        ),
        Key::new(
            "cluster.sbr.static_quorum.quorum_size",
            "cluster S7",
            "The side with at least so many members survives.",
            |draft| &mut draft.strategies.quorum_size,
        )
        .default_is("required by static_quorum"),
        Key::new(
            "cluster.sbr.static_quorum.role",
            "cluster S7",
            "Only members with this role count; empty: all.",
            |draft| &mut draft.strategies.quorum_role,
        ),
        Key::new(
            "cluster.sbr.keep_oldest.down_if_alone",
            "cluster S8",
            "The oldest goes if it is all alone against two or more.",
            |draft| &mut draft.strategies.down_if_alone,
        ),
        Key::new(
            "cluster.sbr.keep_oldest.role",
            "cluster S8",
            "The oldest is sought among members with this role; empty: all.",
            |draft| &mut draft.strategies.oldest_role,
        ),
        Key::some(
            "cluster.sbr.lease_majority.lease",
            "cluster S10",
            "Where leases are kept, also those of singletons: `postgres`, or a name that the program gave to a store of its own. A store that only the program knows is used without being named.",
            |draft| &mut draft.settings.lease_store.name,
        )
        .default_is("required by lease_majority"),
        Key::new(
            "cluster.sbr.lease_majority.lease_name",
            "cluster S10",
            "Name of the lease; empty: `<cluster>-greylag-sbr`.",
            |draft| &mut draft.strategies.lease_name,
        ),
        Key::new(
            "cluster.sbr.lease_majority.acquire_lease_delay_for_minority",
            "cluster S10",
            "The smaller side asks so much later.",
            |draft| &mut draft.strategies.lease_delay,
        ),
        Key::new(
            "cluster.sbr.lease_majority.release_after",
            "cluster S10",
            "The winner gives the lease back so long after all whom it downed are removed.",
            |draft| &mut draft.strategies.lease_release_after,
        ),
        Key::new(
            "cluster.sbr.lease_majority.role",
            "cluster S10",
            "Which side is the bigger one is told by members with this role; empty: all.",
            |draft| &mut draft.strategies.lease_role,
        ),
    ]
}
