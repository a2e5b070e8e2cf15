//! The files of a store beside what sled makes of them: sled's log, index and settings, the tail guard, the ballast, and
//! how much room the disk has.

pub(crate) mod ballast;
pub(crate) mod conf;
pub(crate) mod directory;
pub(crate) mod guard;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod private;
pub(crate) mod watermark;
