//! Reports of a shard: log lines, events, dead letters, and the inputs by which its region learns of them.

use greylag_core::{DeadLetterReason, EntityError, answer_dropped};

use crate::driver::region::event::Event;
use crate::driver::shard::queued_message::QueuedMessage;
use crate::host::Fenced;
use crate::ids::EntityId;
use crate::machine::region::Input as RegionInput;
use crate::machine::shard::{Notice, Overdue, STOP_WARN_AFTER, SlotId};
use crate::remember::starter::Input as StarterInput;

use super::ShardTask;

impl<M: Send + 'static> ShardTask<M> {
    /// Logs the lives of entities, if `verbose_debug_logging` is set.
    pub(super) fn log_verbosely(&self, id: &EntityId, what: &str) {
        if self.shared.settings.runtime.verbose_debug_logging {
            tracing::debug!(entity_type = %self.shared.name, shard = %self.scope.shard, %id, what, "entity");
        }
    }

    pub(super) fn overdue(&self, id: EntityId, what: Overdue) {
        let entity_type = &self.shared.name;
        let event = match what {
            Overdue::Suspension => {
                let after = self.shared.settings.runtime.suspend_warn_after;
                tracing::warn!(%entity_type, %id, ?after, "entity is still suspended");
                Event::EntitySuspended { entity: id, after }
            }
            Overdue::Stop => {
                tracing::warn!(%entity_type, %id, after = ?STOP_WARN_AFTER, "entity has not stopped yet");
                Event::StopIgnored { entity: id, after: STOP_WARN_AFTER }
            }
        };
        self.shared.events.send(event).ok();
    }

    /// Tells of a shard whose entities have not stopped in time. Source: sharding §2.9.
    pub(super) fn stop_overdue(&self, entities: usize, ids: &[EntityId]) {
        let (entity_type, shard) = (&self.shared.name, &self.scope.shard);
        let message = std::any::type_name::<M>();
        let some: Vec<&str> = ids.iter().map(EntityId::as_str).collect();
        tracing::warn!(
            %entity_type, %shard, entities, ?some, message, after = ?STOP_WARN_AFTER,
            "shard is stopping; some entities have not stopped yet"
        );
        if let Some(id) = ids.first() {
            self.shared.events.send(Event::StopIgnored { entity: id.clone(), after: STOP_WARN_AFTER }).ok();
        }
    }

    /// Reports that the shard is ready to serve; remembered entities are started through the region.
    pub(super) fn on_initialized(&self, remembered: Vec<EntityId>) {
        let (shard, generation) = (self.scope.shard.clone(), self.scope.generation);
        self.shared.input(RegionInput::ShardInitialized { shard: shard.clone(), generation });
        self.shared.events.send(Event::ShardStarted(shard.clone())).ok();
        if !remembered.is_empty() {
            let (entity_type, entities) = (&self.shared.name, remembered.len());
            tracing::debug!(%entity_type, %shard, entities, "remembered entities start again");
            self.shared.services.send_to_starter(StarterInput::Loaded { shard, generation, ids: remembered });
        }
    }

    pub(super) fn on_store_trouble(&self, what: &str, error: &dyn std::fmt::Display) {
        let (name, shard) = (&self.shared.name, &self.scope.shard);
        tracing::error!(entity_type = %name, %shard, %error, "store of remembered entities: {what}");
        let event = Event::RememberStoreFailed { shard: shard.clone(), reason: format!("{what}: {error}") };
        self.shared.events.send(event).ok();
    }

    /// Reports once that the shard remembers more entities than its store is made for.
    pub(super) fn count_remembered(&mut self) {
        let entities = self.shard.all_remembered();
        if self.end.store.as_mut().is_some_and(|store| store.is_too_small_for(entities)) {
            let (entity_type, shard) = (&self.shared.name, self.scope.shard.clone());
            tracing::warn!(
                %entity_type, %shard, entities,
                "replicated data are a poor store for so many remembered entities; set remember_entities_store to \"eventsourced\""
            );
            self.shared.events.send(Event::ManyRemembered { shard, entities }).ok();
        }
    }

    pub(super) fn on_notice(&self, notice: Notice) {
        let event = match notice {
            Notice::LoadIsSlow => {
                let timeout = self.shared.settings.waiting_for_state_timeout;
                return self.on_store_trouble("it is asked again", &format_args!("no answer within {timeout:?}"));
            }
            Notice::StoreIsLate => {
                let timeout = self.shared.settings.updating_state_timeout;
                return self.on_store_trouble("a write is late", &format_args!("no answer within {timeout:?}"));
            }
            Notice::InvalidTransition(invalid) => Event::InvalidEntityState(invalid),
            Notice::GivenUp { id, failures, forgotten } => Event::EntityGivenUp { entity: id, failures, forgotten },
        };
        tracing::error!(entity_type = %self.shared.name, shard = %self.scope.shard, ?event, "remembered entities");
        self.shared.events.send(event).ok();
    }

    pub(super) fn dead_letter(&self, id: EntityId, queued: QueuedMessage<M>, reason: DeadLetterReason) {
        if reason == DeadLetterReason::EntityStartFailed {
            // The asker gets the cause and not only the reason.
            self.shared.report_dead_letter(reason, &id, "".into());
            let answer = EntityError::StartFailed(self.start_failure.clone());
            return answer_dropped(answer, || drop(queued));
        }
        if let Some(parcel) = queued.into_parcel(id) {
            self.shared.dead_letter(parcel, reason);
        }
    }

    pub(super) fn on_fenced(&self, slot: SlotId, fenced: Fenced) {
        let Some((id, _)) = self.shard.identity(slot) else { return };
        tracing::warn!(entity_type = %self.shared.name, %id, %fenced, "entity is fenced");
        self.shared.events.send(Event::EntityFenced { entity: id.clone(), fenced }).ok();
        // Defer to the region's task, as the effects of this input may call back into this shard.
        self.shared.defer_input(RegionInput::Fenced {
            shard: self.scope.shard.clone(),
            generation: self.scope.generation,
            stored: fenced.stored,
        });
    }
}
