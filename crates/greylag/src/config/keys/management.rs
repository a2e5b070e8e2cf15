//! `management.*`.

use super::Key;

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
            "`on`: TLS with the files below. `none`: no encryption on any address; every process that reaches it may use it. `loopback_only`: nothing was chosen, so only loopback addresses may be bound.",
            |draft| &mut draft.management_tls,
        ),
        Key::new("management.tls_key", "cluster T40", "The private key, PEM.", |draft| {
            &mut draft.management_tls_files.key
        })
        .default_is("required by tls"),
        Key::new(
            "management.tls_cert",
            "cluster T40",
            "The certificate of that key first, then the intermediate ones, PEM. It names the host that callers dial.",
            |draft| &mut draft.management_tls_files.cert,
        )
        .default_is("required by tls"),
        Key::new(
            "management.tls_ca",
            "cluster T40",
            "The authorities whose signatures on callers' certificates are believed, PEM.",
            |draft| &mut draft.management_tls_files.ca,
        )
        .default_is("required by tls"),
        Key::new(
            "management.tls_mutual",
            "cluster T40",
            "Whether callers must present a certificate. Without it every process that reaches the address may use it.",
            |draft| &mut draft.management_tls_files.mutual,
        ),
        Key::new(
            "management.tls_peer_subject",
            "cluster T40",
            "What else the names of a caller's certificate must have in common with ours.",
            |draft| &mut draft.management_tls_files.peer_subject,
        ),
        Key::new("management.tls_reload_interval", "cluster T40", "From one look at the files to the next.", |draft| {
            &mut draft.management_tls_files.reload_interval
        }),
    ]
}
