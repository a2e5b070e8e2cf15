//! Random settings: timers short compared with the faults, and windows and batches of every size.

use std::time::Duration;

use greylag_delivery::DeliverySettings;
use greylag_delivery::machine::storing::StoringSettings;

use super::world::World;

/// Settings of a link between one producer and one consumer.
pub(crate) fn of_link<E: Clone>(world: &mut World<E>) -> DeliverySettings {
    let mut settings = DeliverySettings::test();
    let window = [1, 2, 3, 4, 5, 20][world.pick(6)];
    settings.consumer.flow_control_window = window;
    settings.consumer.flow_control_window_max = window * [1, 1, 4][world.pick(3)];
    settings.consumer.max_outstanding_deliveries = [1, 2, 5][world.pick(3)].min(window);
    settings.consumer.ack_max_delay = Duration::from_millis([0, 5][world.pick(2)]);
    timers(world, &mut settings);
    settings
}

/// The timers of both ends.
pub(crate) fn timers<E: Clone>(world: &mut World<E>, settings: &mut DeliverySettings) {
    settings.consumer.delayed_ack_timeout = [None, Some(Duration::from_millis(50))][world.pick(2)];
    settings.consumer.resend_interval_min = Duration::from_millis(200);
    settings.consumer.resend_interval_max = Duration::from_millis(1000);
    settings.consumer.redelivery_backoff = Duration::from_millis(10);
    settings.producer.resend_first_interval = Duration::from_millis(100);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(1000);
}

/// Settings for a durable producer's use of its queue.
pub(crate) fn storing<E: Clone>(world: &mut World<E>) -> StoringSettings {
    StoringSettings {
        request_timeout: Duration::from_millis(300),
        retry_attempts: 3,
        max_batch: [1, 4, 512][world.pick(3)],
        max_batch_bytes: [150, 4 << 20][world.pick(2)],
        confirm_flush_count: [1, 10][world.pick(2)],
        confirm_flush_interval: Duration::from_millis(100),
        restart_min_backoff: Duration::from_millis(50),
        restart_max_backoff: Duration::from_millis(400),
    }
}
