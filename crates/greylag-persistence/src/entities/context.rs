//! The context of a handler, and what an entity begins through it: timers, work, messages to itself.

pub(crate) mod background_work;
pub(crate) mod ctx;
pub(crate) mod idle_timer;
pub(crate) mod timer_name;
