//! What the processes of a scenario write down: the calls and answers of clients, and the lives of entities.
//!
//! Each process has a file of its own, a line of JSON for each entry, written at once: what a process that is killed had
//! written is there. A call is written before it is sent and an answer after it came, both with the time, so what is read never
//! looks shorter than it was.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::lab::Failure;
use crate::report::At;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// When.
    pub(crate) at: At,
    /// Type and id of the entity.
    pub(crate) entity: String,
    /// What.
    #[serde(flatten)]
    pub(crate) what: Happened,
}

/// What happened to an entity, as one process knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(crate) enum Happened {
    /// A client is about to write this value, or to read.
    Called { call: u64, write: Option<u64> },
    /// It was answered: after how many writes, and for a read what is held.
    Answered { call: u64, version: u64, value: Option<u64> },
    /// It ended with an error, which says whether the command may have run.
    Failed { call: u64, may_have_run: bool, error: String },
    /// An instance begins, in a process and under a generation of its shard.
    Started { life: u64, pid: u32, generation: String },
    /// The instance handles a message.
    Worked { life: u64 },
    /// The instance has ended.
    Stopped { life: u64 },
    /// Everything written to the entity, in order, as asked for at `since`, when all clients had ended.
    Logged { since: At, values: Vec<u64> },
}

/// The file of this process.
pub(crate) struct Record(Mutex<File>);

impl Record {
    /// Opens it in this directory.
    pub(crate) fn create(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(format!("{}.jsonl", std::process::id()));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        file.map(|file| Self(Mutex::new(file))).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes an entry with this moment, and yields it.
    pub(crate) fn note(&self, entity: &str, what: Happened) -> At {
        let at = At::now();
        let entry = Entry { at, entity: entity.to_owned(), what };
        let written = serde_json::to_vec(&entry).map_err(std::io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        if let Err(error) = written {
            // A history with holes would be judged for what it does not say.
            crate::node::tell(crate::report::What::Note { text: format!("cannot write down what happens: {error}") });
            std::process::exit(1);
        }
        at
    }
}

/// What each process wrote, by its id.
pub(crate) type Records = BTreeMap<u32, Vec<Entry>>;

/// Reads all files of a directory.
pub(crate) fn read(directory: &Path) -> Result<Records, Failure> {
    let failure = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut records = Records::new();
    for file in std::fs::read_dir(directory).map_err(failure)? {
        let path = file.map_err(failure)?.path();
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        let Some(pid) = pid else { continue };
        let text = std::fs::read_to_string(&path).map_err(failure)?;
        let entries = entries(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        records.insert(pid, entries);
    }
    Ok(records)
}

/// The entries of a file; a line that a killed process did not finish is none.
fn entries(text: &str) -> Result<Vec<Entry>, serde_json::Error> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(serde_json::from_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_but_for_a_line_that_was_not_finished() {
        let directory = tempfile::tempdir().expect("a directory");
        let record = Record::create(directory.path()).expect("it opens");
        let called = Happened::Called { call: 1, write: Some(7) };
        let at = record.note("x/1", called.clone());
        let path = directory.path().join(format!("{}.jsonl", std::process::id()));
        let mut file = OpenOptions::new().append(true).open(path).expect("it is there");
        file.write_all(b"{\"at\":5,\"ent").expect("room");
        let records = read(directory.path()).expect("it is read");
        assert_eq!(records[&std::process::id()], [Entry { at, entity: "x/1".into(), what: called }]);
    }

    #[test]
    fn a_line_that_says_nothing_is_an_error() {
        assert!(entries("{\"at\":5}\n").is_err());
    }
}
