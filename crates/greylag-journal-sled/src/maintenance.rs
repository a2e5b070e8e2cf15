//! Offline work on a journal that no process has open: verify it, export it, and salvage what is sound.
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

mod commits;
mod export;
mod salvage;
mod survey;

use std::path::{Path, PathBuf};

use greylag_store_sled::{Batch, OpenError, Planner, Reader, Request, Store, StoreError, StoreSettings};

pub use export::export;
pub use salvage::{Cut, LEFT_OVER_FILE, Salvaged, salvage};

use crate::planner::REPAIR;
use crate::records::Verified;
use crate::{recovery, verification};
use survey::{Found, Survey};

/// Why maintenance of a journal failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine does not open the journal. [`salvage`] may work all the same.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The open store cannot be read or written.
    #[error("{}: {source}", path.display())]
    Store {
        /// Directory of the journal.
        path: PathBuf,
        /// Error of the engine.
        source: StoreError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The directory for a salvaged journal is not empty.
    #[error("{} is not empty: name a directory that does not exist yet", .0.display())]
    NotEmpty(PathBuf),
    /// The guard was not renewed, since other damage was found.
    #[error("the guard is not renewed, because more is damaged: {}", .0.join("; "))]
    Unsound(Vec<String>),
}

/// Counts of what a journal holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Group commits that changed something, merged ones included.
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

/// Events that are lost, or cannot be read any more.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Missing {
    /// The id of the events.
    pub id: String,
    /// The number of the first missing event.
    pub first: u64,
    /// The number of the last missing event.
    pub last: u64,
}

/// Result of reading every record of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// Counts of what is there and sound.
    pub counts: Counts,
    /// The damaged or missing parts, one sentence each.
    pub damage: Vec<String>,
    /// Events that are missing, as far as heads, neighbours and commit records tell.
    pub missing: Vec<Missing>,
    /// Count of missing commits, from the tail guard and gaps in commit numbers. Nothing else may tell what some of
    /// them stored.
    pub missing_commits: u64,
}

impl Verification {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Verifies everything: all commits and their digests, every event, snapshot, state and offset, and the guard.
///
/// Works on a copy beside the directory and removes the copy again, because the engine blanks the torn end of a log
/// that it opens. If the copy is not sound, its log is read without the engine: the counts are then those of what
/// [`salvage`] can save, and what is missing is lost for good.
///
/// # Errors
/// [`Failure::Open`] if another process has the journal open, [`Failure::File`] if a file cannot be read or copied.
pub fn verify(path: &Path) -> Result<Verification, Failure> {
    Ok(look_beside(path, &mut |_| ())?.found)
}

fn look_beside(path: &Path, visit: &mut dyn FnMut(&Found<'_>)) -> Result<Looked, Failure> {
    let guard = guarded(path)?;
    // The path is made absolute, since a directory named `.` has no file name.
    let path = &path.canonicalize().map_err(|source| Failure::File { path: path.to_owned(), source })?;
    let beside = path.with_file_name(format!("{}.verifying", path.file_name().unwrap_or_default().display()));
    let failed = |source| Failure::File { path: beside.clone(), source };
    if beside.exists() {
        std::fs::remove_dir_all(&beside).map_err(failed)?;
    }
    let looked = look_at_copy(path, &beside, guard, visit);
    match std::fs::remove_dir_all(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => looked.and(Err(failed(error))),
        _ => looked,
    }
}

fn look_at_copy(
    path: &Path,
    copy: &Path,
    guard: Option<u64>,
    visit: &mut dyn FnMut(&Found<'_>),
) -> Result<Looked, Failure> {
    let (store, mut damage) = salvage::open_copy(path, copy, guard)?;
    let reader = store.reader().map_err(|source| Failure::Store { path: copy.to_owned(), source })?;
    let mut looked = look(reader, guard, visit);
    close(store, copy)?;
    std::mem::swap(&mut damage, &mut looked.found.damage);
    looked.found.tell(damage);
    Ok(looked)
}

/// The last commit that the tail guard names.
fn guarded(path: &Path) -> Result<Option<u64>, Failure> {
    let file = path.join(greylag_store_sled::GUARD_FILE);
    greylag_store_sled::guarded(path).map_err(|source| Failure::File { path: file, source })
}

/// Writes the lost tail guard of a journal anew, if everything else in the journal is sound.
///
/// # Errors
/// [`Failure::Unsound`] if more is damaged than the guard; as [`verify`] otherwise.
pub fn renew_guard(path: &Path) -> Result<Verification, Failure> {
    let guard = guarded(path)?;
    let Looked { mut found, verified, .. } = look_beside(path, &mut |_| ())?;
    // A lost guard itself counts as one damage.
    let Some(verified) = verified.filter(|_| found.damage.len() <= usize::from(guard.is_none())) else {
        return Err(Failure::Unsound(found.damage));
    };
    greylag_store_sled::renew_guard(path, verified.commit_no)
        .map_err(|source| Failure::File { path: path.join(greylag_store_sled::GUARD_FILE), source })?;
    found.damage.clear();
    Ok(found)
}

/// Result of [`look`].
struct Looked {
    found: Verification,
    /// Up to which commit everything is there; `None` if anything is missing.
    verified: Option<Verified>,
    /// The ordinal after all events and changes that commits name.
    next_ordinal: u64,
}

/// Reads everything, compares it with what commits and the guard name, and passes each thing to `visit`, too.
fn look(reader: Reader, guard: Option<u64>, visit: &mut dyn FnMut(&Found<'_>)) -> Looked {
    let mut found = Verification::default();
    let verified = verification::verify(Verified::default(), u64::MAX, &reader);
    found.tell(verified.as_ref().err().map(ToString::to_string));
    found.tell(recovery::check_format(&reader, &mut Batch::default()).err().map(|error| error.to_string()));
    let survey = Survey::new(reader.clone());
    found.tell(survey.commits.damage(guard, &reader));
    found.counts.commits = survey.commits.last - survey.commits.gaps.min(survey.commits.last);
    found.missing_commits = survey.commits.missing(guard);
    let next_ordinal = survey.commits.next_ordinal;
    survey.walk(&mut |thing| {
        found.note(&thing);
        visit(&thing);
    });
    let gone: Vec<String> = found.missing.iter().map(ToString::to_string).collect();
    found.tell(gone);
    Looked { found, verified: verified.ok(), next_ordinal }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, first, last } = self;
        if first == last {
            write!(f, "event {first} of {id} is lost")
        } else {
            write!(f, "events {first} to {last} of {id} are lost")
        }
    }
}

impl Verification {
    /// Adds each sentence of damage that is not in the list yet.
    fn tell(&mut self, damage: impl IntoIterator<Item = String>) {
        for what in damage {
            if !self.damage.contains(&what) {
                self.damage.push(what);
            }
        }
    }

    fn note(&mut self, thing: &Found<'_>) {
        let count = match thing {
            Found::Id { .. } => &mut self.counts.ids,
            Found::Event { .. } => &mut self.counts.events,
            Found::Snapshot(..) => &mut self.counts.snapshots,
            Found::State(_) => &mut self.counts.states,
            Found::Offsets { .. } => &mut self.counts.slices,
            Found::Nameless { .. } => return,
            Found::Damage { what } => return self.damage.push(what.clone()),
            Found::Lost { id, seq_nr, why, .. } => {
                self.damage.extend(why.iter().map(|why| format!("event {seq_nr} of {id}: {why}")));
                return self.miss(id.as_str(), seq_nr.as_u64());
            }
        };
        *count += 1;
    }

    fn miss(&mut self, id: &str, number: u64) {
        match self.missing.last_mut() {
            Some(missing) if missing.id == id && missing.last + 1 == number => missing.last = number,
            _ => self.missing.push(Missing { id: id.to_owned(), first: number, last: number }),
        }
    }
}

/// A planner that checks nothing: the store is opened as it is, and rows are written as given.
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
