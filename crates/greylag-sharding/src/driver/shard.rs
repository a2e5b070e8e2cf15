//! One shard on its node: its task, and what the task works with.

pub(super) mod control_item;
pub(super) mod inboxes;
pub(super) mod lease;
pub(super) mod pause;
pub(super) mod queued_message;
pub(super) mod shard_tasks;
pub(super) mod slot_work;
pub(super) mod task;
pub(super) mod watchables;
pub(super) mod works;
