//! The node processes: this same program, started as a child for each node.
//!
//! A child writes one line of JSON per message to its standard output, and ends when its standard input
//! closes, so that no child outlives its parent, even if the parent is killed.

use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The messages of a child to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeReport {
    /// The child's node is an Up member, at this address.
    Up {
        /// `host:port`.
        address: String,
        /// The address of the admin service, if the node offers one.
        admin: Option<String>,
    },
    /// The progress of the sale, sent repeatedly by the selling process, and once more at the end.
    Sold(Sales),
    /// The counters, in answer to [`NodeCommand::Count`].
    Counted {
        /// Count of purchases that were delivered again after they had been applied.
        suppressed: u64,
    },
}

/// The figures of one run of the selling process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sales {
    /// Count of confirmed purchases, including those of earlier runs.
    pub(crate) confirmed: u64,
    /// Count of frames that were sent again.
    pub(crate) sent_again: u64,
    /// The longest time in which the process waited for confirmations and got none.
    pub(crate) longest_silence: Duration,
    /// The longest time from sending a purchase to its confirmation.
    pub(crate) slowest_purchase: Duration,
    /// Every purchase of the file is confirmed.
    pub(crate) is_over: bool,
}

/// The orders of a parent to its child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeCommand {
    /// Answer with [`NodeReport::Counted`].
    Count,
    /// Leave the cluster in order, then end.
    Leave,
}

/// A running node process.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    /// `host:port` of the member.
    pub(crate) address: String,
    /// The address of the admin service.
    pub(crate) admin: Option<String>,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl NodeProcess {
    /// Starts a node process and waits until it is a member.
    ///
    /// # Errors
    /// A text, if the program cannot be started or the child ended before it was Up.
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
        match process.next_report().await? {
            NodeReport::Up { address, admin } => (process.address, process.admin) = (address, admin),
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

    /// Whether the process has ended already, for example because an operator used `greylag leave` or `greylag down`.
    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Asks the process for its counters; zero for a process that has ended, whose counters are lost.
    pub(crate) async fn count(&mut self) -> Result<u64, String> {
        if self.has_ended() {
            return Ok(0);
        }
        self.send_command(NodeCommand::Count).await?;
        match self.next_report().await? {
            NodeReport::Counted { suppressed } => Ok(suppressed),
            other => Err(format!("{} answered {other:?}", self.address)),
        }
    }

    /// Lets the node leave the cluster in order, and waits until the process has ended.
    pub(crate) async fn leave(mut self) -> Result<(), String> {
        if self.has_ended() {
            return Ok(());
        }
        self.send_command(NodeCommand::Leave).await?;
        let status = self.child.wait().await.map_err(|error| format!("{}: {error}", self.address))?;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", self.address)) }
    }

    async fn send_command(&mut self, what: NodeCommand) -> Result<(), String> {
        let mut line = serde_json::to_string(&what).expect("a plain enum is JSON");
        line.push('\n');
        self.input.write_all(line.as_bytes()).await.map_err(|error| format!("{} is gone: {error}", self.address))
    }

    /// The next message of the child. The future may be dropped without losing a message.
    pub(crate) async fn next_report(&mut self) -> Result<NodeReport, String> {
        let line = self.output.next_line().await.map_err(|error| format!("{}: {error}", self.address))?;
        let line = line.ok_or_else(|| format!("node process {} ended early", self.pid()))?;
        serde_json::from_str(&line).map_err(|error| format!("a node process said {line:?}: {error}"))
    }
}
