//! What a removed replica left: put under the name of a live one, and renamed in every copy.

pub(crate) mod prune;
pub(crate) mod rename;
