//! The journal: appends, whose answers may be lost, and idempotent calls.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    Journal, Page, PersistenceId, ReadError, ReadRange, RejectReason, SeqNr, StoreFailure, StoreReturns, Timestamp,
    Under, WriterEpoch, WriterUuid,
};

use super::{Answered, Inner};
use crate::generated::{self as proto, answer, call};
use crate::settings::MAX_PAGE_BYTES;
use crate::wire;

/// The served journal, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceJournal {
    pub(super) inner: Arc<Inner>,
}

/// The error of an append that had an unanswered try: Fenced if the head proves it, and Unknown otherwise. A refusal
/// concerns the last try only, and an earlier one may have stored the append. Source: J10.
fn settle(error: AppendError, tried_before: bool, last: SeqNr, store: &str) -> AppendError {
    let unknown = |error: AppendError| {
        let cause = format!("an earlier try went unanswered, the last one said: {error}");
        AppendError::Unknown(StoreFailure::new(store, cause))
    };
    match error {
        error if !tried_before => error,
        // The events may have been stored and deleted since, so the head does not prove that they were not.
        AppendError::Fenced { current } if last <= current.deleted_to => unknown(AppendError::Fenced { current }),
        AppendError::Rejected(_) | AppendError::NotStored(_) | AppendError::Conflict { .. } => unknown(error),
        AppendError::Fenced { .. } | AppendError::Unknown(_) => error,
    }
}

impl Inner {
    /// A page of one history, of the journal or of a query side.
    pub(super) async fn read(&self, id: &PersistenceId, read: proto::Read) -> Result<Page, ReadError> {
        let read = proto::Read { max_bytes: read.max_bytes.min(MAX_PAGE_BYTES as u64), ..read };
        match self.ask(call::Call::Read(read)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Page(page) => {
                wire::page(id, page).map_err(|error| ReadError::Unavailable(self.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &self.name)),
            _ => Err(ReadError::Unavailable(self.other())),
        }
    }
}

#[async_trait]
impl Journal for ServiceJournal {
    fn caps(&self) -> Caps {
        self.inner.caps
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let inner = &self.inner;
        let claim = proto::Claim {
            persistence_id: id.as_str().to_owned(),
            writer_uuid: wire::from_writer_uuid(writer_uuid),
            under: Some(wire::from_under(under)),
        };
        match inner.ask(call::Call::Claim(claim)).await.map_err(ClaimError::Unavailable)? {
            answer::Answer::Claimed(claimed) => {
                let malformed = |error: wire::Malformed| ClaimError::Unavailable(inner.failure(error));
                Ok(Claim {
                    epoch: WriterEpoch::from_u64(claimed.epoch),
                    highest: wire::seq_nr(claimed.highest).map_err(malformed)?,
                    deleted_to: wire::seq_nr(claimed.deleted_to).map_err(malformed)?,
                })
            }
            answer::Answer::Failure(failure) => Err(wire::claim_error(failure, &inner.name)),
            _ => Err(ClaimError::Unavailable(inner.other())),
        }
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let inner = &self.inner;
        let advance = proto::Advance { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match inner.ask(call::Call::Advance(advance)).await.map_err(AdvanceError::Unavailable)? {
            answer::Answer::Done(proto::Done {}) => Ok(()),
            answer::Answer::Failure(failure) => Err(wire::advance_error(failure, &inner.name)),
            _ => Err(AdvanceError::Unavailable(inner.other())),
        }
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let inner = &self.inner;
        // Checked here as well, so that an append that is sure to be refused is not sent.
        append.check(&inner.caps).map_err(AppendError::Rejected)?;
        let last = append.last().unwrap_or(SeqNr::MAX);
        let call = call::Call::Append(wire::from_append(append));
        match inner.call(call, inner.settings.append_timeout).await {
            Answered::Answer { answer: answer::Answer::Appended(appended), .. } => {
                Ok(Appended { timestamp: Timestamp::from_micros(appended.timestamp) })
            }
            Answered::Answer { answer: answer::Answer::Failure(failure), tried_before } => {
                Err(settle(wire::append_error(failure, &inner.name), tried_before, last, &inner.name))
            }
            Answered::Answer { .. } => Err(AppendError::Unknown(inner.other())),
            Answered::TooLarge(why) => Err(AppendError::Rejected(RejectReason::Other(why))),
            Answered::NeverSent(failure) => Err(AppendError::NotStored(failure)),
            Answered::Unanswered(failure) => Err(AppendError::Unknown(failure)),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.inner.read(id, wire::from_read(id, range)).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let inner = &self.inner;
        let read = proto::ReadHead { persistence_id: id.as_str().to_owned() };
        match inner.ask(call::Call::Head(read)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Head(head) => {
                wire::head(head).map_err(|error| ReadError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &inner.name)),
            _ => Err(ReadError::Unavailable(inner.other())),
        }
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let inner = &self.inner;
        let delete = proto::DeleteTo { persistence_id: id.as_str().to_owned(), epoch: epoch.as_u64(), to: to.as_u64() };
        match inner.ask(call::Call::DeleteTo(delete)).await.map_err(DeleteError::Unavailable)? {
            answer::Answer::Deleted(deleted) => {
                wire::seq_nr(deleted.deleted_to).map_err(|error| DeleteError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::delete_error(failure, &inner.name)),
            _ => Err(DeleteError::Unavailable(inner.other())),
        }
    }

    fn health(&self) -> Health {
        self.inner.state.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.inner.state.store_returns)
    }

    /// Ends this client, for all its stores; the served journal goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenarios persistence 61 and 62.
    #[test]
    fn after_an_unanswered_try_only_ok_fenced_and_unknown_are_left() {
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
            assert_eq!(settle(error.clone(), false, last, "journal"), error);
            assert!(matches!(settle(error, true, last, "journal"), AppendError::Unknown(_)));
        }
        for error in [AppendError::Unknown(failure), fenced(4)] {
            assert_eq!(settle(error.clone(), true, last, "journal"), error);
        }
    }
}
