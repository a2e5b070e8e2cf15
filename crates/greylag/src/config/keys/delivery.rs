//! `delivery.*`. Source: delivery §8.

use greylag_delivery::OnUndecodable;
use greylag_delivery::machine::consumer_link::PoisonPolicy;
use greylag_delivery::machine::work_pulling::WorkerSelection;

use super::Key;
use crate::config::given::words;

words!(WorkerSelection { "least_in_flight" => Self::LeastInFlight, "random" => Self::Random });
words!(OnUndecodable { "surface" => Self::Surface, "skip" => Self::Skip, "stop" => Self::Stop });
words!(PoisonPolicy { "dead_letter" => Self::DeadLetter, "stall" => Self::Stall, "stop_consumer" => Self::StopConsumer });

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::bytes(
            "delivery.producer.chunk_large_messages",
            "delivery §8",
            "A message that encodes to more bytes travels in chunks of so many; 0 sends every message in one piece.",
            |draft| &mut draft.settings.delivery.producer.chunk_large_messages,
        ),
        Key::bytes(
            "delivery.producer.max_message_bytes",
            "delivery §8",
            "A message that encodes to more bytes is refused when it is sent, and not put together where it arrives.",
            |draft| &mut draft.settings.delivery.producer.max_message_bytes,
        ),
        Key::new(
            "delivery.producer.resend_first_interval",
            "delivery P8",
            "Pace at which the first frame of a link is repeated until anything is heard.",
            |draft| &mut draft.settings.delivery.producer.resend_first_interval,
        ),
        Key::new(
            "delivery.producer.resend_first_unconfirmed_idle_timeout",
            "delivery P8",
            "Pace afterwards, and the silence after which a link with unconfirmed messages is probed.",
            |draft| &mut draft.settings.delivery.producer.resend_first_unconfirmed_idle_timeout,
        ),
        Key::new(
            "delivery.producer.drain_on_drop",
            "delivery P15",
            "How long a producer whose last handle is gone goes on delivering.",
            |draft| &mut draft.settings.delivery.producer.drain_on_drop,
        ),
        Key::new(
            "delivery.producer.durable_queue_request_timeout",
            "delivery D7",
            "A durable queue that gives no answer for so long is asked again, with the identical batch.",
            |draft| &mut draft.settings.delivery.producer.durable_queue_request_timeout,
        ),
        Key::new(
            "delivery.producer.durable_queue_retry_attempts",
            "delivery D7",
            "Attempts at one batch before its messages are given up and the queue is opened anew.",
            |draft| &mut draft.settings.delivery.producer.durable_queue_retry_attempts,
        ),
        Key::new(
            "delivery.producer.durable_queue_max_batch",
            "delivery D6",
            "Messages that one append to the durable queue takes.",
            |draft| &mut draft.settings.delivery.producer.durable_queue_max_batch,
        ),
        Key::bytes(
            "delivery.producer.durable_queue_max_batch_bytes",
            "delivery D6",
            "Bytes that one append to the durable queue takes; a larger message is stored alone.",
            |draft| &mut draft.settings.delivery.producer.durable_queue_max_batch_bytes,
        ),
        Key::new(
            "delivery.producer.confirm_flush_count",
            "delivery D5",
            "Confirmed messages after which their confirmations are written to the durable queue.",
            |draft| &mut draft.settings.delivery.producer.confirm_flush_count,
        ),
        Key::new(
            "delivery.producer.confirm_flush_interval",
            "delivery D5",
            "Time after which confirmations are written to the durable queue, however few.",
            |draft| &mut draft.settings.delivery.producer.confirm_flush_interval,
        ),
        Key::new("delivery.consumer.flow_control_window", "delivery §8", "Frames in flight; at least 1.", |draft| {
            &mut draft.settings.delivery.consumer.flow_control_window
        }),
        Key::new(
            "delivery.consumer.flow_control_window_max",
            "delivery §7",
            "As far as the window of a point-to-point consumer grows where it holds the producer up.",
            |draft| &mut draft.settings.delivery.consumer.flow_control_window_max,
        ),
        Key::new(
            "delivery.consumer.max_outstanding_deliveries",
            "delivery C7",
            "Deliveries handed out and not confirmed; at most the window.",
            |draft| &mut draft.settings.delivery.consumer.max_outstanding_deliveries,
        ),
        Key::new(
            "delivery.consumer.ack_max_delay",
            "delivery C9b",
            "How long a confirmation may wait for company while more frames are ready.",
            |draft| &mut draft.settings.delivery.consumer.ack_max_delay,
        ),
        Key::new(
            "delivery.consumer.delayed_ack_timeout",
            "delivery C9",
            "After how long confirmations are told that no sender asked for, where nothing else tells them before.",
            |draft| &mut draft.settings.delivery.consumer.delayed_ack_timeout,
        ),
        Key::new(
            "delivery.consumer.resend_interval_min",
            "delivery C11",
            "First interval at which a silent link is asked about.",
            |draft| &mut draft.settings.delivery.consumer.resend_interval_min,
        ),
        Key::new(
            "delivery.consumer.resend_interval_max",
            "delivery C11",
            "Last interval, reached by half as much again each time.",
            |draft| &mut draft.settings.delivery.consumer.resend_interval_max,
        ),
        Key::new(
            "delivery.consumer.only_flow_control",
            "delivery §1.6",
            "Lost frames stay lost; nothing is sent again.",
            |draft| &mut draft.settings.delivery.consumer.only_flow_control,
        ),
        Key::new(
            "delivery.consumer.redelivery_backoff",
            "delivery C12",
            "Pause before an abandoned delivery is tried again; doubles up to 30 s.",
            |draft| &mut draft.settings.delivery.consumer.redelivery_backoff,
        ),
        Key::new(
            "delivery.consumer.max_delivery_attempts",
            "delivery C12",
            "Attempts before `on_poison` decides; 0 is unlimited.",
            |draft| &mut draft.settings.delivery.consumer.max_delivery_attempts,
        ),
        Key::new(
            "delivery.consumer.on_poison",
            "delivery C12",
            "What becomes of a message whose attempts are used up.",
            |draft| &mut draft.settings.delivery.consumer.on_poison,
        ),
        Key::new(
            "delivery.consumer.on_undecodable",
            "delivery §9",
            "What becomes of a message that cannot be read.",
            |draft| &mut draft.settings.delivery.consumer.on_undecodable,
        ),
        Key::new(
            "delivery.consumer.confirm_warn_after",
            "delivery C13",
            "A delivery that took so long is warned of and counted as overdue.",
            |draft| &mut draft.settings.delivery.consumer.confirm_warn_after,
        ),
        Key::new(
            "delivery.consumer.confirm_timeout",
            "delivery C13",
            "A delivery that took so long is treated as abandoned.",
            |draft| &mut draft.settings.delivery.consumer.confirm_timeout,
        ),
        Key::new(
            "delivery.sharding.producer.buffer_size",
            "delivery §8",
            "Messages that may wait for demand, in all.",
            |draft| &mut draft.settings.delivery.sharding.buffer_size,
        ),
        Key::new(
            "delivery.sharding.producer.buffer_size_per_entity",
            "delivery §8",
            "Messages that may wait for the demand of one entity.",
            |draft| &mut draft.settings.delivery.sharding.buffer_size_per_entity,
        ),
        Key::new(
            "delivery.sharding.producer.max_in_flight_messages",
            "delivery §8",
            "Messages that are not confirmed, in all; each is then confirmed singly.",
            |draft| &mut draft.settings.delivery.sharding.max_in_flight_messages,
        ),
        Key::bytes(
            "delivery.sharding.producer.max_in_flight_bytes",
            "delivery §8",
            "Bytes of messages that are not confirmed, in all.",
            |draft| &mut draft.settings.delivery.sharding.max_in_flight_bytes,
        ),
        Key::bytes(
            "delivery.sharding.producer.max_in_flight_bytes_per_entity",
            "delivery §8",
            "Bytes of one entity's messages that are not confirmed.",
            |draft| &mut draft.settings.delivery.sharding.max_in_flight_bytes_per_entity,
        ),
        Key::new(
            "delivery.sharding.producer.cleanup_unused_after",
            "delivery §8",
            "The producer forgets an entity that was not used for so long.",
            |draft| &mut draft.settings.delivery.sharding.cleanup_unused_after,
        ),
        Key::new(
            "delivery.sharding.producer.recovery_parallelism",
            "delivery S8",
            "Entities with recovered messages that are sent their first one and have not answered, at the same time.",
            |draft| &mut draft.settings.delivery.sharding.recovery_parallelism,
        ),
        Key::new(
            "delivery.sharding.consumer.buffer_size",
            "delivery §8",
            "Frames that may wait for an entity's start.",
            |draft| &mut draft.settings.delivery.sharding.consumer_buffer_size,
        ),
        Key::new(
            "delivery.sharding.consumer.consumer_idle_after",
            "delivery §8",
            "An entity forgets a producer's link that was idle for so long.",
            |draft| &mut draft.settings.delivery.sharding.consumer_idle_after,
        ),
        Key::new(
            "delivery.sharding.consumer.max_producers_per_entity",
            "delivery §8",
            "Producers that may have a link to one entity at a time.",
            |draft| &mut draft.settings.delivery.sharding.max_producers_per_entity,
        ),
        Key::new(
            "delivery.work_pulling.buffer_size",
            "delivery W4",
            "Messages of a producer that may wait for a worker.",
            |draft| &mut draft.settings.delivery.work_pulling.buffer_size,
        ),
        Key::new(
            "delivery.work_pulling.worker_window",
            "delivery W7",
            "Messages of one producer that a worker has in hand or ahead of it.",
            |draft| &mut draft.settings.delivery.work_pulling.worker_window,
        ),
        Key::new(
            "delivery.work_pulling.selection",
            "delivery W3",
            "Which of the workers that ask for work gets the next message.",
            |draft| &mut draft.settings.delivery.work_pulling.selection,
        ),
        Key::new(
            "delivery.work_pulling.worker_first_timeout",
            "delivery W6",
            "A worker that does not answer its first message for so long gets no more, and others get what it has.",
            |draft| &mut draft.settings.delivery.work_pulling.worker_first_timeout,
        ),
        Key::new(
            "delivery.work_pulling.work_timeout",
            "delivery W6",
            "A message that is not confirmed for so long is given to another worker as well.",
            |draft| &mut draft.settings.delivery.work_pulling.work_timeout,
        ),
        Key::new(
            "delivery.sharding.consumer.allow_bypass",
            "delivery S16",
            "Messages beside the deliveries reach entities whose type has any.",
            |draft| &mut draft.settings.delivery.sharding.allow_bypass,
        ),
        Key::new(
            "delivery.dedupe_streams_max",
            "delivery S14",
            "Streams that a consumer remembers however old they are.",
            |draft| &mut draft.settings.delivery.dedupe_streams_max,
        ),
        Key::new(
            "delivery.dedupe_retention",
            "delivery S14",
            "How long a stream beyond that number is remembered.",
            |draft| &mut draft.settings.delivery.dedupe_retention,
        ),
        Key::new(
            "delivery.event_sourced_queue.snapshot_every",
            "delivery §4.2",
            "Events of a producer's queue between two snapshots.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.snapshot_every,
        ),
        Key::new(
            "delivery.event_sourced_queue.keep_n_snapshots",
            "delivery §4.2",
            "Snapshots of a queue that are kept.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.keep_n_snapshots,
        ),
        Key::new(
            "delivery.event_sourced_queue.delete_events",
            "delivery §4.2",
            "Whether events of a queue are deleted that no snapshot needs; without, its history grows for ever.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.delete_events,
        ),
        Key::bytes(
            "delivery.event_sourced_queue.snapshot_max_bytes",
            "delivery §4.2",
            "A larger snapshot leaves the messages out, and recovery reads them from their events.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.snapshot_max_bytes,
        ),
        Key::new(
            "delivery.event_sourced_queue.cleanup_unused_after",
            "delivery §4.2",
            "How long the last confirmation of an entity is remembered when nothing for it is unconfirmed.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.cleanup_unused_after,
        ),
        Key::new(
            "delivery.event_sourced_queue.restart_min_backoff",
            "delivery D7",
            "First wait before a queue whose store failed is opened again.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.restart_min_backoff,
        ),
        Key::new(
            "delivery.event_sourced_queue.restart_max_backoff",
            "delivery D7",
            "Longest such wait; waits double up to it.",
            |draft| &mut draft.settings.delivery.event_sourced_queue.restart_max_backoff,
        ),
    ]
}
