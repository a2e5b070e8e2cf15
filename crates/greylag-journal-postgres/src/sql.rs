//! The SQL half: the statements, the parameters of an append, and the conversion of rows.

pub(crate) mod columns;
pub(crate) mod rows;
pub(crate) mod statements;
