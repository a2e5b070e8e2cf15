//! `management.*`.

use greylag_management::ManagementTls;

use super::Key;
use crate::config::given::words;

words!(ManagementTls { "loopback_only" => Self::LoopbackOnly, "none" => Self::None });

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::some(
            "management.address",
            "",
            "Where the admin service listens, `host:port`; port 0 picks a free one.",
            |draft| &mut draft.settings.management.address,
        )
        .default_is("off"),
        Key::new(
            "management.allow_writes",
            "",
            "Lets callers change the cluster: join, leave, down, prepare for shutdown. Without it they may only look.",
            |draft| &mut draft.settings.management.allow_writes,
        ),
        Key::new(
            "management.tls",
            "cluster T40",
            "`none`: no encryption on any address; whoever reaches it may use it. `loopback_only`: nothing was chosen, so only loopback addresses may be bound.",
            |draft| &mut draft.settings.management.tls,
        ),
    ]
}
