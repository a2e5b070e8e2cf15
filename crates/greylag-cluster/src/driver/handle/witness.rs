//! Two witnesses of deaths: a parent that waits for its child, and a file of dead addresses.
//!
//! A witness's report counts as proof (cluster S20 (c)), so each witness reports only what it knows: the parent once
//! the kernel has given it the exit status of its child, the file once it holds a whole line.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use greylag_core::UniqueAddress;
use tokio::process::Child;

use crate::detector::dead_list::{DeadList, DeadListError};
use crate::driver::future::BoxFuture;

/// Bytes read at once.
const PIECE: u64 = 64 * 1024;

/// A witness of deaths, such as an orchestrator or a supervisor, that knows of them before the network does.
///
/// Its report counts as proof (cluster S20 case c): the member is removed at once, and what it ran starts elsewhere
/// without a margin. A wrong report results in two writers.
pub trait DeathWitness: Send + 'static {
    /// The next process that has certainly ended; `None` when the witness will report no more.
    fn next_death(&mut self) -> BoxFuture<'_, Option<UniqueAddress>>;
}

/// A supervisor that waits for the end of its child process.
///
/// The child must be the node itself, not a shell around it, and must tell its unique address, say on its standard
/// output: the address without the uid is not enough, since another process may take it over.
///
/// Source: cluster S20 (c).
#[derive(Debug)]
pub struct ChildWitness {
    address: UniqueAddress,
    child: Option<Child>,
}

impl ChildWitness {
    /// Waits for `child`, which runs the node `address`. If the witness is dropped before, the child ends or stays as
    /// `child` was set up ([`kill_on_drop`](tokio::process::Command::kill_on_drop)).
    pub fn new(child: Child, address: UniqueAddress) -> Self {
        Self { address, child: Some(child) }
    }
}

impl DeathWitness for ChildWitness {
    fn next_death(&mut self) -> BoxFuture<'_, Option<UniqueAddress>> {
        Box::pin(async move {
            let ended = self.child.as_mut()?.wait().await;
            self.child = None;
            match ended {
                Ok(status) => {
                    tracing::warn!(node = %self.address, %status, "the child process has ended");
                    Some(self.address.clone())
                }
                Err(error) => {
                    tracing::error!(node = %self.address, %error, "it is unknown whether the child process runs");
                    None
                }
            }
        })
    }
}

/// A file of dead processes, to which a supervisor or an operator appends; see
/// [`DeadList`](crate::DeadList) for its lines.
///
/// The file may be missing until the first death. A file that was cut short or replaced is read from its beginning: a
/// death that is reported twice changes nothing.
///
/// Source: cluster S20 (c).
#[derive(Debug)]
pub struct FileWitness {
    path: PathBuf,
    poll_interval: Duration,
    list: DeadList,
    offset: u64,
    identity: Option<u64>,
    /// Why the file could not be read at the last try, so that this is logged once.
    trouble: Option<ErrorKind>,
    found: VecDeque<Result<UniqueAddress, DeadListError>>,
}

impl FileWitness {
    /// A witness that reads the file every 200 ms.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            poll_interval: Duration::from_millis(200),
            list: DeadList::new(),
            offset: 0,
            identity: None,
            trouble: None,
            found: VecDeque::new(),
        }
    }

    /// Sets the pause between reads.
    #[must_use]
    pub fn with_poll_interval(mut self, poll_interval: Duration) -> Self {
        self.poll_interval = poll_interval;
        self
    }

    /// The next entry of the list.
    ///
    /// # Errors
    /// A line that names no process; the next call continues after it.
    pub async fn next(&mut self) -> Result<UniqueAddress, DeadListError> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return found;
            }
            if !self.look().await {
                tokio::time::sleep(self.poll_interval).await;
            }
        }
    }

    /// Reads new content. True if there was any. State changes only after the wait, so a caller that stops waiting
    /// loses nothing.
    async fn look(&mut self) -> bool {
        let (path, offset, identity) = (self.path.clone(), self.offset, self.identity);
        let reading = tokio::task::spawn_blocking(move || read_on(&path, offset, identity));
        let piece = match reading.await {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => {
                if error.kind() != ErrorKind::NotFound && self.trouble != Some(error.kind()) {
                    tracing::error!(path = %self.path.display(), %error, "cannot read the death list");
                }
                self.trouble = Some(error.kind());
                return false;
            }
            Err(_runtime_ends) => return false,
        };
        self.trouble = None;
        if piece.from_start {
            self.list = DeadList::new();
            self.offset = 0;
        }
        self.identity = piece.identity;
        self.offset += piece.bytes.len() as u64;
        let mut found = Vec::new();
        self.list.read(&piece.bytes, &mut found);
        self.found.extend(found);
        !piece.bytes.is_empty()
    }
}

impl DeathWitness for FileWitness {
    fn next_death(&mut self) -> BoxFuture<'_, Option<UniqueAddress>> {
        Box::pin(async move {
            loop {
                match self.next().await {
                    Ok(address) => return Some(address),
                    Err(error) => {
                        tracing::error!(path = %self.path.display(), %error, "malformed line in the death list");
                    }
                }
            }
        })
    }
}

struct Piece {
    bytes: Vec<u8>,
    from_start: bool,
    identity: Option<u64>,
}

fn read_on(path: &Path, offset: u64, known: Option<u64>) -> std::io::Result<Piece> {
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    let identity = identity(&metadata);
    let from_start = metadata.len() < offset || identity != known;
    file.seek(SeekFrom::Start(if from_start { 0 } else { offset }))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok(Piece { bytes, from_start, identity })
}

/// The number that distinguishes a file from the one that replaced it.
#[cfg(unix)]
fn identity(metadata: &std::fs::Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(metadata.ino())
}

#[cfg(not(unix))]
fn identity(_metadata: &std::fs::Metadata) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// cluster S20 (c).
    #[tokio::test]
    async fn a_parent_says_that_its_child_has_ended_and_not_before() {
        let mut command = tokio::process::Command::new("sh");
        let mut child = command.args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut witness = ChildWitness::new(child, "a:1#2".parse().unwrap());
        let early = tokio::time::timeout(Duration::from_millis(50), witness.next_death()).await;
        assert!(early.is_err(), "it runs");
        drop(stdin);
        assert_eq!(witness.next_death().await, Some("a:1#2".parse().unwrap()));
        assert_eq!(witness.next_death().await, None, "a process dies once");
    }

    /// cluster S20 (c).
    #[tokio::test]
    async fn a_file_may_be_missing_grow_hold_nonsense_and_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grows");
        let mut witness = FileWitness::new(&path).with_poll_interval(Duration::from_millis(5));
        assert!(tokio::time::timeout(Duration::from_millis(50), witness.next()).await.is_err(), "there is no file");
        append(&path, "a:1#2\nnonsense\nb:1#");
        assert_eq!(witness.next().await, Ok("a:1#2".parse().unwrap()));
        assert!(matches!(witness.next().await, Err(DeadListError::Malformed { line: 2, .. })));
        append(&path, "3\n");
        assert_eq!(witness.next().await, Ok("b:1#3".parse().unwrap()));
        std::fs::write(&path, "c:1#4\n").unwrap();
        assert_eq!(witness.next().await, Ok("c:1#4".parse().unwrap()), "cut short, and longer than nothing");
        let other = path.with_extension("new");
        std::fs::write(&other, "# the list of today\nnonsense\nd:1#5\n").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(witness.next_death().await, Some("d:1#5".parse().unwrap()), "nonsense is logged and passed over");
    }
}
