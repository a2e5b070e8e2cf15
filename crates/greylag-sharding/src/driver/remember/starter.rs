//! The task that starts the remembered entities of a region again.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use greylag_core::EntityError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::driver::node::clock;
use crate::driver::region::shared::RegionInner;
use crate::ids::{EntityId, ShardId};
use crate::remember::starter::{Effect, Input, Starter};
use crate::settings::ShardingSettings;
use crate::start::StartEntityAck;

/// The future answer to one request: the shard that has the entity now, if known.
type Answered = Pin<Box<dyn Future<Output = Option<Input>> + Send>>;

/// See the module's description.
pub(crate) struct StarterTask {
    machine: Starter,
    retry_interval: Duration,
    inputs: UnboundedReceiver<Input>,
}

impl StarterTask {
    /// Makes the task, and the sender of its inputs. The task ends when the sender is dropped.
    pub(crate) fn new(settings: &ShardingSettings) -> (UnboundedSender<Input>, Self) {
        let (sender, inputs) = unbounded_channel();
        let machine = Starter::new(&settings.remember, settings.retry_interval);
        (sender, Self { machine, retry_interval: settings.retry_interval, inputs })
    }

    /// Runs until the region is gone.
    pub(crate) async fn run<M: Send + 'static>(mut self, shared: Weak<RegionInner<M>>) {
        let mut answers: FuturesUnordered<Answered> = FuturesUnordered::new();
        let mut effects = Vec::new();
        loop {
            let deadline = self.machine.next_deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                () = due => Some(Input::Tick),
                input = self.inputs.recv() => match input {
                    Some(input) => Some(input),
                    None => return,
                },
                Some(answer) = answers.next(), if !answers.is_empty() => answer,
            };
            // Ignore a refused request: its deadline repeats it.
            let Some(input) = input else { continue };
            self.machine.handle(clock::now(), input, &mut effects);
            let Some(shared) = shared.upgrade() else { return };
            for effect in effects.drain(..) {
                match effect {
                    Effect::Start { of, id } => answers.extend(ask(&shared, of, id, self.retry_interval)),
                    Effect::Moved { shard, generation, ids } => shared.entities_moved(&shard, generation, ids),
                }
            }
        }
    }
}

/// Asks the region to start an entity, like any user of the region; `None` if the region refuses at once.
fn ask<M: Send + 'static>(
    shared: &Arc<RegionInner<M>>,
    of: ShardId,
    id: EntityId,
    timeout: Duration,
) -> Option<Answered> {
    use greylag_transport::AskError;
    let asked = shared.begin_start(id.as_str(), timeout).ok()?;
    Some(Box::pin(async move {
        let by = match asked.await {
            Ok(ack) => ack.downcast::<StartEntityAck>().ok()?.shard,
            // The entity's shard knows the entity now, and starts it again by itself.
            Err(AskError::Entity(EntityError::StartFailed(_))) => of.clone(),
            Err(_) => return None,
        };
        Some(Input::Acked { of, id, by })
    }))
}
