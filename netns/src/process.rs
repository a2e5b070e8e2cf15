//! A node's process, from outside: what it has said so far, and the signals that break it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lab::{Failure, Lab};
use crate::node::Proof;
use crate::report::{At, Line, What};

/// A node that runs, or has ended.
pub(crate) struct Node {
    /// `host:port`, as other nodes name it.
    pub(crate) name: String,
    child: Child,
    orders: ChildStdin,
    said: Arc<(Mutex<Vec<Line>>, Condvar)>,
}

/// How a node is started.
pub(crate) struct Start<'a> {
    /// In which namespace.
    pub(crate) namespace: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) seed: &'a str,
    pub(crate) proof: Proof,
    pub(crate) lease: Option<String>,
    pub(crate) stable_after: Duration,
    /// If it hosts entities: the database that keeps their journal, and the directory of the files it writes.
    pub(crate) entities: Option<(&'a str, &'a Path)>,
}

/// The default of the product (cluster S4).
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(20);

impl<'a> Start<'a> {
    /// A node on a host of its own.
    pub(crate) fn on(lab: &Lab, host: usize, seed: &'a str) -> Self {
        let (namespace, host) = (lab.namespace(host), Lab::address(host));
        Self::at(namespace, host, 17355, seed)
    }

    /// A node on host `to` that has the address of host `of`.
    pub(crate) fn at_address_of(lab: &Lab, of: usize, to: usize, seed: &'a str) -> Self {
        Self { namespace: lab.namespace(to), ..Self::on(lab, of, seed) }
    }

    /// One of several nodes on the same host.
    pub(crate) fn beside(lab: &Lab, port: u16, seed: &'a str) -> Self {
        let (namespace, host) = (lab.namespace(0), "127.0.0.1".into());
        Self::at(namespace, host, port, seed)
    }

    fn at(namespace: String, host: String, port: u16, seed: &'a str) -> Self {
        let (proof, stable_after) = (Proof::Local, STABLE_AFTER);
        Self { namespace, host, port, seed, proof, lease: None, stable_after, entities: None }
    }

    /// With another rule of proof.
    pub(crate) fn proof(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// With another patience of the resolver, and so another margin.
    pub(crate) fn stable_after(self, stable_after: Duration) -> Self {
        Self { stable_after, ..self }
    }

    /// With its singleton under a lease in this database.
    pub(crate) fn lease(self, database: &str) -> Self {
        Self { lease: Some(database.to_owned()), ..self }
    }

    /// With entities and clients in place of the singleton.
    pub(crate) fn entities(self, database: &'a str, directory: &'a Path) -> Self {
        Self { entities: Some((database, directory)), ..self }
    }

    /// Starts it.
    pub(crate) fn spawn(self) -> Result<Node, Failure> {
        let program = std::env::current_exe().map_err(|error| format!("no path to this program: {error}"))?;
        let port = self.port.to_string();
        let stable_after = self.stable_after.as_millis().to_string();
        let proof = format!("{:?}", self.proof).to_lowercase();
        let task = if self.entities.is_some() { "shard-node" } else { "node" };
        let entities = self.entities.map(|(database, directory)| {
            ["--database".as_ref(), database.as_ref(), "--directory".as_ref(), directory.as_os_str()]
        });
        // `ip netns exec` becomes the node, so signals to its process id reach the node itself.
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
        let said = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let out = child.stdout.take().ok_or("the node has no standard output")?;
        let orders = child.stdin.take().ok_or("the node has no standard input")?;
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(line) = serde_json::from_str(&line) {
                    heard.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    heard.1.notify_all();
                }
            }
        });
        Ok(Node { name: format!("{}:{}", self.host, self.port), child, orders, said })
    }
}

impl Node {
    /// Everything it has said.
    pub(crate) fn said(&self) -> Vec<Line> {
        self.said.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it said from a moment on.
    pub(crate) fn said_since(&self, since: At) -> Vec<Line> {
        self.said().into_iter().filter(|line| line.at >= since).collect()
    }

    /// Waits until it says such a thing, at `since` or later, and yields when that was.
    pub(crate) fn wait(
        &self,
        what: &str,
        since: At,
        patience: Duration,
        wanted: impl Fn(&What) -> bool,
    ) -> Result<At, Failure> {
        let deadline = Instant::now() + patience;
        let mut said = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = said.iter().find(|line| line.at >= since && wanted(&line.what)) {
                return Ok(line.at);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last: Vec<_> = said.iter().filter(|line| line.what != What::SingletonWorks).rev().take(6).collect();
                return Err(format!("{}: {what}: not within {patience:?}; it last said {last:?}", self.name));
            }
            said = self.said.1.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until it sees so many members Up.
    pub(crate) fn wait_up(&self, count: usize) -> Result<(), Failure> {
        let wanted = |what: &What| *what == What::Up { count };
        self.wait(&format!("{count} Up"), At::EPOCH, Duration::from_secs(60), wanted).map(drop)
    }

    /// Its process, which the files it writes are named for.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something; see [`crate::sharded`].
    pub(crate) fn order(&mut self, order: &str) -> Result<(), Failure> {
        writeln!(self.orders, "{order}").map_err(|error| format!("{}: cannot be told to {order}: {error}", self.name))
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) -> Result<At, Failure> {
        let at = At::now();
        self.child.kill().map_err(|error| format!("cannot kill {}: {error}", self.name))?;
        self.child.wait().map_err(|error| format!("cannot wait for {}: {error}", self.name))?;
        Ok(at)
    }

    /// Waits until its process is gone, and what it held with it.
    pub(crate) fn wait_gone(&mut self, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                outcome => return Err(format!("{}: its process does not end: {outcome:?}", self.name)),
            }
        }
    }

    /// Stops every thread of it.
    pub(crate) fn pause(&self) -> Result<At, Failure> {
        let at = At::now();
        self.signal("STOP").map(|()| at)
    }

    /// Lets it go on.
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
