//! The storefront under attack: its processes, its load, and its verdict.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::NodeAddress;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::report::say;
use crate::{Failure, Secrets};

/// One node of the storefront.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) address: NodeAddress,
    pub(crate) pid: u32,
    /// The node is in the storefront's main process, which serves the journal to the others.
    pub(crate) keeps_journal: bool,
    /// The address of the node's admin service.
    pub(crate) admin: String,
}

/// The running storefront.
pub(crate) struct Shop {
    pub(crate) nodes: Vec<Node>,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// The purchases file that the storefront comes with.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/storefront/cdnow_purchases.csv");
/// Node processes beside the storefront's main process.
const PROCESSES: usize = 3;
/// The time limit for the storefront's start, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The purchases to make; the file is deleted when this value is dropped.
pub(crate) struct Purchases {
    file: NamedTempFile,
    count: u64,
}

impl Purchases {
    /// Writes `count` purchases: the first tenth of that number again and again. All customers then exist when the
    /// attack begins, so the load gives the nodes' memory no further reason to grow.
    pub(crate) fn read(count: usize) -> Result<Self, Failure> {
        let all = std::fs::read_to_string(FILE).map_err(|error| format!("cannot read {FILE}: {error}"))?;
        let (header, purchases) = all.split_once('\n').ok_or_else(|| format!("{FILE} has no purchases"))?;
        let first: Vec<&str> = purchases.lines().take(count.div_ceil(10)).collect();
        let chosen: Vec<&str> = first.into_iter().cycle().take(count).collect();
        let mut file = NamedTempFile::new()?;
        writeln!(file, "{header}\n{}", chosen.join("\n"))?;
        Ok(Self { file, count: chosen.len() as u64 })
    }
}

impl Shop {
    /// Starts the storefront so that its purchases last for `seconds`, and waits until its nodes are up.
    pub(crate) async fn open(
        program: &Path,
        secrets: Option<&Arc<Secrets>>,
        stock: &Purchases,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let pace = (stock.count / seconds.max(1)).max(1).to_string();
        let mut command = Command::new(program);
        command.arg("--input").arg(stock.file.path());
        command.args(["--plain", "--kill", "none", "--management", "--pace", &pace]);
        if let Some(secrets) = secrets {
            let files = [
                ("--tls-key", &secrets.files.key),
                ("--tls-cert", &secrets.files.cert),
                ("--tls-ca", &secrets.files.ca),
            ];
            for (flag, file) in files {
                command.arg(flag).arg(file);
            }
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut child = spawned.map_err(|error| {
            format!("cannot start {}: {error}; build it with `cargo build -p storefront`", program.display())
        })?;
        let pid = child.id().ok_or("the storefront ended at once")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no way to hear the storefront")?).lines();
        let mut shop = Self { nodes: Vec::new(), child, lines };
        let up = async {
            while shop.nodes.len() <= PROCESSES {
                let line = shop.lines.next_line().await?.ok_or("the storefront ended before its nodes were up")?;
                shop.nodes.extend(node_in(&line, pid));
            }
            Ok::<(), Failure>(())
        };
        tokio::time::timeout(PATIENCE, up).await.map_err(|_| "the storefront's nodes did not come up")??;
        Ok(shop)
    }

    /// Waits until the storefront has ended; returns its output since the start.
    pub(crate) async fn end(&mut self, patience: Duration) -> Result<String, Failure> {
        let mut said = String::new();
        let ending = async {
            while let Some(line) = self.lines.next_line().await? {
                said.push_str(&line);
                said.push('\n');
            }
            Ok::<_, Failure>(self.child.wait().await?)
        };
        let status = tokio::time::timeout(patience, ending).await;
        say(&said);
        let status = status.map_err(|_| "the storefront did not end")??;
        if status.success() { Ok(said) } else { Err(format!("the storefront ended with {status}").into()) }
    }
}

/// The node that a line of the storefront's output announces.
fn node_in(line: &str, own_pid: u32) -> Option<Node> {
    let rest = line.strip_prefix("node ")?;
    let (address, rest) = rest.split_once(' ')?;
    let address = address.parse().ok()?;
    if let Some((_, told)) = rest.split_once("(this process) can be asked: greylag --address ") {
        return Some(Node { address, pid: own_pid, keeps_journal: true, admin: told.split(' ').next()?.to_owned() });
    }
    let (pid, admin) = rest.strip_prefix("runs as process ")?.split_once(", admin service at ")?;
    Some(Node { address, pid: pid.parse().ok()?, keeps_journal: false, admin: admin.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_storefront_name_its_nodes() {
        let own = node_in("node 127.0.0.1:40001 (this process) can be asked: greylag --address 127.0.0.1:5 members", 7);
        assert_eq!(
            own.map(|node| (node.address.port(), node.pid, node.admin)),
            Some((40001, 7, "127.0.0.1:5".to_owned()))
        );
        let other = node_in("node 127.0.0.1:40002 runs as process 12, admin service at 127.0.0.1:6", 7);
        assert_eq!(other.map(|node| (node.address.port(), node.pid)), Some((40002, 12)));
        assert!(node_in("purchases 12 of 100", 7).is_none());
    }
}
