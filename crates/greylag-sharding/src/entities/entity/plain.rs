//! A plain entity as hosted by its shard.

use super::behavior::Entity;
use super::failure::Failure;
use crate::host::{HostedEntity, ShardCx, Signal};

/// Hosts one plain entity.
pub(crate) struct PlainEntity<E>(pub(crate) E);

impl<E: Entity> HostedEntity for PlainEntity<E> {
    type Message = E::Message;

    fn on_start(&mut self, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        cx.run(|cx| self.0.on_start(cx));
        Ok(())
    }

    fn receive(&mut self, message: E::Message, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        cx.run(|cx| self.0.receive(message, cx))
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut ShardCx<'_, E::Message>) -> Result<(), Failure> {
        cx.run(|cx| self.0.on_signal(signal, cx))
    }
}
