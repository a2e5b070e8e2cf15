//! The node processes: this same program, started as a child for each node.
//!
//! A child speaks on its standard output, one JSON line a fact, and ends when its standard input
//! closes, so that no child survives its parent, whatever becomes of that.

use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// What a child tells its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// It is a member that is Up, at this address.
    Up {
        /// `host:port`.
        address: String,
        /// Where its admin service listens, if it offers one.
        admin: Option<String>,
    },
    /// How far the sale is. Said again and again by the process that sells, and once more at its end.
    Sold(Sales),
    /// What it counted so far.
    Counted {
        /// Deliveries of purchases that were applied already.
        suppressed: u64,
    },
}

/// What one life of the process that sells has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sales {
    /// Purchases that are confirmed, those of earlier lives among them.
    pub(crate) confirmed: u64,
    /// Frames that were transmitted again.
    pub(crate) sent_again: u64,
    /// The longest time in which it waited for confirmations and heard nothing.
    pub(crate) longest_silence: Duration,
    /// The longest way of one purchase, from being sent to being confirmed.
    pub(crate) slowest_purchase: Duration,
    /// Every purchase of the file is confirmed.
    pub(crate) is_over: bool,
}

/// What a parent tells its child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tell {
    /// Say what you counted.
    Count,
    /// Leave the cluster in order, then end.
    Leave,
}

/// One running node process.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    /// `host:port` of the member.
    pub(crate) address: String,
    /// Where its admin service listens.
    pub(crate) admin: Option<String>,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl NodeProcess {
    /// Starts a node process and waits until it is a member.
    ///
    /// # Errors
    /// In words: the program cannot be started, or the child ended before it was Up.
    pub(crate) async fn start(arguments: &[String]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut child = Command::new(program)
            .arg("node")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start a node process: {error}"))?;
        let input = child.stdin.take().expect("piped above");
        let output = BufReader::new(child.stdout.take().expect("piped above")).lines();
        let mut process = Self { address: String::new(), admin: None, child, input, output };
        match process.hear().await? {
            Told::Up { address, admin } => (process.address, process.admin) = (address, admin),
            other => return Err(format!("a node process began with {other:?}")),
        }
        Ok(process)
    }

    /// The process id, for messages to people.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Ends the process outright (SIGKILL): nothing is flushed, no other node is told.
    pub(crate) async fn kill(mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|error| format!("cannot kill {}: {error}", self.address))
    }

    /// Whether an operator has ended it already, by `greylag leave` or `greylag down`.
    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Asks the process for its counters. Those of a process that has ended are gone with it.
    pub(crate) async fn count(&mut self) -> Result<u64, String> {
        if self.has_ended() {
            return Ok(0);
        }
        self.tell(Tell::Count).await?;
        match self.hear().await? {
            Told::Counted { suppressed } => Ok(suppressed),
            other => Err(format!("{} answered {other:?}", self.address)),
        }
    }

    /// Lets it leave the cluster in order, and waits for its end.
    pub(crate) async fn leave(mut self) -> Result<(), String> {
        if self.has_ended() {
            return Ok(());
        }
        self.tell(Tell::Leave).await?;
        let status = self.child.wait().await.map_err(|error| format!("{}: {error}", self.address))?;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", self.address)) }
    }

    async fn tell(&mut self, what: Tell) -> Result<(), String> {
        let mut line = serde_json::to_string(&what).expect("a plain enum is JSON");
        line.push('\n');
        self.input.write_all(line.as_bytes()).await.map_err(|error| format!("{} is gone: {error}", self.address))
    }

    /// The next thing that it tells. May be dropped without losing anything.
    pub(crate) async fn hear(&mut self) -> Result<Told, String> {
        let line = self.output.next_line().await.map_err(|error| format!("{}: {error}", self.address))?;
        let line = line.ok_or_else(|| format!("node process {} ended early", self.pid()))?;
        serde_json::from_str(&line).map_err(|error| format!("a node process said {line:?}: {error}"))
    }
}
