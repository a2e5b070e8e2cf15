//! The journal: appends, whose answers may be lost, and idempotent calls.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    Journal, Page, PersistenceId, ReadError, ReadRange, RejectReason, SeqNr, StoreFailure, StoreReturns, Timestamp,
    Under, WriterEpoch, WriterUuid,
};

use super::connection::{CallOutcome, Connection};
use crate::generated::{self as proto, answer, call};
use crate::wire;

/// The served journal, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceJournal {
    pub(super) connection: Arc<Connection>,
}

/// The error of an append that had an unanswered try: Fenced if the head proves it, and Unknown otherwise. A refusal
/// concerns the last try only, and an earlier one may have stored the append. Source: J10.
fn resolve_error(error: AppendError, tried_before: bool, last: SeqNr, store: &str) -> AppendError {
    let unknown = |error: AppendError| {
        let text = format!("an earlier try was not answered, the last one was refused: {error}");
        AppendError::Unknown(StoreFailure::new(store, error).with_text(text))
    };
    match error {
        error if !tried_before => error,
        // The events may have been stored and deleted since, so the head does not prove that they were not.
        AppendError::Fenced { current } if last <= current.deleted_to => unknown(AppendError::Fenced { current }),
        AppendError::Rejected(_) | AppendError::NotStored(_) | AppendError::Conflict { .. } => unknown(error),
        AppendError::Fenced { .. } | AppendError::Unknown(_) => error,
    }
}

#[async_trait]
impl Journal for ServiceJournal {
    fn caps(&self) -> Caps {
        self.connection.caps
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let connection = &self.connection;
        let claim = proto::Claim {
            persistence_id: id.as_str().to_owned(),
            writer_uuid: wire::from_writer_uuid(writer_uuid),
            under: Some(wire::from_under(under)),
        };
        match connection.ask(call::Call::Claim(claim)).await.map_err(ClaimError::Unavailable)? {
            answer::Answer::Claimed(claimed) => {
                let malformed = |error: wire::Malformed| ClaimError::Unavailable(connection.failure(error));
                Ok(Claim {
                    epoch: WriterEpoch::from_u64(claimed.epoch),
                    highest: wire::seq_nr(claimed.highest).map_err(malformed)?,
                    deleted_to: wire::seq_nr(claimed.deleted_to).map_err(malformed)?,
                })
            }
            answer::Answer::Failure(failure) => Err(wire::claim_error(failure, &connection.name)),
            _ => Err(ClaimError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let connection = &self.connection;
        let advance = proto::Advance { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match connection.ask(call::Call::Advance(advance)).await.map_err(AdvanceError::Unavailable)? {
            answer::Answer::Done(proto::Done {}) => Ok(()),
            answer::Answer::Failure(failure) => Err(wire::advance_error(failure, &connection.name)),
            _ => Err(AdvanceError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let connection = &self.connection;
        // Checked here as well, so that an append that is sure to be refused is not sent.
        append.check(&connection.caps).map_err(AppendError::Rejected)?;
        let last = append.last().unwrap_or(SeqNr::MAX);
        let call = call::Call::Append(wire::from_append(append));
        match connection.call(call, connection.settings.append_timeout).await {
            CallOutcome::Answer { answer: answer::Answer::Appended(appended), .. } => {
                Ok(Appended { timestamp: Timestamp::from_micros(appended.timestamp) })
            }
            CallOutcome::Answer { answer: answer::Answer::Failure(failure), tried_before } => {
                Err(resolve_error(wire::append_error(failure, &connection.name), tried_before, last, &connection.name))
            }
            CallOutcome::Answer { .. } => Err(AppendError::Unknown(connection.unexpected_answer())),
            CallOutcome::TooLarge(why) => Err(AppendError::Rejected(RejectReason::Other(why))),
            CallOutcome::NeverSent(failure) => Err(AppendError::NotStored(failure)),
            CallOutcome::Unanswered(failure) => Err(AppendError::Unknown(failure)),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.connection.read(id, wire::from_read(id, range)).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let connection = &self.connection;
        let read = proto::ReadHead { persistence_id: id.as_str().to_owned() };
        match connection.ask(call::Call::Head(read)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Head(head) => {
                wire::head(head).map_err(|error| ReadError::Unavailable(connection.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &connection.name)),
            _ => Err(ReadError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let connection = &self.connection;
        let delete = proto::DeleteTo { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match connection.ask(call::Call::DeleteTo(delete)).await.map_err(DeleteError::Unavailable)? {
            answer::Answer::Deleted(deleted) => {
                wire::seq_nr(deleted.deleted_to).map_err(|error| DeleteError::Unavailable(connection.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::delete_error(failure, &connection.name)),
            _ => Err(DeleteError::Unavailable(connection.unexpected_answer())),
        }
    }

    fn health(&self) -> Health {
        self.connection.state.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.connection.state.store_returns)
    }

    /// Ends this client, for all its stores; the served journal goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.connection.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenarios persistence 61 and 62.
    #[test]
    fn after_an_unanswered_try_only_ok_fenced_and_unknown_remain() {
        let last = SeqNr::from(5);
        let failure = StoreFailure::new("journal", "cause");
        let fenced = |deleted_to: u32| AppendError::Fenced {
            current: Head { deleted_to: deleted_to.into(), ..Head::default() },
        };
        for error in [
            AppendError::Rejected(RejectReason::StorageLow("full".into())),
            AppendError::NotStored(failure.clone()),
            AppendError::Conflict { highest: last },
            fenced(5),
        ] {
            assert_eq!(resolve_error(error.clone(), false, last, "journal"), error);
            assert!(matches!(resolve_error(error, true, last, "journal"), AppendError::Unknown(_)));
        }
        for error in [AppendError::Unknown(failure), fenced(4)] {
            assert_eq!(resolve_error(error.clone(), true, last, "journal"), error);
        }
    }
}
