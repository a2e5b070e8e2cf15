//! The record of a daemon process as replicated data.
//!
//! The record is a register clocked by the record's own order, never by the wall clock. A commit is made only on top of
//! the record that its manager knew, and counts only if a read made after it shows the same record: either a later
//! manager sees this write, or this manager sees the later manager's record.

use std::convert::Infallible;
use std::fmt;

use greylag_crdt::{LwwRegister, UpdateCx};
use greylag_ddata::{GetError, Key, ReadLevel, Replicator, WriteLevel};

use crate::error::ReadError;
use crate::ids::EntityTypeName;
use crate::machine::daemon::DaemonRecord;
use crate::settings::ShardingSettings;
use crate::wire;

type Register = LwwRegister<Vec<u8>>;

/// Reads and writes the record by majorities.
#[derive(Debug, Clone)]
pub(super) struct RecordStore {
    replicator: Replicator,
    key: Key<Register>,
    read: ReadLevel,
    write: WriteLevel,
    /// Most workers that a record may name.
    most: u32,
}

/// The outcome of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Commit {
    Done,
    /// No majority was reached for the write, or for the read after it.
    Unknown,
    /// The store holds another record.
    Superseded,
}

/// Why the record could not be read.
#[derive(Debug)]
pub(super) enum NotRead {
    NoMajority(GetError),
    Unreadable(ReadError),
}

impl fmt::Display for NotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMajority(error) => error.fmt(f),
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

impl RecordStore {
    pub(super) fn new(replicator: Replicator, name: &EntityTypeName, settings: &ShardingSettings) -> Self {
        Self {
            replicator,
            key: Key::new(format!("daemon/{}", name.encoded())).expect("type names are short"),
            read: ReadLevel::majority(settings.waiting_for_state_timeout),
            write: WriteLevel::majority(settings.updating_state_timeout),
            most: settings.number_of_shards,
        }
    }

    /// The record known to a majority; `None` if the number was never changed.
    pub(super) async fn read(&self) -> Result<Option<DaemonRecord>, NotRead> {
        let read = self.replicator.get(&self.key, self.read).await.map_err(NotRead::NoMajority)?;
        let register = read.found();
        let bytes = register.as_ref().and_then(Register::value);
        let record = bytes.map(|bytes| wire::decode_daemon_record(bytes, self.most)).transpose();
        record.map_err(NotRead::Unreadable)
    }

    pub(super) async fn commit(&self, record: DaemonRecord) -> Commit {
        match self.read().await {
            Ok(current) if record.follows(current.as_ref()) => {}
            Ok(_) => return Commit::Superseded,
            Err(error) => return self.unknown(&error),
        }
        let (value, clock) = (wire::encode_daemon_record(&record), record.clock());
        let set = move |register: &mut Register, cx: &mut UpdateCx<'_>| {
            register.set_with(cx, value, |_, _| clock);
            Ok::<(), Infallible>(())
        };
        if let Err(error) = self.replicator.update(&self.key, self.write, Register::new, set).await {
            return self.unknown(&error);
        }
        match self.read().await {
            Ok(Some(read)) if read == record => Commit::Done,
            Ok(_) => Commit::Superseded,
            Err(error) => self.unknown(&error),
        }
    }

    fn unknown(&self, error: &dyn fmt::Display) -> Commit {
        tracing::warn!(key = %self.key.id(), %error, "the number of processes is not stored by a majority yet");
        Commit::Unknown
    }
}
