//! Asynchronous work of a shard's entities: futures, and closures for the blocking pool.
//!
//! Each piece of work runs as a task of its own, and its result comes through the shard's control inbox, which is never
//! sealed; the work ends with its incarnation.
//!
//! Source: sharding §4.3.

use std::any::Any;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use tokio::task::AbortHandle;

use crate::driver::node::blocking::JobHandle;
use crate::driver::node::services::Node;
use crate::driver::shard::control_item::Control;
use crate::held::Held;
use crate::host::{Resumption, Work};
use crate::inbox::Inbox;
use crate::machine::shard::SlotId;

/// The work under way, to be cancelled with its incarnation.
#[derive(Default)]
pub(in crate::driver) struct Works(BTreeMap<SlotId, Vec<Begun>>);

impl Works {
    /// Begins work of an incarnation, which may be suspended until its end. The result comes by `control`.
    pub(in crate::driver) fn begin<M: Send + 'static>(
        &mut self,
        node: &Node,
        control: Arc<Inbox<Control<M>>>,
        (slot, incarnation): (SlotId, u64),
        (work, suspension): (Work<M>, bool),
    ) {
        let done = move |result: Result<Option<Resumption<M>>, String>| {
            let told = match result {
                // The work has answered somewhere else: the entity gets nothing.
                Ok(None) => return,
                Ok(Some(resumption)) => Control::Resumed { slot, incarnation, resumption, suspension },
                Err(reason) if suspension => Control::Broken { slot, incarnation, reason },
                Err(reason) => return tracing::debug!(reason, "spawned work of an entity failed"),
            };
            control.push_anyway(told);
        };
        let begun = match work {
            Work::Future(future) => {
                let report = Report::new(done);
                let task = node.runtime.spawn(async move {
                    report.tell(AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panic_text(&*panic)));
                });
                Begun::Task(task.abort_handle())
            }
            Work::Blocking(run) => {
                let (runs, run) = (node.running.begin(), Held::new(run));
                Begun::Blocking(node.blocking.run(move || {
                    // Nothing cancels a closure that has begun, not even the end of its shard.
                    let _until_it_ends = runs;
                    done(catch_unwind(AssertUnwindSafe(run.into_inner())).map_err(|panic| panic_text(&*panic)));
                }))
            }
        };
        let works = self.0.entry(slot).or_default();
        works.retain(|work| !work.is_over());
        works.push(begun);
    }

    /// Cancels the work of the incarnation in a slot.
    pub(in crate::driver) fn cancel(&mut self, slot: SlotId) {
        self.0.remove(&slot).into_iter().flatten().for_each(Begun::cancel);
    }
}

/// Work of an entity that was begun.
enum Begun {
    Task(AbortHandle),
    /// On the blocking pool; given up when this is dropped.
    Blocking(JobHandle),
}

impl Begun {
    fn is_over(&self) -> bool {
        match self {
            Self::Task(task) => task.is_finished(),
            Self::Blocking(job) => job.is_over(),
        }
    }

    fn cancel(self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}

/// Reports the outcome of a future to its shard, even if the future is dropped before its end: the entity would wait
/// for ever.
struct Report<R, F: FnOnce(Result<R, String>)>(Option<F>, PhantomData<fn(R)>);

impl<R, F: FnOnce(Result<R, String>)> Report<R, F> {
    fn new(done: F) -> Self {
        Self(Some(done), PhantomData)
    }

    fn tell(mut self, result: Result<R, String>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl<R, F: FnOnce(Result<R, String>)> Drop for Report<R, F> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err("its future was dropped before it was done".to_owned()));
        }
    }
}

/// The text of a panic.
pub(in crate::driver) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".to_owned())
}
