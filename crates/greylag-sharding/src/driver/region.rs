//! The task of one region: deadlines, and whatever must not be done under the machine's lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_transport::Envelope;

use super::shared::{Deferred, Shared};
use crate::region::Input;

/// A region whose message type is forgotten.
pub(crate) trait AnyRegion: Send + Sync {
    /// Tells the machine.
    fn tell(&self, input: Input);
    /// Envelopes of the region that were never written.
    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>);
    /// For a typed handle.
    fn as_any(&self) -> &(dyn std::any::Any + Send + Sync);
}

impl<M: Send + 'static> AnyRegion for super::Region<M> {
    fn tell(&self, input: Input) {
        self.0.tell_later(input);
    }

    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>) {
        self.0.deferred.push_anyway(Deferred::HandedBack(node, envelopes));
    }

    fn as_any(&self) -> &(dyn std::any::Any + Send + Sync) {
        self
    }
}

/// Runs until the region's node is gone.
pub(crate) async fn run<M: Send + 'static>(shared: Arc<Shared<M>>) {
    let mut batch = VecDeque::new();
    let mut timer = pin!(tokio::time::sleep_until(Instant::now().into()));
    loop {
        let deadline = shared.deadline();
        if let Some(deadline) = deadline {
            timer.as_mut().reset(deadline.into());
        }
        poll_fn(|cx| {
            let told = shared.deferred.poll_take(cx, &mut batch).is_ready();
            let due = deadline.is_some() && timer.as_mut().poll(cx).is_ready();
            if told || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for deferred in batch.drain(..) {
            match deferred {
                Deferred::Input(input) => shared.input(input),
                Deferred::HandedBack(node, envelopes) => shared.handed_back(node, envelopes),
                Deferred::Coordinate(message) => {
                    if let Some(coordination) = shared.coordination.get() {
                        coordination.tell(shared.remoting().self_address().clone(), message);
                    }
                }
                Deferred::Rearm => {}
            }
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            shared.input(Input::Tick);
        }
    }
}
