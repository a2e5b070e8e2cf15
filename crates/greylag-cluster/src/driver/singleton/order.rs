//! The order to the node's task to run a singleton.

use std::sync::Arc;

use tokio::sync::watch;

use super::instance::JobFactory;
use crate::settings::SingletonSettings;

/// The driver's order to run a singleton.
pub(crate) struct StartSingleton {
    pub(crate) name: Arc<str>,
    pub(crate) settings: SingletonSettings,
    pub(crate) factory: JobFactory,
    pub(crate) running: watch::Sender<bool>,
}
