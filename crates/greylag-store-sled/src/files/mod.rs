//! The files in a store's directory that this crate reads or writes without sled: sled's log, index and settings, the
//! tail guard and the ballast; and how much room the disk has.

pub(crate) mod ballast;
pub(crate) mod conf;
pub(crate) mod directory;
pub(crate) mod guard;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod private;
pub(crate) mod watermark;
