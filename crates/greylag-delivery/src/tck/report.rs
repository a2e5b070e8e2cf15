//! The outcomes of the kit's cases.

use std::fmt;

use super::case::{Checked, Failure};

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The queue conforms.
    Passed,
    /// The case was not run; names the missing hook.
    Skipped(&'static str),
    /// The queue does not conform: what was expected, and what happened.
    Failed(String),
}

/// The outcomes of all cases, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The name of each case, and its outcome.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| *name)
    }

    /// The cases that were not run.
    pub fn skipped(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| *name)
    }

    /// Panics unless every case passed or was skipped.
    ///
    /// # Panics
    /// With the whole report as message.
    pub fn assert_conforms(&self) {
        assert!(self.failed().next().is_none(), "it does not conform:\n{self}");
    }

    pub(super) fn add(&mut self, name: &'static str, checked: Checked) {
        let outcome = match checked {
            Ok(()) => Outcome::Passed,
            Err(Failure::Skipped(why)) => Outcome::Skipped(why),
            Err(Failure::Wrong(how)) => Outcome::Failed(how),
        };
        self.cases.push((name, outcome));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name}")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(how) => writeln!(f, "FAILED   {name}: {how}")?,
            }
        }
        Ok(())
    }
}
