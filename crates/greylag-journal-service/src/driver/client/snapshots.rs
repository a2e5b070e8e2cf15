//! Snapshots, which are large and so sent by calls of their own, outside the session.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures::future::BoxFuture;
use greylag_persistence::{
    CloseError, Health, NewSnapshot, PersistenceId, SeqNr, Snapshot, SnapshotCaps, SnapshotCriteria, SnapshotError,
    SnapshotStore, StoreReturns, Timestamp,
};
use prost::Message;
use tonic::transport::Channel;

use super::super::link::describe;
use super::connection::Connection;
use crate::VERSION;
use crate::generated as proto;
use crate::generated::journal_service_client::JournalServiceClient;
use crate::settings::MAX_SNAPSHOT_MESSAGE_BYTES;
use crate::wire;

type SnapshotCall<T> = BoxFuture<'static, Result<tonic::Response<T>, tonic::Status>>;

/// The served snapshot store.
#[derive(Debug, Clone)]
pub struct ServiceSnapshots {
    pub(super) connection: Arc<Connection>,
}

impl Connection {
    fn snapshot_service(&self) -> JournalServiceClient<Channel> {
        JournalServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_SNAPSHOT_MESSAGE_BYTES)
    }

    /// Repeats a snapshot call until it is answered or its time is over; all snapshot calls are idempotent.
    async fn ask_snapshots<T>(
        &self,
        call: impl Fn(JournalServiceClient<Channel>) -> SnapshotCall<T>,
    ) -> Result<T, SnapshotError> {
        let give_up_at = Instant::now() + self.settings.snapshot_timeout;
        let mut backoff = self.settings.min_backoff;
        let unavailable = |cause: &str| SnapshotError::Unavailable(self.failure(cause));
        loop {
            if self.is_closed() {
                return Err(unavailable("the client was closed"));
            }
            let status = match tokio::time::timeout_at(give_up_at.into(), call(self.snapshot_service())).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => return Err(unavailable("no answer within snapshot_timeout")),
            };
            if Instant::now() + backoff >= give_up_at {
                let text = describe(&status);
                return Err(SnapshotError::Unavailable(self.failure(status).with_text(text)));
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(self.settings.max_backoff);
        }
    }
}

#[async_trait]
impl SnapshotStore for ServiceSnapshots {
    fn caps(&self) -> SnapshotCaps {
        self.connection.snapshot_caps
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        use proto::load_snapshot_response::Outcome;
        let connection = &self.connection;
        let request = proto::LoadSnapshotRequest {
            version: VERSION,
            persistence_id: id.as_str().to_owned(),
            criteria: Some(wire::from_criteria(criteria)),
        };
        let response = connection
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.load_snapshot(request).await })
            })
            .await?;
        match response.outcome {
            None => Ok(None),
            Some(Outcome::Snapshot(snapshot)) => wire::snapshot(snapshot)
                .map(Some)
                .map_err(|error| SnapshotError::Unavailable(connection.failure(error))),
            Some(Outcome::Failure(failure)) => Err(wire::snapshot_error(failure, &connection.name)),
        }
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        use proto::save_snapshot_response::Outcome;
        let connection = &self.connection;
        let (bytes, max) = (snapshot.payload.len(), connection.snapshot_caps.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        let snapshot = Some(wire::from_new_snapshot(snapshot));
        let request = proto::SaveSnapshotRequest { version: VERSION, snapshot };
        let (bytes, max) = (request.encoded_len(), MAX_SNAPSHOT_MESSAGE_BYTES);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        let response = connection
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.save_snapshot(request).await })
            })
            .await?;
        match response.outcome {
            Some(Outcome::Timestamp(timestamp)) => Ok(Timestamp::from_micros(timestamp)),
            Some(Outcome::Failure(failure)) => Err(wire::snapshot_error(failure, &connection.name)),
            None => Err(SnapshotError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        self.delete_by(id, proto::delete_snapshots_request::Which::SeqNr(seq_nr.as_u64())).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let criteria = wire::from_criteria(criteria);
        self.delete_by(id, proto::delete_snapshots_request::Which::Criteria(criteria)).await
    }

    fn health(&self) -> Health {
        self.connection.state.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.connection.state.store_returns)
    }

    /// Ends this client, for all its stores; the served store goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.connection.close().await
    }
}

impl ServiceSnapshots {
    async fn delete_by(
        &self,
        id: &PersistenceId,
        which: proto::delete_snapshots_request::Which,
    ) -> Result<(), SnapshotError> {
        let connection = &self.connection;
        let persistence_id = id.as_str().to_owned();
        let request = proto::DeleteSnapshotsRequest { version: VERSION, persistence_id, which: Some(which) };
        let response = connection
            .ask_snapshots(|mut service| {
                let request = request.clone();
                Box::pin(async move { service.delete_snapshots(request).await })
            })
            .await?;
        response.failure.map_or(Ok(()), |failure| Err(wire::snapshot_error(failure, &connection.name)))
    }
}
