//! A journal behind a guard.

use async_trait::async_trait;

use super::{Attempt, Direction, Guard, Guarded, NoAnswer, of_read, reserved_id};
use crate::contract::breaker::Breakers;
use crate::contract::driver::journal_store::Journal;
use crate::contract::driver::store_returns::StoreReturns;
use crate::contract::error::{AdvanceError, AppendError, ClaimError, CloseError, DeleteError, ReadError, StoreFailure};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Append, Appended, Caps, Health, Page, ReadRange};
use crate::contract::records::event::{SeqNr, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;

impl<J: Journal + ?Sized> Guarded<J> {
    fn of_journal(&self) -> &Guard {
        self.probed_by(
            |journal| Box::pin(async move { journal.head(&reserved_id()).await.err().as_ref().and_then(of_read) }),
            J::store_returns,
        )
    }
}

#[async_trait]
impl<J: Journal + ?Sized> Journal for Guarded<J> {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let failure_of = |error: &ClaimError| match error {
            ClaimError::Unavailable(failure) => Some(failure.clone()),
            ClaimError::Fenced { .. } | ClaimError::Corrupt(_) => None,
        };
        let call = self.inner.claim(id, writer_uuid, under);
        self.of_journal().ask(Direction::Write, call, failure_of, ClaimError::Unavailable).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let failure_of = |error: &AdvanceError| match error {
            AdvanceError::Unavailable(failure) => Some(failure.clone()),
            AdvanceError::Fenced { .. } | AdvanceError::NotEmpty { .. } => None,
        };
        let call = self.inner.advance(id, epoch, to);
        self.of_journal().ask(Direction::Write, call, failure_of, AdvanceError::Unavailable).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let id = append.id.clone();
        let attempt = Attempt { id: &id, writer_uuid: append.writer_uuid, number: append.first.as_u64() };
        let last = append.last().unwrap_or(append.first);
        let failure_of = |error: &AppendError| match error {
            AppendError::NotStored(failure) | AppendError::Unknown(failure) => Some(failure.clone()),
            AppendError::Rejected(_) | AppendError::Fenced { .. } | AppendError::Conflict { .. } => None,
        };
        let answer =
            self.of_journal().run(Direction::Write, Some(attempt), self.inner.append(append), failure_of).await;
        let in_doubt = self.guard.is_in_doubt(attempt);
        match answer {
            Ok(Err(AppendError::Unknown(failure))) | Err(NoAnswer::TimedOut(failure)) => {
                self.guard.note(attempt);
                Err(AppendError::Unknown(failure))
            }
            Err(NoAnswer::NotSent(failure)) if in_doubt => Err(AppendError::Unknown(failure)),
            Err(NoAnswer::NotSent(failure)) => Err(AppendError::NotStored(failure)),
            Ok(Ok(appended)) => {
                self.guard.settle(&id);
                Ok(appended)
            }
            // The head proves that the append is not stored, whatever the outcome of an earlier try.
            Ok(Err(AppendError::Fenced { current })) if current.retains(last) => {
                self.guard.settle(&id);
                Err(AppendError::Fenced { current })
            }
            Ok(Err(refusal)) if in_doubt => {
                let text = format!("an earlier try was not answered, this one was refused: {refusal}");
                Err(AppendError::Unknown(StoreFailure::new("journal", refusal).with_text(text)))
            }
            Ok(refusal) => refusal,
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let call = self.inner.read(id, range);
        self.of_journal().ask(Direction::Read, call, of_read, ReadError::Unavailable).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let call = self.inner.head(id);
        self.of_journal().ask(Direction::Read, call, of_read, ReadError::Unavailable).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let failure_of = |error: &DeleteError| match error {
            DeleteError::Unavailable(failure) => Some(failure.clone()),
            DeleteError::Fenced { .. } => None,
        };
        let call = self.inner.delete_to(id, epoch, to);
        self.of_journal().ask(Direction::Write, call, failure_of, DeleteError::Unavailable).await
    }

    fn health(&self) -> Health {
        self.guard.health(self.inner.health())
    }

    fn breakers(&self) -> Option<Breakers> {
        Some(self.breakers())
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.guard.store_returns)
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.guard.end_probes();
        self.inner.close().await
    }
}
