//! Encodes and decodes the machine's messages.

use bytes::Bytes;
use prost::Message as _;

use super::BootstrapMessage;

mod proto {
    #![allow(missing_docs, clippy::all, unreachable_pub)]
    include!("../generated/greylag.bootstrap.v1.rs");
}

use proto::bootstrap::Message;

/// The manifest of all messages.
pub(crate) const MANIFEST: &str = "bootstrap";

pub(crate) fn encode(message: BootstrapMessage) -> Bytes {
    let message = match message {
        BootstrapMessage::Ask => Message::Ask(proto::Ask {}),
        BootstrapMessage::Vote { ballot } => Message::Vote(proto::Vote { ballot }),
        BootstrapMessage::Withdraw { ballot } => Message::Withdraw(proto::Withdraw { ballot }),
        BootstrapMessage::Withdrawn { ballot } => Message::Withdrawn(proto::Withdrawn { ballot }),
    };
    proto::Bootstrap { message: Some(message) }.encode_to_vec().into()
}

/// `None` for messages that this version does not know, and for malformed ones.
pub(crate) fn decode(bytes: &Bytes) -> Option<BootstrapMessage> {
    Some(match proto::Bootstrap::decode(bytes.as_ref()).ok()?.message? {
        Message::Ask(proto::Ask {}) => BootstrapMessage::Ask,
        Message::Vote(proto::Vote { ballot }) => BootstrapMessage::Vote { ballot },
        Message::Withdraw(proto::Withdraw { ballot }) => BootstrapMessage::Withdraw { ballot },
        Message::Withdrawn(proto::Withdrawn { ballot }) => BootstrapMessage::Withdrawn { ballot },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_messages_read_back_and_nonsense_is_ignored() {
        for message in [
            BootstrapMessage::Ask,
            BootstrapMessage::Vote { ballot: 1 },
            BootstrapMessage::Withdraw { ballot: u64::MAX },
            BootstrapMessage::Withdrawn { ballot: 7 },
        ] {
            assert_eq!(decode(&encode(message)), Some(message));
        }
        assert_eq!(decode(&Bytes::new()), None);
        assert_eq!(decode(&Bytes::from_static(b"\xff\xff\xff")), None);
        assert_eq!(
            encode(BootstrapMessage::Vote { ballot: 300 }).as_ref(),
            [0x12, 3, 8, 0xac, 2],
            "as it crosses the wire"
        );
    }

    /// Cluster §7: bad input ends nothing.
    #[test]
    fn damaged_messages_are_read_or_refused() {
        let examples = [BootstrapMessage::Ask, BootstrapMessage::Vote { ballot: 300 }];
        let examples = examples.map(|message| encode(message).to_vec());
        greylag_testkit::mutations::damaged(&examples, 20_000, 4, crate::testing::fuzzing::bootstrap);
    }
}
