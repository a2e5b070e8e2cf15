//! Detects a server that vanished silently: its machine lost power, or a firewall dropped an idle connection.
//!
//! A client that waits for a long statement hears nothing either, so no timeout in the program can tell the two apart.
//! The kernel can, since the server's kernel answers keepalive probes while a statement runs.

use std::time::Duration;

use tokio_postgres::Config;

/// Silence before the first probe (`keepalives_idle`). The client library's default is two hours.
const IDLE: Duration = Duration::from_secs(30);
/// Time between probes (`keepalives_interval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes that end the connection (`keepalives_retries`).
const RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged (`tcp_user_timeout`).
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// Sets each value that the connection string does not name.
pub(crate) fn fill_in(config: &mut Config, named: &str) {
    if !named.contains("keepalives_idle") {
        config.keepalives_idle(IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(RETRIES);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED);
    }
}

#[cfg(test)]
mod tests {
    use crate::Database;

    fn limits(config: &str) -> [Option<u64>; 4] {
        let config = Database::parse(config).unwrap().config;
        [
            Some(config.get_keepalives_idle().as_secs()),
            config.get_keepalives_interval().map(|interval| interval.as_secs()),
            config.get_keepalives_retries().map(u64::from),
            config.get_tcp_user_timeout().map(std::time::Duration::as_secs),
        ]
    }

    #[test]
    fn a_server_that_went_without_a_word_is_missed_within_a_minute_unless_said_otherwise() {
        assert_eq!(limits("host=db.example"), [Some(30), Some(10), Some(3), Some(60)]);
        assert_eq!(limits("postgres://app@db.example/shop"), [Some(30), Some(10), Some(3), Some(60)]);
        let named =
            "host=db.example keepalives_idle=7200 keepalives_interval=75 keepalives_retries=9 tcp_user_timeout=900";
        assert_eq!(limits(named), [Some(7200), Some(75), Some(9), Some(900)]);
        assert_eq!(limits("postgres://db.example?keepalives_idle=7200"), [Some(7200), Some(10), Some(3), Some(60)]);
    }
}
