//! The problems of a configuration, all of them at once.

use std::fmt;

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In the config file.
    File {
        /// The file's name as given.
        file: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// In this environment variable.
    Environment(String),
    /// By the program, or by default.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Environment(variable) => f.write_str(variable),
            Self::Program => f.write_str("program"),
        }
    }
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Source of the value.
    pub origin: Origin,
    /// The key concerned, with its section; empty if the file as a whole cannot be read.
    pub key: String,
    /// Description of the problem, and advice.
    pub why: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.why)
    }
}

/// All problems of a configuration. Nothing was started. `Debug` prints the same as `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<Problem>);

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

greylag_core::debug_is_sentence!(ConfigProblems);

impl std::error::Error for ConfigProblems {}
