//! Encodes and decodes the messages of watchers.

use std::sync::Arc;

use greylag_transport::watch::WatchMessage;
use pb::watch_message::Content;
use prost::Message as _;

use crate::generated_watch as pb;

pub(crate) fn encode(message: &WatchMessage) -> Vec<u8> {
    let named = |path: &Arc<str>, instance: u64| pb::Named { path: path.to_string(), instance };
    let content = match message {
        WatchMessage::Watch { path, instance } => Content::Watch(named(path, *instance)),
        WatchMessage::Unwatch { path, instance } => Content::Unwatch(named(path, *instance)),
        WatchMessage::Terminated { path, instance } => Content::Terminated(named(path, *instance)),
        WatchMessage::Rewatch => Content::Rewatch(pb::Rewatch {}),
    };
    pb::WatchMessage { content: Some(content) }.encode_to_vec()
}

/// `None` for messages that this version does not know, and for malformed ones.
pub(crate) fn decode(payload: &[u8]) -> Option<WatchMessage> {
    Some(match pb::WatchMessage::decode(payload).ok()?.content? {
        Content::Watch(pb::Named { path, instance }) => WatchMessage::Watch { path: path.into(), instance },
        Content::Unwatch(pb::Named { path, instance }) => WatchMessage::Unwatch { path: path.into(), instance },
        Content::Terminated(pb::Named { path, instance }) => WatchMessage::Terminated { path: path.into(), instance },
        Content::Rewatch(_) => WatchMessage::Rewatch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> [WatchMessage; 4] {
        [
            WatchMessage::Watch { path: "orders/a".into(), instance: 0 },
            WatchMessage::Unwatch { path: "orders/a".into(), instance: u64::MAX },
            WatchMessage::Terminated { path: "".into(), instance: 7 },
            WatchMessage::Rewatch,
        ]
    }

    #[test]
    fn watch_messages_read_back_and_nonsense_is_ignored() {
        for message in messages() {
            assert_eq!(decode(&encode(&message)), Some(message));
        }
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(b"\xff\xff\xff"), None);
        let watch = WatchMessage::Watch { path: "a".into(), instance: 1 };
        assert_eq!(encode(&watch), [0x0a, 5, 0x0a, 1, b'a', 0x10, 1], "as it crosses the wire");
    }

    /// Cluster §7: bad input ends nothing.
    #[test]
    fn damaged_messages_are_read_or_refused() {
        let examples = messages().map(|message| encode(&message));
        greylag_testkit::mutations::damaged(&examples, 20_000, 3, crate::testing::fuzzing::watch);
    }
}
