//! Offsets of projections. Every call is idempotent; the server checks the fence.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{CloseError, Health, OffsetCaps, OffsetError, OffsetStore, OwnedSlices, Position, Processed};

use super::connection::Connection;
use crate::generated::{self as proto, answer, call};
use crate::wire;

/// The served offset store, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceOffsets {
    pub(super) connection: Arc<Connection>,
    pub(super) caps: OffsetCaps,
}

impl ServiceOffsets {
    async fn ask(&self, call: call::Call) -> Result<answer::Answer, OffsetError> {
        match self.connection.ask(call).await.map_err(OffsetError::Unavailable)? {
            answer::Answer::Failure(failure) => Err(wire::offset_error(failure, &self.connection.name)),
            answer => Ok(answer),
        }
    }

    /// A call that answers only that it is done.
    async fn execute(&self, call: call::Call) -> Result<(), OffsetError> {
        match self.ask(call).await? {
            answer::Answer::Done(proto::Done {}) => Ok(()),
            _ => Err(OffsetError::Unavailable(self.connection.unexpected_answer())),
        }
    }

    fn malformed(&self, error: wire::Malformed) -> OffsetError {
        OffsetError::Unavailable(self.connection.failure(error))
    }
}

#[async_trait]
impl OffsetStore for ServiceOffsets {
    fn caps(&self) -> OffsetCaps {
        self.caps
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        let (first, last) = ((*slices.start()).into(), (*slices.end()).into());
        let claim = proto::ClaimSlices { projection: projection.to_owned(), first, last };
        match self.ask(call::Call::ClaimSlices(claim)).await? {
            answer::Answer::Owned(owned) => wire::owned(owned).map_err(|error| self.malformed(error)),
            _ => Err(OffsetError::Unavailable(self.connection.unexpected_answer())),
        }
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let (first, last) = ((*slices.start()).into(), (*slices.end()).into());
        let mut all: Vec<Processed> = Vec::new();
        loop {
            let after = all.last().map(wire::from_processed);
            let load = proto::LoadOffsets { projection: projection.to_owned(), first, last, after };
            let answer::Answer::Offsets(page) = self.ask(call::Call::LoadOffsets(load)).await? else {
                return Err(OffsetError::Unavailable(self.connection.unexpected_answer()));
            };
            let more = page.more && !page.processed.is_empty();
            for processed in page.processed {
                all.push(wire::processed(processed).map_err(|error| self.malformed(error))?);
            }
            if !more {
                return Ok(all);
            }
        }
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let (owned, processed) = (Some(wire::from_owned(owned)), processed.iter().map(wire::from_processed).collect());
        self.execute(call::Call::SaveOffsets(proto::SaveOffsets { owned, processed })).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        let (owned, before) = (Some(wire::from_owned(owned)), Some(wire::from_position(position)));
        self.execute(call::Call::ForgetOffsets(proto::ForgetOffsets { owned, before })).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        self.execute(call::Call::ResetOffsets(wire::from_owned(owned))).await
    }

    fn health(&self) -> Health {
        self.connection.state.health()
    }

    /// Ends this client, for all its stores; the served store goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.connection.close().await
    }
}
