//! A naive model over the happened-before relation of operations, without dots and contexts.
//!
//! An operation writes, and supersedes the writes that its replica had seen and that it replaces or removes. A replica
//! shows the writes of all operations it has seen, less those that a seen operation superseded. Each type defines what
//! its operations write, and what the remaining writes look like to a reader.

use std::fmt::Debug;

use greylag_crdt::{ReplicatedData, UpdateCx};

use crate::step::Op;

/// A key, and a key of its inner map.
pub(crate) type Path = (u8, u8);

/// A write that no seen operation superseded.
#[derive(Debug)]
pub(crate) struct Live<'a, W> {
    pub(crate) index: usize,
    pub(crate) path: Path,
    pub(crate) write: &'a W,
}

/// The replica at which an operation is done, and what it sees.
#[derive(Debug)]
pub(crate) struct Place<'a, W> {
    pub(crate) id: usize,
    pub(crate) replica: usize,
    /// The birth of the entry at the replica.
    pub(crate) life: u64,
    pub(crate) live: &'a [Live<'a, W>],
}

impl<W> Place<'_, W> {
    pub(crate) fn all(&self, wanted: impl Fn(Path) -> bool) -> Vec<usize> {
        self.live.iter().filter(|live| wanted(live.path)).map(|live| live.index).collect()
    }

    pub(crate) fn under(&self, key: u8) -> Vec<usize> {
        self.all(|path| path.0 == key)
    }
}

/// What an operation writes and supersedes.
#[derive(Debug)]
pub(crate) struct Plan<W> {
    pub(crate) writes: Vec<(Path, W)>,
    pub(crate) supersedes: Vec<usize>,
}

impl<W> Plan<W> {
    pub(crate) fn write(writes: Vec<(Path, W)>, supersedes: Vec<usize>) -> Self {
        Self { writes, supersedes }
    }

    pub(crate) fn one(path: Path, write: W, supersedes: Vec<usize>) -> Self {
        Self::write(vec![(path, write)], supersedes)
    }

    pub(crate) fn remove(supersedes: Vec<usize>) -> Self {
        Self::write(Vec::new(), supersedes)
    }

    pub(crate) fn nothing() -> Self {
        Self::remove(Vec::new())
    }
}

/// A type under test.
pub(crate) trait Model: ReplicatedData {
    type Write: Clone + Debug;
    type View: PartialEq + Debug;
    /// Whether owners move amounts of removed replicas; no delta contains such moves.
    const MOVES: bool = !Self::CAUSAL;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op);

    fn view(&self) -> Self::View;

    fn plan(op: Op, place: &Place<'_, Self::Write>) -> Plan<Self::Write>;

    fn model(live: &[Live<'_, Self::Write>]) -> Self::View;

    /// Whether a write has a dot: the first write after an absence retires forgotten dots (ddata K7, E3).
    fn has_dot(_path: Path) -> bool {
        Self::CAUSAL
    }

    /// Whether the delta of `later` includes that of `earlier`, an operation of the same replica in the same life of
    /// the entry.
    fn implies(_later: Op, _earlier: Op) -> bool {
        false
    }
}
