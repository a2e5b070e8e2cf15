//! Codecs for prost and serde messages, by the fixed ids that wire and disk share.
