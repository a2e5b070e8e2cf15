//! A naive model over the happened-before relation of operations: it knows nothing of dots and contexts.
//!
//! An operation writes, and supersedes the writes that its replica had seen and that it replaces or removes. A replica
//! shows the writes of all operations it has seen, less those that a seen operation superseded. That is all; each type
//! says what its operations write, and what is made of the writes that are left.

use std::fmt::Debug;

use greylag_crdt::{ReplicatedData, UpdateCx};

use crate::step::Op;

/// Key, and key within it.
pub(crate) type Path = (u8, u8);

/// A write that nothing seen superseded.
#[derive(Debug)]
pub(crate) struct Live<'a, W> {
    pub(crate) index: usize,
    pub(crate) path: Path,
    pub(crate) write: &'a W,
}

/// Where an operation is done.
#[derive(Debug)]
pub(crate) struct Place<'a, W> {
    pub(crate) id: usize,
    pub(crate) replica: usize,
    /// The birth of the entry there.
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
    /// Whether owners move amounts of removed replicas, which no delta says.
    const MOVES: bool = !Self::CAUSAL;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op);

    fn view(&self) -> Self::View;

    fn plan(op: Op, place: &Place<'_, Self::Write>) -> Plan<Self::Write>;

    fn model(live: &[Live<'_, Self::Write>]) -> Self::View;

    /// Whether a write has a dot: the first one after an absence retires those that were forgotten (ddata K7, E3).
    fn has_dot(_path: Path) -> bool {
        Self::CAUSAL
    }

    /// Whether a delta says all that an earlier operation's of the same replica and life of the entry says.
    fn implies(_later: Op, _earlier: Op) -> bool {
        false
    }
}
