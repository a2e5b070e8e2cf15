//! The replicated types.

pub(crate) mod counter;
pub(crate) mod flag;
pub(crate) mod gset;
pub(crate) mod lww_map;
pub(crate) mod lww_register;
pub(crate) mod mvregister;
pub(crate) mod ormap;
pub(crate) mod ormultimap;
pub(crate) mod orset;
pub(crate) mod plain;
pub(crate) mod pncountermap;
pub(crate) mod state;
