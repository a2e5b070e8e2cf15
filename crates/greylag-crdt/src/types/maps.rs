//! The maps: values by key, each key with a causal history of its own.

pub(crate) mod lww_map;
pub(crate) mod ormap;
pub(crate) mod ormultimap;
pub(crate) mod pncountermap;
