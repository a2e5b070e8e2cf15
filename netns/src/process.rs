//! A node's process as seen by the scenario: the lines that it wrote, and signals to it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lab::{Failure, Lab};
use crate::node::Proof;
use crate::report::{At, Line, NodeEvent};

/// A node process, running or ended.
pub(crate) struct Node {
    /// The node's `host:port`, as other nodes name it.
    pub(crate) name: String,
    child: Child,
    orders: ChildStdin,
    lines: Arc<(Mutex<Vec<Line>>, Condvar)>,
}

/// The arguments with which a node is started.
pub(crate) struct Start<'a> {
    /// The namespace in which the process runs.
    pub(crate) namespace: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) seed: &'a str,
    pub(crate) proof: Proof,
    pub(crate) lease: Option<String>,
    pub(crate) stable_after: Duration,
    /// For a node that hosts entities: the database of their journal, and the directory of the records.
    pub(crate) entities: Option<(&'a str, &'a Path)>,
}

/// The default of `sbr.stable_after` (cluster S4).
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(20);

impl<'a> Start<'a> {
    /// A node on its own host.
    pub(crate) fn on(lab: &Lab, host: usize, seed: &'a str) -> Self {
        let (namespace, host) = (lab.namespace(host), Lab::address(host));
        Self::at(namespace, host, 17355, seed)
    }

    /// A node on host `to` under the address of host `of`.
    pub(crate) fn at_address_of(lab: &Lab, of: usize, to: usize, seed: &'a str) -> Self {
        Self { namespace: lab.namespace(to), ..Self::on(lab, of, seed) }
    }

    /// One of several nodes on host 0.
    pub(crate) fn beside(lab: &Lab, port: u16, seed: &'a str) -> Self {
        let (namespace, host) = (lab.namespace(0), "127.0.0.1".into());
        Self::at(namespace, host, port, seed)
    }

    fn at(namespace: String, host: String, port: u16, seed: &'a str) -> Self {
        let (proof, stable_after) = (Proof::Local, STABLE_AFTER);
        Self { namespace, host, port, seed, proof, lease: None, stable_after, entities: None }
    }

    /// Sets `proof_of_death`.
    pub(crate) fn proof(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// Sets the resolver's `stable_after`, and so the margin.
    pub(crate) fn stable_after(self, stable_after: Duration) -> Self {
        Self { stable_after, ..self }
    }

    /// Lets the singleton run under a lease in this database.
    pub(crate) fn lease(self, database: &str) -> Self {
        Self { lease: Some(database.to_owned()), ..self }
    }

    /// Hosts entities and runs clients in place of the singleton.
    pub(crate) fn entities(self, database: &'a str, directory: &'a Path) -> Self {
        Self { entities: Some((database, directory)), ..self }
    }

    /// Starts the process, and a thread that reads its lines.
    pub(crate) fn spawn(self) -> Result<Node, Failure> {
        let program = std::env::current_exe().map_err(|error| format!("no path to this program: {error}"))?;
        let port = self.port.to_string();
        let stable_after = self.stable_after.as_millis().to_string();
        let proof = format!("{:?}", self.proof).to_lowercase();
        let task = if self.entities.is_some() { "shard-node" } else { "node" };
        let entities = self.entities.map(|(database, directory)| {
            ["--database".as_ref(), database.as_ref(), "--directory".as_ref(), directory.as_os_str()]
        });
        // `ip netns exec` replaces itself by the node, so signals to the child's process id reach the node.
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .arg(program)
            .args([task, "--host", &self.host, "--port", &port, "--seed", self.seed, "--proof", &proof])
            .args(["--stable-after-ms", &stable_after])
            .args(self.lease.iter().flat_map(|database| ["--lease", database]))
            .args(entities.into_iter().flatten())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a node: {error}"))?;
        let lines = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let out = child.stdout.take().ok_or("the node has no standard output")?;
        let orders = child.stdin.take().ok_or("the node has no standard input")?;
        let heard = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(line) = serde_json::from_str(&line) {
                    heard.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    heard.1.notify_all();
                }
            }
        });
        Ok(Node { name: format!("{}:{}", self.host, self.port), child, orders, lines })
    }
}

impl Node {
    /// All lines that the node has written.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lines that the node wrote at `since` or later.
    pub(crate) fn lines_since(&self, since: At) -> Vec<Line> {
        self.lines().into_iter().filter(|line| line.at >= since).collect()
    }

    /// Waits until the node writes a wanted line at `since` or later, and returns the time of that line.
    pub(crate) fn wait(
        &self,
        what: &str,
        since: At,
        timeout: Duration,
        wanted: impl Fn(&NodeEvent) -> bool,
    ) -> Result<At, Failure> {
        let deadline = Instant::now() + timeout;
        let mut lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = lines.iter().find(|line| line.at >= since && wanted(&line.what)) {
                return Ok(line.at);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last: Vec<_> =
                    lines.iter().filter(|line| line.what != NodeEvent::SingletonWorks).rev().take(6).collect();
                return Err(format!("{}: {what}: not within {timeout:?}; it last said {last:?}", self.name));
            }
            lines = self.lines.1.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the node has reported `count` Up members.
    pub(crate) fn wait_up(&self, count: usize) -> Result<(), Failure> {
        let wanted = |what: &NodeEvent| *what == NodeEvent::Up { count };
        self.wait(&format!("{count} Up"), At::EPOCH, Duration::from_secs(60), wanted).map(drop)
    }

    /// The process id, which also names the node's record file.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order to the node; see [`crate::sharded`].
    pub(crate) fn order(&mut self, order: &str) -> Result<(), Failure> {
        writeln!(self.orders, "{order}").map_err(|error| format!("{}: cannot be told to {order}: {error}", self.name))
    }

    /// Kills the process (SIGKILL), as a crash would.
    pub(crate) fn kill(&mut self) -> Result<At, Failure> {
        let at = At::now();
        self.child.kill().map_err(|error| format!("cannot kill {}: {error}", self.name))?;
        self.child.wait().map_err(|error| format!("cannot wait for {}: {error}", self.name))?;
        Ok(at)
    }

    /// Waits until the process has ended by itself, so that the kernel has closed its sockets.
    pub(crate) fn wait_gone(&mut self, timeout: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                outcome => return Err(format!("{}: its process does not end: {outcome:?}", self.name)),
            }
        }
    }

    /// Stops all threads of the process (SIGSTOP).
    pub(crate) fn pause(&self) -> Result<At, Failure> {
        let at = At::now();
        self.signal("STOP").map(|()| at)
    }

    /// Resumes the process (SIGCONT).
    pub(crate) fn resume(&self) -> Result<At, Failure> {
        let at = At::now();
        self.signal("CONT").map(|()| at)
    }

    fn signal(&self, signal: &str) -> Result<(), Failure> {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            outcome => Err(format!("cannot send {signal} to {}: {outcome:?}", self.name)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}
