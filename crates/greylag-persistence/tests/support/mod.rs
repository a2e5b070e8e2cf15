//! What the tests of the entity machine share.

pub(crate) mod counter;
