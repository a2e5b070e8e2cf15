//! The runtimes on which tasks of sharding run.
//!
//! Source: sharding §4.1 (`entity_dispatcher`), §7 (`use_dispatcher`).

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::error::InvalidSetting;
use crate::ids::EntityTypeName;
use crate::settings::Dispatcher;

/// The runtimes of a node.
pub(crate) struct Dispatchers {
    shared: Handle,
    /// Prefix of thread names.
    prefix: String,
    named: Mutex<BTreeMap<String, Handle>>,
}

/// A runtime as used by one entity type. Threads that belong to the type end with this value.
pub(crate) struct Threads {
    handle: Handle,
    own: Option<Runtime>,
}

impl Threads {
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Do not wait for the threads: the last handle may be dropped by one of them.
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

impl Dispatchers {
    pub(crate) fn new(shared: Handle, prefix: String) -> Self {
        Self { shared, prefix, named: Mutex::default() }
    }

    /// Registers a runtime of the program under a name.
    pub(crate) fn add(&self, name: String, handle: Handle) {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).insert(name, handle);
    }

    /// The runtime that `dispatcher` names, for a type.
    ///
    /// # Errors
    /// The name is unknown, or its threads did not start.
    pub(crate) fn of(
        &self,
        key: &'static str,
        dispatcher: &Dispatcher,
        entity_type: &EntityTypeName,
    ) -> Result<Threads, InvalidSetting> {
        let refused = |reason| InvalidSetting { key, value: format!("{:?}", dispatcher.to_string()), reason };
        match dispatcher {
            Dispatcher::Shared => Ok(Threads { handle: self.shared.clone(), own: None }),
            Dispatcher::Named(name) => {
                let named = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
                let handle = named.ok_or_else(|| refused("no runtime of this name was given to add_dispatcher"))?;
                Ok(Threads { handle, own: None })
            }
            Dispatcher::Dedicated(threads) => {
                let name = format!("{}-{entity_type}", self.prefix);
                let built =
                    Builder::new_multi_thread().worker_threads(threads.get()).thread_name(name).enable_all().build();
                let own = built.map_err(|error| {
                    tracing::error!(%error, %entity_type, "the threads of an entity type did not start");
                    refused("its threads did not start")
                })?;
                Ok(Threads { handle: own.handle().clone(), own: Some(own) })
            }
        }
    }
}

/// Aborts a task when its waiting future is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a future on another runtime, for as long as the returned future is polled. A panic is passed to the caller.
pub(crate) fn on_runtime<F>(runtime: &Handle, future: F) -> impl Future<Output = F::Output> + Send + use<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    let task = runtime.spawn(future);
    let ends = AbortOnDrop(task.abort_handle());
    async move {
        let _ends_with_this = ends;
        match task.await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime was shut down, and the task will not end.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
