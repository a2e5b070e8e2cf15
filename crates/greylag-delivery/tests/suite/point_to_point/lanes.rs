//! Full lanes of the real transport.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::Registry;
use greylag_delivery::{Dedupe, DeliverySettings};
use greylag_transport::{Fault, GrpcTransport, Remoting, TransportSettings};

use crate::point_to_point::support::{consumer_with, producer_with, take, within};

/// Settings whose timers do not fire during this test.
fn without_repeats() -> DeliverySettings {
    let hour = Duration::from_secs(3600);
    let mut settings = DeliverySettings::default();
    settings.consumer.resend_interval_min = hour;
    settings.consumer.resend_interval_max = hour;
    settings.producer.resend_first_interval = hour;
    settings.producer.resend_first_unconfirmed_idle_timeout = hour;
    settings
}

/// delivery 94: batches refused by a full lane wait for room, and are not left to the protocol's repeats.
#[tokio::test]
async fn scenario_94_batches_wait_for_room_on_a_lane() {
    let settings = TransportSettings { outbound_message_queue_size: 2, ..TransportSettings::test() };
    let transport = async || GrpcTransport::bind(settings.clone(), Arc::new(Registry::new())).await.unwrap();
    let (a, b) = (transport().await, transport().await);
    let (near, far): (Arc<dyn Remoting>, Arc<dyn Remoting>) = (a.clone(), b.clone());
    // Dials fail, so that messages stay in the lane's queue, whose capacity is two.
    a.fault(b.self_address().address(), Fault::BlackholeOutbound);
    let mut pairs = Vec::new();
    for number in 0..10 {
        let (controller, consumer) = (producer_with(&near, without_repeats()), consumer_with(&far, without_repeats()));
        controller.register_consumer(consumer.reference());
        within(controller.start().send(number)).await.unwrap();
        pairs.push((controller, consumer.start(Dedupe::none()), number));
    }
    // Time for the producers' tasks to find the lane full.
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.fault(b.self_address().address(), Fault::Pass);
    for (controller, mut deliveries, number) in pairs {
        assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [number]);
        assert_eq!(controller.stats().resent, 0);
    }
    a.shutdown().await;
    b.shutdown().await;
}
