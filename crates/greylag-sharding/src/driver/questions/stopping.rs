//! Shards that a user is stopping.

use std::collections::{BTreeSet, VecDeque};

use crate::driver::questions::requests::Answers;
use crate::ids::ShardId;
use crate::machine::region::{Answer, RequestEnd};

/// Why shards were not stopped, or are not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopShardsError {
    /// The type remembers its entities: its shards would start again at once. Nothing was stopped.
    #[error("the entity type remembers its entities, so its shards are not stopped")]
    NotAllowedWithRememberEntities,
    /// These shards did not stop within `handoff_timeout`, or no coordinator answered. They may stop later; ask again.
    #[error("{} shards have not stopped in time", .0.len())]
    TimedOut(BTreeSet<ShardId>),
    /// Nodes disagree about the entity type, and this node's region is refused. Nothing was stopped.
    #[error("the region is refused: nodes disagree about the entity type")]
    Refused,
    /// The region has stopped meanwhile. The shards may stop nevertheless.
    #[error("the region has stopped")]
    RegionStopped,
}

/// Shards that are being stopped, see [`Region::stop_shards`](crate::Region::stop_shards).
#[derive(Debug)]
pub struct StoppingShards {
    waiting: BTreeSet<ShardId>,
    stopped: VecDeque<ShardId>,
    answers: Answers,
    is_over: bool,
}

impl StoppingShards {
    pub(crate) fn new(waiting: BTreeSet<ShardId>, answers: Answers) -> Self {
        Self { waiting, stopped: VecDeque::new(), answers, is_over: false }
    }

    /// The next shard that has stopped; `None` after the last one, or after an error.
    ///
    /// # Errors
    /// [`StopShardsError`], once: nothing follows.
    pub async fn next(&mut self) -> Option<Result<ShardId, StopShardsError>> {
        loop {
            if let Some(shard) = self.stopped.pop_front() {
                self.waiting.remove(&shard);
                return Some(Ok(shard));
            }
            if self.is_over {
                return None;
            }
            match self.answers.recv().await {
                Some(Answer::ShardsStopped(shards)) => self.stopped.extend(shards),
                Some(Answer::CurrentRegions(_)) => {}
                Some(Answer::Ended(why)) => {
                    self.is_over = true;
                    return self.error(why).map(Err);
                }
                // The region is gone, and no more answers come.
                None => {
                    self.is_over = true;
                    return Some(Err(StopShardsError::RegionStopped));
                }
            }
        }
    }

    /// Waits until all shards have stopped.
    ///
    /// # Errors
    /// [`StopShardsError`].
    pub async fn all(mut self) -> Result<(), StopShardsError> {
        while let Some(told) = self.next().await {
            told?;
        }
        Ok(())
    }

    fn error(&mut self, why: RequestEnd) -> Option<StopShardsError> {
        Some(match why {
            RequestEnd::Complete => return None,
            RequestEnd::TimedOut | RequestEnd::NoCoordinator => {
                StopShardsError::TimedOut(std::mem::take(&mut self.waiting))
            }
            RequestEnd::NotAllowedWithRememberEntities => StopShardsError::NotAllowedWithRememberEntities,
            RequestEnd::Refused => StopShardsError::Refused,
            RequestEnd::RegionStopped => StopShardsError::RegionStopped,
        })
    }
}
