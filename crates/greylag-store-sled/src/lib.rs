//! The sled engine: one committer thread per store, group commit that survives power loss.
