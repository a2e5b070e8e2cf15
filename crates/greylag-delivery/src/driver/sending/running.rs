//! The task of a producer, and the engine in it that differs between the kinds of producer.

mod base;
mod engine;
mod replies;
mod task;

pub(crate) use base::{Base, MessageStorage};
pub(crate) use engine::{Engine, Input, Outcome};
pub(crate) use task::spawn;
