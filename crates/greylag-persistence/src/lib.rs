//! Event sourcing: the journal contract with its fence, entities, recovery, snapshots.
//!
//! ```
//! use std::time::Instant;
//!
//! use greylag_codec::json;
//! use greylag_core::ReplyTo;
//! use greylag_persistence::{Ctx, Effect, EntityTestKit, EventCodecs, EventSourced, PersistenceId};
//!
//! #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
//! struct Deposited(u64);
//!
//! struct Deposit { cents: u64, reply_to: ReplyTo<u64> }
//!
//! struct Account;
//!
//! impl EventSourced for Account {
//!     type Command = Deposit;
//!     type Event = Deposited;
//!     type State = u64;
//!
//!     fn on_command(&mut self, _: &mut Ctx<'_, Deposit>, _: &u64, deposit: Deposit) -> Effect<Self> {
//!         // The answer leaves only when the event is durable, with the state that contains it.
//!         Effect::<Self>::persist(Deposited(deposit.cents)).then_reply(deposit.reply_to, |balance| *balance)
//!     }
//!
//!     fn apply(balance: &mut u64, Deposited(cents): &Deposited) {
//!         *balance += cents;
//!     }
//! }
//!
//! let id = PersistenceId::of("Account", "7")?;
//! let codecs = EventCodecs::new(json("account.deposited"));
//! let mut account = EntityTestKit::new(Instant::now(), move || codecs.of(id.clone(), Account));
//! assert_eq!(account.ask(|reply_to| Deposit { cents: 500, reply_to }), Ok(500));
//! account.restart();
//! assert_eq!(account.ask(|reply_to| Deposit { cents: 250, reply_to }), Ok(750));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//! - Per id one linear history: any two acknowledged appends have different, consecutive numbers,
//!   whatever the number of hosts. The fence is in the [`Journal`]: a claim raises the epoch, and an
//!   append under a smaller one is refused.
//! - An answer given after a persist means that the events are durable. An asker whose events are not
//!   stored is told so, and whether that is certain ([`greylag_core::EntityError`]).
//! - A handler only ever sees durable state; recovery is a function of stored bytes only.
//! - The records that hold the effects of deliveries also tell which deliveries were applied ([`Marks`]).
//!
//! - A [`DurableState`] keeps its newest state only, under a revision that fences it.
//! - The messages that an entity sends to others can be part of its history: a [`DeliveryTracker`] sends a message when
//!   its event is stored, and again until the message is confirmed.
//!
//! `examples/bank-account` is a program over two releases: schema evolution, snapshots and retention.
//!
//! # What an operator sees
//! [`Stores::entity_stats`] counts what the entities on each journal do: writes by their outcome, recoveries,
//! snapshots, stashes, unhandled commands ([`EntityStats`]). [`Stores::breakers`] and [`Stores::health`] show the
//! state of the stores, [`RecoveryPermits::in_use`] and [`RecoveryPermits::waiting`] the recoveries under way,
//! [`ProjectionHandle::status`] the lag of a projection; batches, syncs and queues are in the `stats()` of a
//! journal. Payloads are never logged.
//!
//! # How it is built
//! [`EntityCore`] is a pure machine: inputs in, [`Action`]s out. A shard hosts it (greylag-sharding),
//! [`driver::spawn`] runs one alone, [`EntityTestKit`] runs one without any runtime; likewise
//! [`StateEntityCore`], [`driver::spawn_state`] and [`StateTestKit`] for durable states. Backends
//! implement [`Journal`], [`SnapshotStore`], [`StateStore`] and [`OffsetStore`], and prove it by the kit
//! in `tck` (feature `tck`).

mod contract;
pub mod driver;
mod entities;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod reading;
#[cfg(feature = "tck")]
pub mod tck;
mod transfer;

pub use contract::breaker::{
    Admission, Breaker, BreakerEffect, BreakerInput, BreakerMode, BreakerSettings, BreakerStats, Breakers, CallOutcome,
    IN_DOUBT_RETENTION, InDoubtWrites,
};
pub use contract::driver::faulty::{
    FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, JournalOp, OffsetOp, SnapshotOp, StateOp, StoreFault,
};
pub use contract::driver::guarded::Guarded;
pub use contract::driver::journal_store::{Journal, SnapshotStore};
pub use contract::driver::memory::changes::InMemoryChanges;
pub use contract::driver::memory::offsets::InMemoryOffsets;
pub use contract::driver::memory::queries::InMemoryQueries;
pub use contract::driver::memory::states::InMemoryStates;
pub use contract::driver::memory::{AppendFault, InMemoryJournal, InMemorySnapshots};
pub use contract::driver::offset_store::OffsetStore;
pub use contract::driver::query_store::EventQueries;
pub use contract::driver::state_store::StateStore;
pub use contract::driver::store_returns::StoreReturns;
pub use contract::error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, OffsetError, QueryError,
    ReadError, RejectReason, SnapshotError, StateRejectReason, StateWriteError, StoreFailure,
};
pub use contract::head::{Claim, Head, Under};
pub use contract::history_part::{HistoryPart, ImportError};
pub use contract::journal::{Append, Appended, Caps, Health, Page, ReadRange};
pub use contract::offset::{
    MAX_PROJECTION_BYTES, Offset, OffsetCaps, OffsetKind, OwnedSlices, OwnerEpoch, Position, Processed, START_PREFIX,
    is_projection_name,
};
pub use contract::query::{Cursor, EventPage, EventsOf, FoundEvent, PageQuery, QueryCaps, Shows, Visible};
pub use contract::records::codec::{
    AsIs, ByCodec, EncodedValue, EventSeq, IntoStored, StoredCodec, StoredDecodeError, UnreadableRecord, Upcaster,
};
pub use contract::records::event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, MAX_TAGS, Metadata, NewEvent, SeqNr, StoredEvent, Tags, Timestamp,
    WriterEpoch, WriterUuid,
};
pub use contract::records::persistence_id::{
    InvalidPersistenceId, InvalidSliceCount, MAX_ID_BYTES, PersistenceId, SEPARATOR, SLICES, slice_ranges,
};
pub use contract::records::revision::{Revision, StateHead};
pub use contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};
pub use contract::records::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState, Verdict};
pub use contract::scope::Scope;
pub use contract::settings::{Backoff, SettingsError};
pub use entities::behavior::durable_state::{DurableState, DurableStateSettings, StateEffect, StateSignal};
pub use entities::behavior::event_sourced::{Effect, EventMeta, EventSourced};
pub use entities::behavior::failure::{DeleteFailure, Failure, FencedBy, RecoveryFailure, RecoveryStep};
pub use entities::behavior::persisted::{EventCodecs, Persisted, StateCodec};
pub use entities::behavior::signal::Signal;
pub use entities::context::background_work::{Message, Pace, Request, Work, WorkNo};
pub use entities::context::ctx::{BlockingPoolFull, CannotSuspend, Ctx, Host, HostRequests, SharedHost};
pub use entities::context::idle_timer::IdleTimer;
pub use entities::context::timer_name::{NotInfluence, TimerName};
pub use entities::counters::{EntityCounters, EntityStats, EntityTally, SLOW_ENCODING};
pub use entities::driver::permits::{RecoveryPermit, RecoveryPermits};
pub use entities::driver::store_probe::StoreProbe;
pub use entities::driver::stores::{StatesInUse, Stores};
pub use entities::entity::replay_filter::{ReplayFilterMode, ReplayFilterSettings, WritersOverlap};
pub use entities::entity::{EntityCore, EntityInit, PhaseName};
pub use entities::lifecycle::input::{
    Action, DeletedBy, DroppedCommand, EntityCall, Incarnation, Input, StoreAnswer, StoreCall, Withheld,
};
pub use entities::marks::{Applied, MARK_NAME, MalformedMarks, Mark, MarkLimits, Marks, StreamId};
pub use entities::settings::{
    EventSourcedSettings, OnFailure, OnUnknownEvent, Recovery, SnapshotFailurePolicy, StashOverflow,
};
pub use entities::state_entity::{StateAnswer, StateCall, StateEntityCore, StateEntityInit, StatePhase};
pub use entities::state_testkit::{StateOutcome, StateTestKit};
pub use entities::testkit::{CommandOutcome, EntityTestKit};
pub use entities::tracker::{
    DeliveryAttempt, DeliveryId, DeliveryTracker, DeliveryTrackerSettings, Tracked, TrackerEffect, TrackerInput,
    TrackerSnapshot, UnconfirmedWarning,
};
pub use reading::driver::hints::Hints;
pub use reading::driver::projection::{
    BoxError, ProjectionHandle, ProjectionHandler, ProjectionStatus, TransactionalHandler, run_projection,
    run_transactional,
};
pub use reading::driver::read_journal::{Events, History, Ids, ReadJournal};
pub use reading::projection::{
    Guarantee, HandleError, OnPoison, Projection, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionId,
    ProjectionInput, ProjectionSettings, ProjectionStats,
};
pub use reading::query::envelope::{Envelope, EnvelopeError, EventSource};
pub use reading::query::feed::{Feed, FeedEffect, FeedInput};
pub use reading::query::follower::{Follower, FollowerEffect, FollowerInput};
pub use reading::query::settings::{BacktrackingSettings, QuerySettings, SharingSettings};
pub use reading::query::shared_reader::{
    ConsumerId, SharedAnswer, SharedReader, SharedReaderEffect, SharedReaderInput,
};
pub use transfer::driver::copy;
pub use transfer::driver::memory::InMemoryArchive;
pub use transfer::driver::records::{Export, Import};
