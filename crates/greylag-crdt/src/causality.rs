//! Who wrote what, and what was seen: replicas and their dots, contexts, and the context of an update.

pub(crate) mod context;
pub(crate) mod cx;
pub(crate) mod omissions;
pub(crate) mod replica;
