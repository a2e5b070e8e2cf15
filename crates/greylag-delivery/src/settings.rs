//! The settings of the crate, with their defaults.
//!
//! Source: delivery §8.

mod error;

use std::sync::Arc;
use std::time::Duration;

use crate::ids::ProducerIdentity;
use crate::machine::consumer_link::{ConsumerLinkSettings, MAX_CHUNKS, PoisonPolicy};
use crate::machine::omissions::Omissions;
use crate::machine::producer_link::{LinkMode, ProducerLinkSettings};
use crate::machine::sharding_consumer::ShardingConsumerSettings;
use crate::machine::sharding_producer::ShardingProducerSettings;
use crate::machine::storing::StoringSettings;
use crate::machine::work_pulling::WorkerSelection;
use crate::queue::EventSourcedQueueSettings;

pub use error::SettingsError;

/// Bytes of a transport message reserved for the fields around a chunk. Source: delivery §8.
pub(crate) const LANE_MARGIN: usize = 4 << 10;

/// The settings of delivery; section `delivery.*` of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliverySettings {
    /// The producer's side of a link.
    pub producer: ProducerSettings,
    /// The consumer's side of a link.
    pub consumer: ConsumerSettings,
    /// Producers and workers of work pulling.
    pub work_pulling: WorkPullingSettings,
    /// Producer and consumer controllers of sharded entities.
    pub sharding: ShardingSettings,
    /// Producer queues in a journal.
    pub event_sourced_queue: EventSourcedQueueSettings,
    /// Number of streams that a consumer remembers for ever. Default 1000.
    pub dedupe_streams_max: usize,
    /// Retention of streams beyond that number. Default 7 days.
    pub dedupe_retention: Duration,
}

impl Default for DeliverySettings {
    fn default() -> Self {
        Self {
            producer: ProducerSettings::default(),
            consumer: ConsumerSettings::default(),
            work_pulling: WorkPullingSettings::default(),
            sharding: ShardingSettings::default(),
            event_sourced_queue: EventSourcedQueueSettings::default(),
            dedupe_streams_max: 1000,
            dedupe_retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The producer's side of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerSettings {
    /// Larger messages (encoded) are cut into chunks of this many bytes, which leaves room for other messages between
    /// the chunks. At most the lane's limit less 4 KiB, and at least [`max_message_bytes`](Self::max_message_bytes) /
    /// 65,536, since a message has at most 65,536 chunks. Default 128 KiB; 0 sends every message in one piece.
    pub chunk_large_messages: usize,
    /// A larger message (encoded) is refused when it is sent, and is not joined where it arrives. Default 64 MiB.
    pub max_message_bytes: usize,
    /// Interval at which the first frame of a link is repeated until the first answer. Default 1 s.
    pub resend_first_interval: Duration,
    /// Interval afterwards, and the silence after which a link with unconfirmed messages is probed. Default 10 s.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// How long a producer goes on delivering after its last handle is dropped. Default 10 s.
    pub drain_on_drop: Duration,
    /// Timeout of a durable queue's store, which is then repeated with the identical batch. Default 3 s.
    pub durable_queue_request_timeout: Duration,
    /// Attempts at one batch before its messages are given up and the queue is loaded again; at least 1. Default 10.
    pub durable_queue_retry_attempts: u32,
    /// Maximum number of messages in one append to the durable queue; at least 1. Default 512.
    pub durable_queue_max_batch: usize,
    /// Maximum bytes of one append to the durable queue; a larger message is stored alone. Default 4 MiB.
    pub durable_queue_max_batch_bytes: usize,
    /// Number of confirmed messages after which confirmations are stored in the durable queue; at least 1. Default 100.
    pub confirm_flush_count: usize,
    /// Time after which confirmations are stored in the durable queue in any case. Default 100 ms.
    pub confirm_flush_interval: Duration,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            chunk_large_messages: 128 << 10,
            max_message_bytes: 64 << 20,
            resend_first_interval: Duration::from_secs(1),
            resend_first_unconfirmed_idle_timeout: Duration::from_secs(10),
            drain_on_drop: Duration::from_secs(10),
            durable_queue_request_timeout: Duration::from_secs(3),
            durable_queue_retry_attempts: 10,
            durable_queue_max_batch: 512,
            durable_queue_max_batch_bytes: 4 << 20,
            confirm_flush_count: 100,
            confirm_flush_interval: Duration::from_millis(100),
        }
    }
}

/// The consumer's side of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSettings {
    /// The window: frames in flight; at least 1. Default 50.
    pub flow_control_window: u32,
    /// Limit up to which the window of a point-to-point consumer grows if it throttles the producer, until the link is
    /// idle for a minute; equal to the window for a fixed one. Default 1024. Windows of other consumers do not grow.
    pub flow_control_window_max: u32,
    /// Maximum number of unconfirmed deliveries in hand; at most the window. Default 1.
    pub max_outstanding_deliveries: u32,
    /// How long a confirmation may be held back while more frames are ready. Default 5 ms.
    pub ack_max_delay: Duration,
    /// Delay of confirmations that no sender asked for, unless another message includes them before. Default 50 ms.
    pub delayed_ack_timeout: Option<Duration>,
    /// First interval of retries on a silent link. Default 2 s.
    pub resend_interval_min: Duration,
    /// Last interval of retries; each interval is half as long again as the one before. Default 30 s.
    pub resend_interval_max: Duration,
    /// Pause before an abandoned delivery is tried again; doubles up to 30 s. Default 200 ms.
    pub redelivery_backoff: Duration,
    /// Attempts before [`ConsumerSettings::on_poison`] applies; 0, the default, is unlimited.
    pub max_delivery_attempts: u32,
    /// What to do with a message after its last permitted attempt. Default: dead letter and confirm.
    pub on_poison: PoisonPolicy,
    /// What to do with an undecodable message. Default: it blocks its link, and is shown to operators.
    pub on_undecodable: OnUndecodable,
    /// A delivery unconfirmed for this long causes a warning, once per attempt, and counts as overdue. Default 30 s.
    pub confirm_warn_after: Duration,
    /// A delivery unconfirmed for this long is given up. Default: never.
    pub confirm_timeout: Option<Duration>,
    /// Flow control without resending: lost frames stay lost. Default false.
    pub only_flow_control: bool,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            flow_control_window: 50,
            flow_control_window_max: 1024,
            max_outstanding_deliveries: 1,
            ack_max_delay: Duration::from_millis(5),
            delayed_ack_timeout: Some(Duration::from_millis(50)),
            resend_interval_min: Duration::from_secs(2),
            resend_interval_max: Duration::from_secs(30),
            redelivery_backoff: Duration::from_millis(200),
            max_delivery_attempts: 0,
            on_poison: PoisonPolicy::DeadLetter,
            on_undecodable: OnUndecodable::Surface,
            confirm_warn_after: Duration::from_secs(30),
            confirm_timeout: None,
            only_flow_control: false,
        }
    }
}

/// Producers and workers of work pulling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkPullingSettings {
    /// Messages of a producer that may wait for a worker; if there are more, senders wait. At least 1. Default 1000.
    pub buffer_size: usize,
    /// The window of a worker per producer: messages that it has in hand or queued; at least 1. A large window keeps a
    /// worker busy, a small one leaves long jobs to workers with capacity. Default 8.
    pub worker_window: u32,
    /// Which worker with demand gets the next message. Default: one with the fewest in hand.
    pub selection: WorkerSelection,
    /// A worker that has not answered its first message for this long gets no more messages, and others get those that
    /// it has. Default 30 s.
    pub worker_first_timeout: Duration,
    /// A message unconfirmed for this long is also given to another worker. Default: never.
    pub work_timeout: Option<Duration>,
}

impl Default for WorkPullingSettings {
    fn default() -> Self {
        Self {
            buffer_size: 1000,
            worker_window: 8,
            selection: WorkerSelection::default(),
            worker_first_timeout: Duration::from_secs(30),
            work_timeout: None,
        }
    }
}

/// What to do with an undecodable delivery; none of the choices causes a crash loop. Source: delivery §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUndecodable {
    /// The link is blocked, and the message is shown to operators until it is confirmed; a newer version of the entity
    /// may be able to decode it.
    #[default]
    Surface,
    /// The message becomes a dead letter, and is confirmed.
    Skip,
    /// The link ends; no frame of its producer is taken until the entity starts again.
    Stop,
}

/// Producer and consumer controllers of sharded entities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingSettings {
    /// Messages that may wait for demand, in all buffers together. Default 1000.
    pub buffer_size: usize,
    /// Messages that may wait for the demand of one entity. Default 250.
    pub buffer_size_per_entity: usize,
    /// Limit of unconfirmed messages; with a limit, each message is confirmed singly. Default: no limit, and
    /// confirmations come with the consumer's requests.
    pub max_in_flight_messages: Option<usize>,
    /// Limit of bytes of all unconfirmed messages. Default 64 MiB.
    pub max_in_flight_bytes: usize,
    /// Limit of bytes of one entity's unconfirmed messages. Default 8 MiB.
    pub max_in_flight_bytes_per_entity: usize,
    /// Idle time after which the producer forgets an entity. Default 120 s.
    pub cleanup_unused_after: Duration,
    /// Limit of entities that were sent their first recovered message but have not answered yet; at least 1. Default
    /// 100.
    pub recovery_parallelism: usize,
    /// Frames that may wait for an entity's start. Default 1000.
    pub consumer_buffer_size: usize,
    /// Idle time after which an entity drops the link to a producer; at least twice
    /// [`ShardingSettings::cleanup_unused_after`]. Default 240 s.
    pub consumer_idle_after: Duration,
    /// Limit of producers with a link to one entity. Default 1000.
    pub max_producers_per_entity: usize,
    /// Whether bypass messages reach the entities. Default true.
    pub allow_bypass: bool,
}

impl Default for ShardingSettings {
    fn default() -> Self {
        Self {
            buffer_size: 1000,
            buffer_size_per_entity: 250,
            max_in_flight_messages: None,
            max_in_flight_bytes: 64 << 20,
            max_in_flight_bytes_per_entity: 8 << 20,
            cleanup_unused_after: Duration::from_secs(120),
            recovery_parallelism: 100,
            consumer_buffer_size: 1000,
            consumer_idle_after: Duration::from_secs(240),
            max_producers_per_entity: 1000,
            allow_bypass: true,
        }
    }
}

impl DeliverySettings {
    /// For tests: the window and intervals of the specification's scenarios.
    pub fn test() -> Self {
        let mut settings = Self::default();
        settings.consumer.flow_control_window = 20;
        settings.consumer.flow_control_window_max = 20;
        settings.consumer.ack_max_delay = Duration::ZERO;
        settings.consumer.delayed_ack_timeout = None;
        settings.consumer.resend_interval_min = Duration::from_secs(1);
        settings
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingsError`] names the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let Self { producer, consumer, sharding, work_pulling, .. } = self;
        let checks = [
            (consumer.flow_control_window >= 1, "consumer.flow_control_window", "must be at least 1"),
            (
                (1..=consumer.flow_control_window).contains(&consumer.max_outstanding_deliveries),
                "consumer.max_outstanding_deliveries",
                "must be from 1 to the flow control window",
            ),
            (
                producer.chunk_large_messages == 0
                    || producer.max_message_bytes.div_ceil(producer.chunk_large_messages) <= MAX_CHUNKS,
                "producer.chunk_large_messages",
                "must not cut max_message_bytes into more than 65536 chunks",
            ),
            (
                consumer.flow_control_window_max >= consumer.flow_control_window,
                "consumer.flow_control_window_max",
                "must be at least the flow control window",
            ),
            (
                consumer.confirm_timeout.is_none_or(|timeout| !timeout.is_zero()),
                "consumer.confirm_timeout",
                "must not be zero; leave it out to wait for ever",
            ),
            (
                consumer.delayed_ack_timeout.is_none_or(|timeout| !timeout.is_zero()),
                "consumer.delayed_ack_timeout",
                "must not be zero; messages that ask for their confirmation get it at once",
            ),
            (!consumer.confirm_warn_after.is_zero(), "consumer.confirm_warn_after", "must not be zero"),
            (!consumer.resend_interval_min.is_zero(), "consumer.resend_interval_min", "must not be zero"),
            (
                consumer.resend_interval_min <= consumer.resend_interval_max,
                "consumer.resend_interval_max",
                "must be at least resend_interval_min",
            ),
            (!producer.resend_first_interval.is_zero(), "producer.resend_first_interval", "must not be zero"),
            (
                producer.resend_first_interval <= producer.resend_first_unconfirmed_idle_timeout,
                "producer.resend_first_unconfirmed_idle_timeout",
                "must be at least resend_first_interval",
            ),
            (
                !producer.durable_queue_request_timeout.is_zero(),
                "producer.durable_queue_request_timeout",
                "must not be zero",
            ),
            (producer.durable_queue_retry_attempts >= 1, "producer.durable_queue_retry_attempts", "must be at least 1"),
            (producer.durable_queue_max_batch >= 1, "producer.durable_queue_max_batch", "must be at least 1"),
            (
                producer.durable_queue_max_batch_bytes >= 1,
                "producer.durable_queue_max_batch_bytes",
                "must be at least 1",
            ),
            (producer.confirm_flush_count >= 1, "producer.confirm_flush_count", "must be at least 1"),
            (work_pulling.buffer_size >= 1, "work_pulling.buffer_size", "must be at least 1"),
            (work_pulling.worker_window >= 1, "work_pulling.worker_window", "must be at least 1"),
            (!work_pulling.worker_first_timeout.is_zero(), "work_pulling.worker_first_timeout", "must not be zero"),
            (
                work_pulling.work_timeout.is_none_or(|timeout| !timeout.is_zero()),
                "work_pulling.work_timeout",
                "must not be zero",
            ),
            (sharding.buffer_size >= 10, "sharding.producer.buffer_size", "must be at least 10"),
            (
                (1..=sharding.buffer_size).contains(&sharding.buffer_size_per_entity),
                "sharding.producer.buffer_size_per_entity",
                "must be from 1 to buffer_size",
            ),
            (
                sharding.max_in_flight_messages.is_none_or(|max| max >= 10),
                "sharding.producer.max_in_flight_messages",
                "must be at least 10",
            ),
            (
                sharding.max_in_flight_bytes_per_entity <= sharding.max_in_flight_bytes,
                "sharding.producer.max_in_flight_bytes_per_entity",
                "must be at most max_in_flight_bytes",
            ),
            (sharding.recovery_parallelism >= 1, "sharding.producer.recovery_parallelism", "must be at least 1"),
            (
                sharding.consumer_idle_after >= sharding.cleanup_unused_after * 2,
                "sharding.consumer.consumer_idle_after",
                "must be at least twice the producer's cleanup_unused_after",
            ),
            (sharding.max_producers_per_entity >= 1, "sharding.consumer.max_producers_per_entity", "must not be 0"),
            (
                self.dedupe_streams_max >= sharding.max_producers_per_entity,
                "dedupe_streams_max",
                "must be at least max_producers_per_entity",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, why)) => Err(SettingsError { field, why }),
            None => self.event_sourced_queue.validate(),
        }
    }

    /// Checks the settings that depend on the lane, which carries messages of at most `max` bytes.
    ///
    /// # Errors
    /// [`SettingsError`] for chunks that leave too little room for the fields around them.
    pub(crate) fn validate_for_lane(&self, max: usize) -> Result<(), SettingsError> {
        if self.producer.chunk_large_messages > max.saturating_sub(LANE_MARGIN) {
            let why = "must be at least 4 KiB below the limit of the lane that carries the messages";
            return Err(SettingsError { field: "producer.chunk_large_messages", why });
        }
        Ok(())
    }

    /// Settings of the producer's side of a link of `identity`.
    pub fn producer_link(&self, mode: LinkMode, identity: &ProducerIdentity) -> ProducerLinkSettings {
        ProducerLinkSettings {
            mode,
            stream_id: identity.stream_id,
            epoch: identity.epoch,
            resend_first_interval: self.producer.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.producer.resend_first_unconfirmed_idle_timeout,
            omissions: Omissions::default(),
        }
    }

    /// Settings for a durable producer's use of its queue.
    pub fn storing(&self) -> StoringSettings {
        let producer = &self.producer;
        let queue = &self.event_sourced_queue;
        StoringSettings {
            request_timeout: producer.durable_queue_request_timeout,
            retry_attempts: producer.durable_queue_retry_attempts,
            max_batch: producer.durable_queue_max_batch,
            max_batch_bytes: producer.durable_queue_max_batch_bytes,
            confirm_flush_count: producer.confirm_flush_count,
            confirm_flush_interval: producer.confirm_flush_interval,
            restart_min_backoff: queue.restart_min_backoff,
            restart_max_backoff: queue.restart_max_backoff,
        }
    }

    /// Settings of the consumer's side of a link.
    pub fn consumer_link(&self, mode: LinkMode) -> ConsumerLinkSettings {
        let consumer = &self.consumer;
        ConsumerLinkSettings {
            flow_control_window: consumer.flow_control_window,
            flow_control_window_max: match mode {
                LinkMode::PointToPoint => consumer.flow_control_window_max,
                LinkMode::Sharding => consumer.flow_control_window,
            },
            max_outstanding_deliveries: consumer.max_outstanding_deliveries,
            ack_max_delay: consumer.ack_max_delay,
            delayed_ack_timeout: consumer.delayed_ack_timeout,
            resend_interval_min: consumer.resend_interval_min,
            resend_interval_max: consumer.resend_interval_max,
            only_flow_control: consumer.only_flow_control,
            redelivery_backoff: consumer.redelivery_backoff,
            max_delivery_attempts: consumer.max_delivery_attempts,
            on_poison: consumer.on_poison,
            confirm_warn_after: consumer.confirm_warn_after,
            confirm_timeout: consumer.confirm_timeout,
            max_message_bytes: self.producer.max_message_bytes as u64,
            retries_forever: mode == LinkMode::PointToPoint,
            omissions: Omissions::default(),
        }
    }

    /// Settings of the producer controller of an entity type.
    pub fn sharding_producer(&self) -> ShardingProducerSettings {
        ShardingProducerSettings {
            resend_first_interval: self.producer.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.producer.resend_first_unconfirmed_idle_timeout,
            buffer_size: self.sharding.buffer_size,
            buffer_size_per_entity: self.sharding.buffer_size_per_entity,
            max_in_flight_messages: self.sharding.max_in_flight_messages,
            max_in_flight_bytes: self.sharding.max_in_flight_bytes,
            max_in_flight_bytes_per_entity: self.sharding.max_in_flight_bytes_per_entity,
            cleanup_unused_after: self.sharding.cleanup_unused_after,
            recovery_parallelism: self.sharding.recovery_parallelism,
            omissions: Omissions::default(),
        }
    }

    /// Settings of the consumer controller of one entity.
    pub fn sharding_consumer(&self) -> ShardingConsumerSettings {
        self.consumer(LinkMode::Sharding)
    }

    /// Settings of the consumer controller of a worker. Its window does not grow, so that jobs stay available to every
    /// worker.
    pub fn worker(&self) -> ShardingConsumerSettings {
        let mut settings = self.consumer(LinkMode::Sharding);
        let window = self.work_pulling.worker_window;
        let link = Arc::make_mut(&mut settings.link);
        link.flow_control_window = window;
        link.flow_control_window_max = window;
        link.max_outstanding_deliveries = link.max_outstanding_deliveries.min(window);
        settings
    }

    /// Settings of a consumer controller.
    pub fn consumer(&self, mode: LinkMode) -> ShardingConsumerSettings {
        ShardingConsumerSettings {
            link: Arc::new(self.consumer_link(mode)),
            buffer_size: self.sharding.consumer_buffer_size,
            consumer_idle_after: self.sharding.consumer_idle_after,
            max_producers_per_entity: self.sharding.max_producers_per_entity,
            dedupe_streams_max: self.dedupe_streams_max,
            dedupe_retention: self.dedupe_retention,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_and_contradictions_are_named() {
        assert_eq!(DeliverySettings::default().validate(), Ok(()));
        assert_eq!(DeliverySettings::test().validate(), Ok(()));
        let refused = |change: fn(&mut DeliverySettings)| {
            let mut settings = DeliverySettings::default();
            change(&mut settings);
            settings.validate().unwrap_err().field
        };
        assert_eq!(refused(|s| s.consumer.flow_control_window = 0), "consumer.flow_control_window");
        assert_eq!(refused(|s| s.consumer.max_outstanding_deliveries = 51), "consumer.max_outstanding_deliveries");
        assert_eq!(refused(|s| s.sharding.buffer_size_per_entity = 2000), "sharding.producer.buffer_size_per_entity");
        assert_eq!(
            refused(|s| s.sharding.consumer_idle_after = Duration::from_secs(200)),
            "sharding.consumer.consumer_idle_after"
        );
        assert_eq!(refused(|s| s.dedupe_streams_max = 10), "dedupe_streams_max");
        let producer = |change: fn(&mut ProducerSettings)| {
            let mut settings = DeliverySettings::default();
            change(&mut settings.producer);
            settings.validate().unwrap_err().field.strip_prefix("producer.").unwrap()
        };
        let request_timeout = producer(|p| p.durable_queue_request_timeout = Duration::ZERO);
        assert_eq!(request_timeout, "durable_queue_request_timeout");
        assert_eq!(producer(|p| p.durable_queue_retry_attempts = 0), "durable_queue_retry_attempts");
        assert_eq!(producer(|p| p.durable_queue_max_batch = 0), "durable_queue_max_batch");
        assert_eq!(producer(|p| p.durable_queue_max_batch_bytes = 0), "durable_queue_max_batch_bytes");
        assert_eq!(producer(|p| p.confirm_flush_count = 0), "confirm_flush_count");
        assert_eq!(refused(|s| s.producer.chunk_large_messages = 1000), "producer.chunk_large_messages");
        let zero = Some(Duration::ZERO);
        assert_eq!(refused(|s| s.consumer.confirm_warn_after = Duration::ZERO), "consumer.confirm_warn_after");
        assert_eq!(refused(|s| s.consumer.flow_control_window_max = 10), "consumer.flow_control_window_max");
        // delivery 103.
        let mut settings = DeliverySettings::default();
        (settings.consumer.confirm_timeout, settings.consumer.redelivery_backoff) = (zero, Duration::ZERO);
        assert_eq!(settings.validate().unwrap_err().field, "consumer.confirm_timeout");
    }

    #[test]
    fn chunks_leave_room_in_their_lane() {
        let settings = DeliverySettings::default();
        assert_eq!(settings.validate_for_lane(256 << 10), Ok(()));
        assert_eq!(settings.validate_for_lane(132 << 10), Ok(()));
        let refused = settings.validate_for_lane((132 << 10) - 1).unwrap_err();
        assert_eq!(refused.field, "producer.chunk_large_messages");
    }

    /// Delivery W7, §8: a worker has its own fixed window, since jobs queued at one worker are not available to idle
    /// ones.
    #[test]
    fn the_window_of_a_worker_is_its_own_and_does_not_grow() {
        let mut settings = DeliverySettings::default();
        let window = |settings: &DeliverySettings| {
            let link = settings.worker().link;
            (link.flow_control_window, link.flow_control_window_max)
        };
        assert_eq!(window(&settings), (8, 8));
        settings.work_pulling.worker_window = 1;
        assert_eq!(window(&settings), (1, 1));
    }
}
