//! Requests of users to the coordinator, and whether they are answered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::region::{self, Answer, Request};

use super::{Application, MS, World};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Requests that are not completely answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    drawn: u64,
    /// By node, its region's incarnation, and number: the awaited shards, and the deadline of the end.
    open: BTreeMap<(usize, u64, u64), (BTreeSet<ShardId>, Duration)>,
}

impl<A: Application> World<A> {
    /// Lets a user of the node stop some shards.
    pub(super) fn stop_shards(&mut self, node: usize) {
        let mut shards = BTreeSet::new();
        for shard in 0..self.shards {
            if self.chance(0.5) {
                shards.insert(ShardId::from_index(shard));
            }
        }
        self.requests.drawn += 1;
        let number = self.requests.drawn;
        let incarnation = self.nodes[node].region.id().incarnation;
        self.requests.open.insert((node, incarnation, number), (shards.clone(), self.net.now() + TIMEOUT + 100 * MS));
        let request = Request::StopShards(shards);
        self.tell(node, region::Input::Request { number, request, timeout: TIMEOUT });
    }

    pub(super) fn on_request_answer(&mut self, node: usize, number: u64, answer: &Answer) {
        let incarnation = self.nodes[node].region.id().incarnation;
        let key = (node, incarnation, number);
        let Some((awaited, _)) = self.requests.open.get_mut(&key) else {
            return self.fail(format!("n{node}: {answer:?} to a request that has ended"));
        };
        match answer {
            Answer::ShardsStopped(stopped) => {
                let strange = stopped.iter().find(|shard| !awaited.remove(shard)).cloned();
                if let Some(shard) = strange {
                    self.fail(format!("n{node}: shard {shard} has stopped for request {number}, which had not asked"));
                }
            }
            Answer::CurrentRegions(_) => self.fail(format!("n{node}: nothing has asked for {answer:?}")),
            Answer::Ended(region::RequestEnd::Complete) if !awaited.is_empty() => {
                let awaited = awaited.clone();
                self.fail(format!("n{node}: request {number} is complete without {awaited:?}"));
            }
            Answer::Ended(_) => drop(self.requests.open.remove(&key)),
        }
    }

    /// Checks that every request has ended in time, unless its process ended first.
    pub(super) fn check_requests(&mut self) {
        let now = self.net.now();
        let lost = self.requests.open.iter().find(|((node, incarnation, _), (_, end))| {
            let node = &self.nodes[*node];
            node.alive && node.region.id().incarnation == *incarnation && *end < now
        });
        if let Some(((node, _, number), (awaited, _))) = lost {
            let what = format!("n{node}: request {number} has not ended, {awaited:?} are awaited");
            self.fail(what);
        }
    }
}
