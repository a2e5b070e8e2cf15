//! What types are made of: stores of leaves with their joins, and the structures that hold the leaves.

pub(crate) mod causal;
pub(crate) mod fragment;
pub(crate) mod lww;
pub(crate) mod map;
pub(crate) mod slot_counter;
pub(crate) mod slots;
pub(crate) mod small_list;
pub(crate) mod store;
