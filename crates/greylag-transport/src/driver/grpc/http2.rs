//! What both ends of a connection agree on: the method that is called, and how large frames and windows are.

/// The one method of the service.
pub(crate) const METHOD: &str = "/greylag.transport.v1.Transport/Open";

/// Bytes allowed beside the largest message for the rest of its frame.
pub(crate) const FRAME_OVERHEAD: usize = 64 * 1024;

/// The flow control window: twice the largest frame, so that one can be on its way while another is read.
pub(crate) fn window(largest: usize) -> u32 {
    let window = 2 * (largest + FRAME_OVERHEAD);
    u32::try_from(window).unwrap_or(u32::MAX).min(u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TransportSettings;

    /// Cluster T9: the window is twice the largest frame of a lane, for every lane.
    #[test]
    fn windows_hold_two_frames() {
        let settings = TransportSettings::test();
        for kind in [crate::LaneKind::Control, crate::LaneKind::Ordinary, crate::LaneKind::Large] {
            let largest = settings.maximum_message_size(kind);
            assert!(window(largest) as usize >= 2 * (largest + FRAME_OVERHEAD));
        }
        assert_eq!(window(usize::MAX / 4), u32::MAX >> 1);
    }
}
