//! The limits of frames.

/// The most envelopes in a frame of a control lane, since the control frames of all peers are handled in turn. Writers
/// keep to this limit, and larger frames are refused.
pub(crate) const MAX_CONTROL_BATCH: usize = 1024;
/// The longest frame of a Hello; before a Hello nothing longer is read.
pub(crate) const MAX_HELLO: usize = 16 * 1024;
/// The longest text in a Hello and in its answer; a host name has no more than 253 bytes.
pub(super) const MAX_TEXT: usize = 255;
/// The most features in a Hello.
pub(super) const MAX_FEATURES: usize = 32;
