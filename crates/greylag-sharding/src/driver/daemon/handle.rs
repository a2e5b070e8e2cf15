//! The handle to a daemon process: reads and changes its number of workers.

use std::time::Duration;

use greylag_cluster::{SingletonAskError, SingletonRef};

use super::command::Command;
use crate::machine::daemon::{Answer, NumberOfProcesses, Question};
use crate::settings::ShardingSettings;

/// Why the number of workers was not changed, or is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonError {
    /// Another change is under way, or came first. This change had no lasting effect; ask again later.
    #[error("the number of processes is being changed already")]
    RescaleInProgress,
    /// The number is out of range. Nothing was done.
    #[error("there must be from 1 to {most} processes, and not {asked}")]
    OutOfRange {
        /// The requested number.
        asked: u32,
        /// The setting `number_of_shards` of the manager's node.
        most: u32,
    },
    /// Too many questions wait for a manager that has just begun. Nothing was done; ask again later.
    #[error("too many questions wait for the manager of the processes")]
    Busy,
    /// The manager did not answer. A change may have begun, and is then completed, even if the manager fails.
    #[error(transparent)]
    Manager(#[from] SingletonAskError),
}

/// A handle to a daemon process. Cheap to clone; dropping it stops nothing.
#[derive(Debug, Clone)]
pub struct DaemonProcesses {
    manager: SingletonRef<Command>,
    patience: Duration,
    rescale_patience: Duration,
}

impl DaemonProcesses {
    pub(super) fn new(manager: SingletonRef<Command>, settings: &ShardingSettings) -> Self {
        // The previous workers may take as long as a handoff to stop, and the record is written and read twice.
        let record = settings.updating_state_timeout + settings.waiting_for_state_timeout;
        Self { manager, patience: settings.ask_timeout, rescale_patience: settings.handoff_timeout + 2 * record }
    }

    /// Changes the number of workers. Completes once the previous workers have stopped; the new workers start after
    /// that. The same number again changes nothing.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn change_number_of_processes(&self, count: u32) -> Result<(), DaemonError> {
        match self.ask(Question::Change(count), self.rescale_patience).await? {
            Answer::Changed | Answer::Number(_) => Ok(()),
            Answer::RescaleInProgress => Err(DaemonError::RescaleInProgress),
            Answer::OutOfRange { most } => Err(DaemonError::OutOfRange { asked: count, most }),
            Answer::Busy => Err(DaemonError::Busy),
        }
    }

    /// The number of workers, when and by which revision it was set, and whether it is being changed.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn number_of_processes(&self) -> Result<NumberOfProcesses, DaemonError> {
        match self.ask(Question::Number, self.patience).await? {
            Answer::Number(number) => Ok(number),
            _ => Err(DaemonError::Busy),
        }
    }

    async fn ask(&self, question: Question, patience: Duration) -> Result<Answer, SingletonAskError> {
        self.manager.ask(|reply_to| Command { question, reply_to }, patience).await
    }
}
