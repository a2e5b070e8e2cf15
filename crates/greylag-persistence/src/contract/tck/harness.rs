//! Cases and their outcomes.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// Extent of a run of the kit. Only cases that the contract leaves optional can be switched off.
#[derive(Debug, Clone)]
pub struct Flags {
    /// Ids of the concurrency case; each gets 20 appends. Default 1000.
    pub concurrent_ids: u32,
    /// Whether events and snapshots of the maximal size are written. Default yes; slow
    /// disks may leave them to a nightly run.
    pub largest: bool,
    /// Number of kills in each of the first two [crash cases](super::crash). Default 200; a gate
    /// may use fewer, a long run more.
    pub kills: u32,
    /// Most interleavings of each case of two writers, out of hundreds; `usize::MAX` plays all. Default 150.
    pub interleavings: usize,
    /// Run only cases whose name contains this. Default all.
    pub only: Option<String>,
}

impl Default for Flags {
    fn default() -> Self {
        Self { concurrent_ids: 1000, largest: true, kills: 200, interleavings: 150, only: None }
    }
}

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The backend keeps the rule.
    Passed,
    /// The case was not tried, for this reason.
    Skipped(String),
    /// The backend breaks the rule: the expected and the found value.
    Failed(String),
}

/// The outcomes of all cases, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number and name of each case, and its outcome.
    pub cases: Vec<(String, Outcome)>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| name.as_str())
    }

    /// The cases that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| name.as_str())
    }

    /// # Panics
    /// If a case failed, with all of them; or if none ran.
    pub fn assert_conforms(&self) {
        assert!(!self.cases.is_empty(), "no case ran; check the filter");
        assert!(self.failed().next().is_none(), "the backend breaks its contract:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "ok       {name}")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(what) => writeln!(f, "FAILED   {name}: {what}")?,
            }
        }
        Ok(())
    }
}

/// Why a case ended early.
pub(crate) enum Stop {
    Failed(String),
    Skipped(String),
}

pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// Fails the case unless `holds`.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Stop::Failed(what())) }
}

/// Fails the case unless both values are equal.
pub(crate) fn equal<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    ensure(found == expected, || format!("{what}: expected {expected:?}, found {found:?}"))
}

pub(crate) fn skip<T>(why: &str) -> Checked<T> {
    Err(Stop::Skipped(why.to_owned()))
}

/// The answer of an operation that must succeed.
pub(crate) fn must<T, E: fmt::Display>(what: &str, answer: Result<T, E>) -> Checked<T> {
    answer.map_err(|error| Stop::Failed(format!("{what} must succeed, but: {error}")))
}

impl Report {
    /// Runs one case, unless the filter leaves it out. A panic inside is a failure of the case.
    pub(crate) async fn run(&mut self, flags: &Flags, name: &str, case: impl Future<Output = Checked>) {
        if flags.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        let outcome = match AssertUnwindSafe(case).catch_unwind().await {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Failed(what))) => Outcome::Failed(what),
            Ok(Err(Stop::Skipped(why))) => Outcome::Skipped(why),
            Err(_) => Outcome::Failed("panicked".to_owned()),
        };
        self.cases.push((name.to_owned(), outcome));
    }
}

/// Runs cases one after the other: `cases!(report, &flags; "01 name" => future; …)`.
macro_rules! cases {
    ($report:ident, $flags:expr; $($name:literal => $case:expr;)*) => {
        $($report.run($flags, $name, $case).await;)*
    };
}
pub(crate) use cases;
