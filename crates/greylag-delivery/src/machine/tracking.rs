//! Structures by which machines keep track of many messages or links: of ages, of settled numbers, and of deadlines.

pub(crate) mod ages;
pub(crate) mod contiguous;
pub(crate) mod deadlines;
