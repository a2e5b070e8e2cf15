//! Checks that messages of the configured sizes fit the given transport. Source: ddata §8.

use greylag_transport::{LaneKind, Recipient, Remoting};

use crate::api::error::StartError;
use crate::api::settings::ReplicatorSettings;

/// The greatest size of what precedes the data of a fragment: number, size and digest of the transfer, index of the
/// fragment.
pub(super) const PIECE_HEADER: usize = 60;

/// Refuses sizes above what the lanes of the two mailboxes carry: such a message would be dropped whenever it is sent.
pub(in crate::driver) fn check(
    settings: &ReplicatorSettings,
    remoting: &dyn Remoting,
    ordinary: &Recipient,
    bulk: &Recipient,
) -> Result<(), StartError> {
    let sizes = [
        ("max_message_bytes", settings.max_message_bytes, 0, ordinary),
        ("bulk_fragment_bytes", settings.bulk_fragment_bytes, PIECE_HEADER, bulk),
    ];
    for (name, bytes, header, mailbox) in sizes {
        let lane = remoting.lane_of(mailbox).kind();
        let most = remoting.maximum_message_size(lane);
        if bytes.saturating_add(header) > most {
            let limit = setting_of(lane);
            let with_header = if header > 0 { format!(", with its header {}", bytes + header) } else { String::new() };
            return Err(StartError::Settings(format!(
                "{name} is {bytes}{with_header}; {limit} is {most}, and what is larger is never sent: lower {name} or raise {limit}"
            )));
        }
    }
    Ok(())
}

fn setting_of(lane: LaneKind) -> &'static str {
    match lane {
        LaneKind::Control => "transport.maximum_control_frame_size",
        LaneKind::Ordinary => "transport.maximum_frame_size",
        LaneKind::Large => "transport.maximum_large_frame_size",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use greylag_crdt::Digest;

    use super::*;
    use crate::messages::transfers::Fragment;
    use crate::messages::wire::encode_fragment;

    /// No fragment is larger than its data and the header that start-up assumes.
    #[test]
    fn the_header_of_a_piece_is_no_larger_than_reckoned() {
        let data = Bytes::from(vec![0; 4 << 20]);
        let (transfer, total_bytes, index, count) = (u64::MAX, u64::MAX, u32::MAX, u32::MAX);
        let piece = Fragment { transfer, index, count, total_bytes, digest: Digest(u128::MAX), data: data.clone() };
        let header = encode_fragment(&piece).len() - data.len();
        // The length of this data takes one byte less than that of fragments of 256 MiB.
        assert_eq!(header + 1, PIECE_HEADER);
    }
}
