//! The reply port of the node: answers leave by it, from any thread.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{AnswerReader, ReplyAddress, ReplyOutcome, ReplyPort};

use crate::driver::grpc::shared::TransportInner;

/// The reply port of the node.
pub(crate) struct SharedPort(pub(crate) Arc<TransportInner>);

impl ReplyPort for SharedPort {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        let Self(shared) = self;
        let endpoint = &shared.node.endpoint;
        if to.node == endpoint.self_address {
            endpoint.reply_locally(Instant::now(), to.ask_id, outcome);
        } else {
            shared.send_reply(&to.node, to.ask_id, endpoint.encode_reply(outcome));
        }
    }

    fn expect(&self, to: &ReplyAddress, reader: AnswerReader) {
        let Self(shared) = self;
        let endpoint = &shared.node.endpoint;
        if to.node == endpoint.self_address {
            endpoint.asks.expect(to.ask_id, reader);
        }
    }

    fn resource(&self, what: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.node.endpoint.resource(what)
    }
}
