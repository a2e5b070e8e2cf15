//! The reference to a singleton, by which a node sends to it, asks it, and sees whether it runs here.

use std::any::type_name;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{ReplyTo, UniqueAddress};
use tokio::sync::watch;

use super::error::{SingletonAskError, SingletonSendError};
use super::port::Port;
use crate::driver::handle::cluster::Cluster;
use crate::settings::SingletonSettings;

/// A future answer; dropping it releases the ask.
pub type SingletonAnswer<R> = Pin<Box<dyn Future<Output = Result<R, SingletonAskError>> + Send>>;

/// A singleton, seen from this node. Cheap to clone.
pub struct SingletonRef<M: Send + 'static> {
    pub(in crate::driver) name: Arc<str>,
    pub(in crate::driver) settings: Arc<SingletonSettings>,
    pub(in crate::driver) cluster: Cluster,
    pub(in crate::driver) running: watch::Receiver<bool>,
    /// `None` if the singleton takes no messages.
    pub(in crate::driver) port: Option<Arc<Port<M>>>,
}

impl<M: Send + 'static> SingletonRef<M> {
    /// Sends a message to the instance, wherever it runs. While the node of the instance is not known the message is
    /// kept, and dropped if too many are kept (`singleton_proxy.buffer_size`). A message is handled at most once;
    /// messages of one task are handled in the order sent while the instance does not move. Never blocks.
    ///
    /// # Errors
    /// [`SingletonSendError`]: the message was not taken.
    pub fn tell(&self, message: M) -> Result<(), SingletonSendError> {
        match &self.port {
            Some(port) => port.tell(message),
            None => Ok(()),
        }
    }

    /// Sends a question and waits for its answer. The message leaves when this is called, not when the future is first
    /// polled, so it keeps its place among the task's other messages.
    ///
    /// # Errors
    /// The future resolves to a [`SingletonAskError`] unless the instance replied in time.
    pub fn ask<R: Send + 'static>(
        &self,
        message: impl FnOnce(ReplyTo<R>) -> M,
        timeout: Duration,
    ) -> SingletonAnswer<R> {
        let begun = match &self.port {
            Some(port) => port.begin_ask(message, timeout),
            None => Err(SingletonSendError::NotFound.into()),
        };
        let singleton = self.name.to_string();
        Box::pin(async move {
            use greylag_transport::AskError as Transport;
            let asked = begun?;
            let node = asked.address.node;
            match asked.answer.await {
                Ok(answer) => answer.downcast::<R>().map(|answer| *answer).map_err(|_| {
                    let (type_name, cause) = (type_name::<R>().to_owned(), "the answer is of another type".to_owned());
                    SingletonAskError::Transport(Transport::Codec { type_name, node, cause })
                }),
                Err(Transport::Timeout(timeout)) => {
                    Err(SingletonAskError::Timeout { singleton, message_type: type_name::<M>(), timeout })
                }
                Err(Transport::Entity(error)) => Err(SingletonAskError::Instance(error)),
                Err(Transport::Dropped(reason)) => Err(SingletonAskError::Dropped(reason)),
                Err(other) => Err(SingletonAskError::Transport(other)),
            }
        })
    }

    /// The singleton's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that hosts the instance, or will once its predecessors are settled, as far as this node can tell.
    pub fn host(&self) -> Option<UniqueAddress> {
        let view = self.cluster.view();
        let role = self.settings.proxy.role.as_ref().or(self.settings.role.as_ref());
        view.oldest(role.map(String::as_str)).map(|member| member.address.clone())
    }

    /// The node that has confirmed that it runs the instance, so that messages go there at once. `None` while messages
    /// are kept, and always for a singleton that takes no messages.
    pub fn identified(&self) -> Option<UniqueAddress> {
        self.port.as_ref().and_then(|port| port.identified())
    }

    /// Whether the instance runs on this node.
    pub fn is_running_here(&self) -> bool {
        *self.running.borrow()
    }

    /// A receiver that follows [`SingletonRef::is_running_here`].
    pub fn running_here(&self) -> watch::Receiver<bool> {
        self.running.clone()
    }
}

impl<M: Send + 'static> Clone for SingletonRef<M> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            settings: self.settings.clone(),
            cluster: self.cluster.clone(),
            running: self.running.clone(),
            port: self.port.clone(),
        }
    }
}

impl<M: Send + 'static> fmt::Debug for SingletonRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingletonRef").field("name", &self.name).field("host", &self.host()).finish_non_exhaustive()
    }
}
