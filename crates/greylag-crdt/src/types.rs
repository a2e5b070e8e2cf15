//! The replicated types.

pub(crate) mod counter;
pub(crate) mod flag;
pub(crate) mod gset;
pub(crate) mod lww_register;
pub(crate) mod maps;
pub(crate) mod mvregister;
pub(crate) mod orset;
pub(crate) mod plain;
pub(crate) mod state;
