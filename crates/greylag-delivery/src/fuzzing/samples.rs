//! The sample values of which seeds are made, and by which inputs are read.

use greylag_codec::json;

use crate::delivery::with_delivery::DeliveryCodec;
use crate::ids::{ControllerRef, Epoch, ProducerId, ProducerIdentity, StreamId};
use crate::message::BatchHeader;

/// The codec of deliveries that are numbers, with texts as bypass messages.
pub(super) fn codec() -> DeliveryCodec<u64, String> {
    DeliveryCodec::new(json::<u64>("number"), json::<String>("text"))
}

pub(super) fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().expect("an address"), path: "delivery/1".into(), instance }
}

pub(super) fn identity() -> ProducerIdentity {
    let producer_id = ProducerId::new("orders").expect("a name");
    ProducerIdentity { producer_id, stream_id: StreamId(7), epoch: Epoch::FIRST }
}

pub(super) fn header(instance: u64) -> BatchHeader {
    let ProducerIdentity { producer_id, stream_id, epoch } = identity();
    BatchHeader { producer_id, stream_id, epoch, controller: controller(instance), ordered: true, lowest: 1 }
}
