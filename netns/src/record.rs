//! The records of a scenario's processes: the calls and answers of clients, and the instances of entities.
//!
//! Each process has its own file with a line of JSON per entry, written at once, so that the entries of a killed
//! process are kept. A call is written before it is sent, and an answer after it arrived, both with the time: the
//! recorded duration of a call is never shorter than the real one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::lab::Failure;
use crate::report::At;

/// One line of a record file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The time of the entry.
    pub(crate) at: At,
    /// Type and id of the entity.
    pub(crate) entity: String,
    /// The recorded event.
    #[serde(flatten)]
    pub(crate) what: RecordedEvent,
}

/// An event of an entity or a call, as observed by one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(crate) enum RecordedEvent {
    /// A client is about to write this value, or to read if there is none.
    Called { call: u64, write: Option<u64> },
    /// The call was answered with the version (count of writes), and a read also with the value.
    Answered { call: u64, version: u64, value: Option<u64> },
    /// The call ended with an error, which tells whether the command may have run.
    Failed { call: u64, may_have_run: bool, error: String },
    /// An instance starts, in a process and under a generation of its shard.
    Started { life: u64, pid: u32, generation: String },
    /// The instance handles a message.
    Worked { life: u64 },
    /// The instance has ended.
    Stopped { life: u64 },
    /// All values written to the entity, in order, requested at `since` after all clients had ended.
    Logged { since: At, values: Vec<u64> },
}

/// The record file of this process.
pub(crate) struct Record(Mutex<File>);

impl Record {
    /// Creates this process's file in the directory.
    pub(crate) fn create(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(format!("{}.jsonl", std::process::id()));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        file.map(|file| Self(Mutex::new(file))).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes an entry with the current time, and returns that time.
    pub(crate) fn note(&self, entity: &str, what: RecordedEvent) -> At {
        let at = At::now();
        let entry = Entry { at, entity: entity.to_owned(), what };
        let written = serde_json::to_vec(&entry).map_err(std::io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        if let Err(error) = written {
            // End the process: a history with missing entries would be judged wrongly.
            crate::node::tell(crate::report::NodeEvent::Note {
                text: format!("cannot write down what happens: {error}"),
            });
            std::process::exit(1);
        }
        at
    }
}

/// The entries of each process, by process id.
pub(crate) type Records = BTreeMap<u32, Vec<Entry>>;

/// Reads all record files of a directory.
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

/// The entries of a file, without a last line that a killed process left unfinished.
fn entries(text: &str) -> Result<Vec<Entry>, serde_json::Error> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(serde_json::from_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_without_an_unfinished_last_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let record = Record::create(directory.path()).expect("it opens");
        let called = RecordedEvent::Called { call: 1, write: Some(7) };
        let at = record.note("x/1", called.clone());
        let path = directory.path().join(format!("{}.jsonl", std::process::id()));
        let mut file = OpenOptions::new().append(true).open(path).expect("it is there");
        file.write_all(b"{\"at\":5,\"ent").expect("room");
        let records = read(directory.path()).expect("it is read");
        assert_eq!(records[&std::process::id()], [Entry { at, entity: "x/1".into(), what: called }]);
    }

    #[test]
    fn an_unreadable_line_is_an_error() {
        assert!(entries("{\"at\":5}\n").is_err());
    }
}
