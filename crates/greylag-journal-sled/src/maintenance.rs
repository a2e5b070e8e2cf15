//! Looking at a journal that no process has open: is it sound, what is in it, and what can be saved of it.
//!
//! ```no_run
//! # use std::path::Path;
//! use greylag_journal_sled::maintenance;
//!
//! let found = maintenance::verify(Path::new("/var/lib/shop/journal"))?;
//! if !found.is_sound() {
//!     let saved = maintenance::salvage(Path::new("/var/lib/shop/journal"), Path::new("/var/lib/shop/journal.new"))?;
//!     println!("{} events saved, {} histories cut", saved.counts.events, saved.cuts.len());
//! }
//! # Ok::<(), maintenance::Failure>(())
//! ```
//! The program `greylag-journal-sled` (feature `program`) does the same. Source: persistence §4.3 (open).

mod export;
mod salvage;
mod survey;

use std::path::{Path, PathBuf};

use greylag_store_sled::{Batch, OpenError, Planner, Reader, Request, Store, StoreError, StoreSettings};

pub use export::export;
pub use salvage::{Cut, Salvaged, salvage};

use crate::planner::REPAIR;
use crate::records::Verified;
use crate::verification;
use survey::{Found, Survey};

/// Why a journal could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine does not open it. Salvage may all the same.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read or written while open.
    #[error("{}: {source}", path.display())]
    Store {
        /// Its directory.
        path: PathBuf,
        /// What the engine said.
        source: StoreError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A salvage writes a new journal; this directory has something in it.
    #[error("{} is not empty: name a directory that does not exist yet", .0.display())]
    NotEmpty(PathBuf),
    /// A guard is renewed only for a journal that is sound otherwise.
    #[error("the guard is not renewed, because more is damaged: {}", .0.join("; "))]
    Unsound(Vec<String>),
}

/// How much a journal holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Group commits that changed something, those that were merged included.
    pub commits: u64,
    /// Ids that were ever claimed, or have a snapshot.
    pub ids: u64,
    /// Events that are not deleted.
    pub events: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Durable states, tombstones included.
    pub states: u64,
    /// Slices of projections.
    pub slices: u64,
}

/// What a look at every record of a journal found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// What is there and sound.
    pub counts: Counts,
    /// What is damaged or missing, one sentence each.
    pub damage: Vec<String>,
}

impl Verification {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Reads everything: all commits and their digests, every event, snapshot, state and offset, and the guard.
///
/// Opens the directory as the journal itself does: a torn end of the log is blanked.
///
/// # Errors
/// [`Failure::Open`] if the engine does not open it, or another process has it open.
pub fn verify(path: &Path) -> Result<Verification, Failure> {
    Ok(look_through(path)?.0)
}

/// Writes the guard of a journal anew that lost it, if everything else in it is sound.
///
/// # Errors
/// [`Failure::Unsound`] if it is not; as [`verify`] otherwise.
pub fn renew_guard(path: &Path) -> Result<Verification, Failure> {
    let (mut found, verified, guard) = look_through(path)?;
    let Some(verified) = verified.filter(|_| found.damage.len() == usize::from(guard.is_some())) else {
        return Err(Failure::Unsound(found.damage));
    };
    greylag_store_sled::renew_guard(path, verified.commit_no)
        .map_err(|source| Failure::File { path: path.join(greylag_store_sled::GUARD_FILE), source })?;
    found.damage.clear();
    Ok(found)
}

type Looked = (Verification, Option<Verified>, Option<StoreError>);

/// What is there, up to which commit, and what the guard says against that.
fn look_through(path: &Path) -> Result<Looked, Failure> {
    let store = open(path)?;
    let reader = store.reader().map_err(|source| Failure::Store { path: path.to_owned(), source })?;
    let mut found = Verification::default();
    let verified = match verification::verify(Verified::default(), u64::MAX, &reader) {
        Ok(verified) => Some(verified),
        Err(error) => {
            found.damage.push(error.to_string());
            None
        }
    };
    if let Err(error) = crate::recovery::check_format(&reader, &mut Batch::default()) {
        found.damage.push(error.to_string());
    }
    found.counts.commits = verified.map_or(0, |verified| verified.commit_no);
    let guard = verified.and_then(|verified| greylag_store_sled::check_guard(path, verified.commit_no).err());
    found.damage.extend(guard.iter().map(ToString::to_string));
    Survey::new(reader).walk(&mut |thing| found.note(&thing));
    close(store, path)?;
    Ok((found, verified, guard))
}

impl Verification {
    fn note(&mut self, thing: &Found<'_>) {
        let count = match thing {
            Found::Id { .. } => &mut self.counts.ids,
            Found::Event { .. } => &mut self.counts.events,
            Found::Snapshot(..) => &mut self.counts.snapshots,
            Found::State(_) => &mut self.counts.states,
            Found::Offsets { .. } => &mut self.counts.slices,
            Found::Damage { what, .. } => return self.damage.push(what.clone()),
        };
        *count += 1;
    }
}

/// Takes a journal as it is.
struct Rows;

/// Rows to write, in one batch.
struct Write(Vec<(Vec<u8>, Vec<u8>)>);

impl Request for Write {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl Planner for Rows {
    type Request = Write;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, writes: Vec<Write>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        let count = writes.len();
        writes.into_iter().flat_map(|write| write.0).for_each(|(key, value)| batch.put_owned(&key, value));
        Ok(vec![(); count])
    }

    fn repair(&self) -> &'static str {
        REPAIR
    }
}

fn open(path: &Path) -> Result<Store<Rows>, Failure> {
    if !path.join("db").exists() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Failure::File { path: path.join("db"), source });
    }
    Ok(Store::open(path, StoreSettings::default(), Rows)?)
}

fn close(store: Store<Rows>, path: &Path) -> Result<(), Failure> {
    store.close().map_err(|source| Failure::Store { path: path.to_owned(), source })
}
