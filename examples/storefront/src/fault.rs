//! The fault during the sale: one node is killed outright, and later replaced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag::cluster::MembershipView;
use tokio::task::JoinHandle;

use crate::customer::ROLE;
use crate::processes::NodeProcess;
use crate::progress::Progress;
use crate::run::Shop;
use crate::{Failure, Kill, RunArguments};

/// The time limit for a new node to get its share of the shards, also on a busy machine.
const SHARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The planned fault, and its stage.
pub(crate) struct FaultInjection {
    kill: Kill,
    /// When to kill, in per cent of the purchases that are confirmed.
    kill_at: u8,
    purchases: u64,
    stage: Stage,
    told: String,
}

enum Stage {
    Waiting,
    Killed { address: String, at: Instant },
    Replacing { starting: JoinHandle<Result<NodeProcess, String>> },
    Done,
}

impl FaultInjection {
    /// The plan for a sale of `purchases` purchases.
    pub(crate) fn new(arguments: &RunArguments, purchases: usize) -> Self {
        let told = "no node was killed".to_owned();
        let purchases = purchases as u64;
        Self { kill: arguments.kill, kill_at: arguments.kill_at, purchases, stage: Stage::Waiting, told }
    }

    /// Takes the next step if it is due, without waiting for the cluster.
    pub(crate) async fn advance(
        &mut self,
        shop: &mut Shop,
        confirmed: u64,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let due = self.kill != Kill::None && confirmed >= self.purchases * u64::from(self.kill_at) / 100;
        match &mut self.stage {
            Stage::Waiting if due => {
                self.kill_one(shop, progress).await?;
            }
            Stage::Killed { address, at } if !is_member(&shop.node.cluster().view(), address) => {
                let took = at.elapsed().as_secs_f64();
                progress.say(&format!("{address} is removed after {took:.2} s; a new node starts"));
                self.told.push_str(&format!(", removed after {took:.2} s and replaced"));
                let command_line = match self.kill {
                    Kill::Producer => shop.sellers_command_line(),
                    _ => shop.command_line(),
                };
                let starting = tokio::spawn(async move { NodeProcess::start(&command_line).await });
                self.stage = Stage::Replacing { starting };
            }
            Stage::Replacing { starting } if starting.is_finished() => {
                let process = starting.await??;
                progress.say(&format!("node {} runs as process {}", process.address, process.pid()));
                match self.kill {
                    Kill::Producer => shop.take_seller(process),
                    _ => shop.processes.push(process),
                }
                self.stage = Stage::Done;
            }
            _ => {}
        }
        Ok(())
    }

    async fn kill_one(&mut self, shop: &mut Shop, progress: &Progress) -> Result<(), Failure> {
        let victim = match self.kill {
            Kill::Producer => shop.seller.take(),
            _ => self.victim(shop).map(|index| shop.processes.remove(index)),
        };
        let Some(victim) = victim else { return Ok(()) };
        let address = victim.address.clone();
        let what = match self.kill {
            Kill::Coordinator => "the coordinator's node",
            Kill::Producer => "the node that sells",
            Kill::Region | Kill::None => "the node with most shards",
        };
        progress.say(&format!("killing {address} (process {}), {what}", victim.pid()));
        self.told = format!("{address}, {what}, was killed at {} % of the purchases", self.kill_at);
        self.stage = Stage::Killed { address, at: Instant::now() };
        victim.kill().await?;
        Ok(())
    }

    /// The index of the process to kill; `None` while no other node that hosts customers is a member.
    fn victim(&self, shop: &Shop) -> Option<usize> {
        let coordinator = shop.node.cluster().view().oldest(Some(ROLE))?.address.address().to_string();
        if self.kill == Kill::Coordinator {
            return shop.processes.iter().position(|process| process.address == coordinator);
        }
        let homes: BTreeMap<_, _> =
            shop.region.shard_homes().iter().map(|(node, shards)| (node.address().to_string(), *shards)).collect();
        let others = shop.processes.iter().enumerate().filter(|(_, process)| process.address != coordinator);
        others.max_by_key(|(_, process)| homes.get(&process.address).copied().unwrap_or(0)).map(|(index, _)| index)
    }

    /// Takes the remaining steps, until the new node has started and has its share of the shards.
    ///
    /// # Errors
    /// A text, if that takes longer than `SHARE_TIMEOUT`.
    pub(crate) async fn settle(&mut self, shop: &mut Shop, progress: &Progress) -> Result<(), Failure> {
        if self.kill == Kill::None {
            return Ok(());
        }
        let begun = Instant::now();
        let kill = self.kill;
        let is_settled = |shop: &Shop| kill == Kill::Producer || newest_has_its_share(shop);
        while !(matches!(self.stage, Stage::Done) && is_settled(shop)) {
            if begun.elapsed() > SHARE_TIMEOUT {
                return Err(format!("the new node has not got its share within {SHARE_TIMEOUT:?}").into());
            }
            self.advance(shop, u64::MAX, progress).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if let Some(process) = shop.processes.last().filter(|_| self.kill != Kill::Producer) {
            progress.say(&format!("node {} has its share; shards by node: {}", process.address, spread(shop)));
        }
        Ok(())
    }

    /// A sentence on the fault, for the report.
    pub(crate) fn summary(self) -> String {
        self.told
    }
}

fn is_member(view: &MembershipView, address: &str) -> bool {
    view.members.iter().any(|member| member.address.address().to_string() == address)
}

/// Whether the newest node hosts four fifths of an equal share, rounded down to whole shards; with fewer shards than
/// nodes, zero shards are enough.
fn newest_has_its_share(shop: &Shop) -> bool {
    let homes = shop.region.shard_homes();
    let total: usize = homes.values().sum();
    let newest = shop.processes.last().map(|process| process.address.as_str());
    let hosted = homes.iter().find(|(node, _)| Some(node.address().to_string().as_str()) == newest);
    hosted.map_or(0, |(_, shards)| *shards) >= total * 4 / (shop.processes.len() * 5)
}

fn spread(shop: &Shop) -> String {
    let homes = shop.region.shard_homes();
    homes.iter().map(|(node, shards)| format!("{}:{shards}", node.address().port())).collect::<Vec<_>>().join(" ")
}
