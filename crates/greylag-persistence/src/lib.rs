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

mod background_work;
mod behavior;
mod breaker;
mod checksum;
mod codec;
mod counters;
mod ctx;
pub mod driver;
mod durable_state;
mod effect;
mod entity;
mod error;
mod event;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod idle_timer;
mod journal;
mod lifecycle;
mod marks;
mod offset;
mod ownership_proof;
mod persisted;
mod persistence_id;
mod projection;
mod query;
mod replay_filter;
mod settings;
mod snapshot;
mod state;
mod state_effect;
mod state_entity;
mod state_testkit;
#[cfg(feature = "tck")]
pub mod tck;
mod testkit;
mod timer_name;
mod tracker;

pub use background_work::{Message, Pace, Request, Work, WorkNo};
pub use behavior::{DeleteFailure, EventMeta, EventSourced, Failure, FencedBy, RecoveryFailure, RecoveryStep, Signal};
pub use breaker::{
    Admission, Breaker, BreakerEffect, BreakerInput, BreakerMode, BreakerSettings, BreakerStats, Breakers, CallOutcome,
    IN_DOUBT_RETENTION, InDoubtWrites,
};
pub use codec::{
    AsIs, ByCodec, EncodedValue, EventSeq, IntoStored, StoredCodec, StoredDecodeError, UnreadableRecord, Upcaster,
};
pub use counters::{EntityCounters, EntityStats, EntityTally, SLOW_ENCODING};
pub use ctx::{BlockingPoolFull, CannotSuspend, Ctx, Host, HostRequests, SharedHost};
pub use driver::copy;
pub use driver::hints::Hints;
pub use driver::offset_store::OffsetStore;
pub use driver::projection::{
    BoxError, ProjectionHandle, ProjectionHandler, ProjectionStatus, TransactionalHandler, run_projection,
    run_transactional,
};
pub use driver::query_store::EventQueries;
pub use driver::read_journal::{Events, History, Ids, ReadJournal};
pub use driver::state_store::StateStore;
pub use driver::store_returns::StoreReturns;
pub use driver::stores::{Journal, SnapshotStore, StatesInUse, Stores};
pub use driver::transfer::{Export, HistoryPart, Import, ImportError};
pub use driver::{
    AppendFault, FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, Guarded, InMemoryArchive,
    InMemoryChanges, InMemoryJournal, InMemoryOffsets, InMemoryQueries, InMemorySnapshots, InMemoryStates, JournalOp,
    OffsetOp, RecoveryPermit, RecoveryPermits, SnapshotOp, StateOp, StoreFault, StoreProbe,
};
pub use durable_state::{DurableState, DurableStateSettings, StateSignal};
pub use effect::Effect;
pub use entity::{EntityCore, EntityInit, PhaseName};
pub use error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, OffsetError, QueryError,
    ReadError, RejectReason, SnapshotError, StateRejectReason, StateWriteError, StoreFailure,
};
pub use event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, MAX_TAGS, Metadata, NewEvent, SeqNr, StoredEvent, Tags, Timestamp,
    WriterEpoch, WriterUuid,
};
pub use idle_timer::IdleTimer;
pub use journal::{Append, Appended, Caps, Claim, Head, Health, Page, ReadRange, Scope, Under};
pub use lifecycle::input::{
    Action, DeletedBy, DroppedCommand, EntityCall, Incarnation, Input, StoreAnswer, StoreCall, Withheld,
};
pub use marks::{Applied, MARK_NAME, MalformedMarks, Mark, MarkLimits, Marks, StreamId};
pub use offset::{
    MAX_PROJECTION_BYTES, Offset, OffsetCaps, OffsetKind, OwnedSlices, OwnerEpoch, Position, Processed, START_PREFIX,
    is_projection_name,
};
pub use persisted::{EventCodecs, Persisted, StateCodec};
pub use persistence_id::{
    InvalidPersistenceId, InvalidSliceCount, MAX_ID_BYTES, PersistenceId, SEPARATOR, SLICES, slice_ranges,
};
pub use projection::{
    Guarantee, HandleError, OnPoison, Projection, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionId,
    ProjectionInput, ProjectionSettings, ProjectionStats,
};
pub use query::{
    BacktrackingSettings, ConsumerId, Cursor, Envelope, EnvelopeError, EventPage, EventSource, EventsOf, Feed,
    FeedEffect, FeedInput, Follower, FollowerEffect, FollowerInput, FoundEvent, PageQuery, QueryCaps, QuerySettings,
    SharedAnswer, SharedReader, SharedReaderEffect, SharedReaderInput, SharingSettings, Shows, Visible,
};
pub use replay_filter::{ReplayFilterMode, ReplayFilterSettings, WritersOverlap};
pub use settings::{
    Backoff, EventSourcedSettings, OnFailure, OnUnknownEvent, Recovery, SettingsError, SnapshotFailurePolicy,
    StashOverflow,
};
pub use snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};
pub use state::{ChangesOf, Revision, StateCaps, StateChange, StateHead, StateWrite, StoredState, Verdict};
pub use state_effect::StateEffect;
pub use state_entity::{StateAnswer, StateCall, StateEntityCore, StateEntityInit, StatePhase};
pub use state_testkit::{StateOutcome, StateTestKit};
pub use testkit::{CommandOutcome, EntityTestKit};
pub use timer_name::{NotInfluence, TimerName};
pub use tracker::{
    DeliveryAttempt, DeliveryId, DeliveryTracker, DeliveryTrackerSettings, Tracked, TrackerEffect, TrackerInput,
    TrackerSnapshot, UnconfirmedWarning,
};
