//! The control runtime and the data runtime of a transport.

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::BindError;
use crate::lanes::lane::Lane;
use crate::settings::TransportSettings;

/// Handles of the two runtimes.
pub(crate) struct Runtimes {
    control: Handle,
    data: Handle,
}

impl Runtimes {
    pub(crate) fn new(control: &Threads, data: &Threads) -> Self {
        Self { control: control.handle().clone(), data: data.handle().clone() }
    }

    /// The runtime of control streams and everything that must not wait for user messages.
    pub(crate) fn control(&self) -> &Handle {
        &self.control
    }

    /// The runtime of data streams and the decoding of messages.
    pub(crate) fn data(&self) -> &Handle {
        &self.data
    }

    /// The runtime of the streams of a lane.
    pub(crate) fn of(&self, lane: Lane) -> &Handle {
        if lane == Lane::CONTROL { &self.control } else { &self.data }
    }
}

/// A runtime that, dropped, ends all its tasks without waiting: it may be dropped within a task, where tokio does not
/// allow waiting for a runtime's threads.
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// The control runtime and the data runtime.
    pub(crate) fn start_both(settings: &TransportSettings) -> Result<(Self, Self), BindError> {
        let control = Self::start("greylag-control", settings.control_threads)?;
        Ok((control, Self::start("greylag-data", settings.data_threads)?))
    }

    pub(crate) fn start(name: &str, threads: usize) -> Result<Self, BindError> {
        let built = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build();
        Ok(Self(Some(built.map_err(BindError::Threads)?)))
    }
}

impl std::ops::Deref for Threads {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken out by its drop alone")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
