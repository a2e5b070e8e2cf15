//! The calls. Each answers from this node's own view.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use greylag_cluster::{Cluster, ClusterEvent, JoinError, MemberError, Target};
use greylag_core::{InvalidAddress, NodeAddress, UniqueAddress};
use greylag_transport::GrpcTransport;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::stopping::until_stopped;
use crate::admission::Admission;
use crate::condition::Condition;
use crate::delivery::Delivery;
use crate::shards::{Shards, ShardsError};
use crate::shown::Shown;
use crate::v1::management_server::Management;
use crate::{v1, wire};

/// Events that may wait for a slow watcher; when more come, the watcher is told that it lags.
const WATCH_BUFFER: usize = 64;

/// The service of one node.
pub(super) struct Service {
    allow_writes: bool,
    cluster: Cluster,
    transport: Arc<GrpcTransport>,
    stop: watch::Receiver<bool>,
    admission: Admission,
    shards: Shown<dyn Shards>,
    delivery: Shown<dyn Delivery>,
}

impl Service {
    pub(super) fn new(
        allow_writes: bool,
        cluster: Cluster,
        transport: Arc<GrpcTransport>,
        stop: watch::Receiver<bool>,
        shards: Shown<dyn Shards>,
        delivery: Shown<dyn Delivery>,
    ) -> Self {
        Self { allow_writes, cluster, transport, stop, admission: Admission::default(), shards, delivery }
    }

    /// Checks that changes are allowed. Every call that changes something calls this first.
    fn may_write(&self, what: &str) -> Result<(), Status> {
        if self.allow_writes {
            tracing::info!(node = %self.cluster.self_address(), "the admin service was asked to {what}");
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "{} does not {what} by this service: it is read-only; set management.allow_writes = true on the node to allow it",
            self.cluster.self_address().address()
        )))
    }

    /// The node's entity types; an error if the node has none.
    fn shards(&self) -> Result<&Arc<dyn Shards>, Status> {
        let node = self.cluster.self_address().address();
        self.shards.get().ok_or_else(|| Status::failed_precondition(format!("{node} runs no entities")))
    }

    async fn members_reply(&self) -> v1::MembersReply {
        let condition = Condition::of(&self.cluster).await;
        wire::members(&self.cluster.view(), &condition, self.transport.cluster_name())
    }

    /// Applies a command to the members that an address names; answers which these are.
    fn command(
        &self,
        address: &str,
        command: impl FnOnce(&Cluster, Target) -> Result<(), MemberError>,
    ) -> Result<Vec<String>, Status> {
        let target = target(address)?;
        let view = self.cluster.view();
        let names = |member: &UniqueAddress| match &target {
            Target::Incarnation(one) => member == one,
            Target::Address(all) => member.address() == all,
        };
        let members = view.members.iter().map(|member| &member.address).filter(|member| names(member));
        let reached = members.map(ToString::to_string).collect();
        command(&self.cluster, target).map_err(|error| Status::not_found(error.to_string()))?;
        Ok(reached)
    }
}

#[tonic::async_trait]
impl Management for Service {
    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn members(&self, _: Request<v1::MembersRequest>) -> Result<Response<v1::MembersReply>, Status> {
        let _call = self.admission.admit().await?;
        Ok(Response::new(self.members_reply().await))
    }

    async fn health(&self, _: Request<v1::HealthRequest>) -> Result<Response<v1::HealthReply>, Status> {
        let _call = self.admission.admit().await?;
        let stats = self.transport.stats();
        let condition = Condition::of(&self.cluster).await;
        Ok(Response::new(wire::health(&self.cluster.view(), &condition, self.cluster.readiness(), &stats)))
    }

    async fn counters(&self, _: Request<v1::CountersRequest>) -> Result<Response<v1::CountersReply>, Status> {
        let _call = self.admission.admit().await?;
        Ok(Response::new(wire::counters(self.transport.stats())))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let _call = self.admission.admit().await?;
        let (sender, events) = mpsc::channel(WATCH_BUFFER);
        let cluster_name = self.transport.cluster_name().to_owned();
        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = forward(cluster, cluster_name, sender) => {}
                () = until_stopped(stop) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn shard_types(&self, _: Request<v1::ShardTypesRequest>) -> Result<Response<v1::ShardTypesReply>, Status> {
        let _call = self.admission.admit().await?;
        Ok(Response::new(v1::ShardTypesReply { entity_types: self.shards()?.types() }))
    }

    async fn shard_regions(
        &self,
        request: Request<v1::ShardRegionsRequest>,
    ) -> Result<Response<v1::ShardRegionsReply>, Status> {
        let _call = self.admission.admit().await?;
        told(self.shards()?.regions(request.into_inner()).await)
    }

    async fn shard_stats(
        &self,
        request: Request<v1::ShardStatsRequest>,
    ) -> Result<Response<v1::ShardStatsReply>, Status> {
        let _call = self.admission.admit().await?;
        told(self.shards()?.stats(request.into_inner()).await)
    }

    async fn shard_entities(
        &self,
        request: Request<v1::ShardEntitiesRequest>,
    ) -> Result<Response<v1::ShardEntitiesReply>, Status> {
        let _call = self.admission.admit().await?;
        told(self.shards()?.entities(request.into_inner()).await)
    }

    async fn entity_location(
        &self,
        request: Request<v1::EntityLocationRequest>,
    ) -> Result<Response<v1::EntityLocationReply>, Status> {
        let _call = self.admission.admit().await?;
        told(self.shards()?.location(request.into_inner()).await)
    }

    async fn delivery(&self, _: Request<v1::DeliveryRequest>) -> Result<Response<v1::DeliveryReply>, Status> {
        let _call = self.admission.admit().await?;
        let node = self.cluster.self_address().address();
        let delivery = self.delivery.get();
        let delivery =
            delivery.ok_or_else(|| Status::failed_precondition(format!("{node} has no reliable delivery")))?;
        Ok(Response::new(delivery.report()))
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinReply>, Status> {
        let _call = self.admission.admit().await?;
        let addresses = request.into_inner().addresses;
        self.may_write(&format!("join through {}", addresses.join(", ")))?;
        let seeds: Result<Vec<NodeAddress>, InvalidAddress> = addresses.iter().map(|seed| seed.parse()).collect();
        let seeds = seeds.map_err(|error| invalid(&error))?;
        self.cluster.join_seed_nodes(seeds).await.map_err(|error| join_failed(&error))?;
        Ok(Response::new(v1::JoinReply { member: self.cluster.self_address().to_string() }))
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveReply>, Status> {
        let _call = self.admission.admit().await?;
        let address = request.into_inner().address;
        self.may_write(&format!("make {address} leave"))?;
        let members = self.command(&address, Cluster::leave)?;
        Ok(Response::new(v1::LeaveReply { members }))
    }

    async fn down(&self, request: Request<v1::DownRequest>) -> Result<Response<v1::DownReply>, Status> {
        let _call = self.admission.admit().await?;
        let address = request.into_inner().address;
        self.may_write(&format!("down {address}"))?;
        let members = self.command(&address, Cluster::down)?;
        Ok(Response::new(v1::DownReply { members }))
    }

    async fn prepare_for_full_shutdown(
        &self,
        _: Request<v1::PrepareForFullShutdownRequest>,
    ) -> Result<Response<v1::PrepareForFullShutdownReply>, Status> {
        let _call = self.admission.admit().await?;
        self.may_write("prepare the cluster for its shutdown")?;
        let prepared = self.cluster.prepare_for_full_shutdown();
        prepared.map_err(|error| Status::failed_precondition(format!("{error}, so it has no cluster to prepare")))?;
        Ok(Response::new(v1::PrepareForFullShutdownReply {}))
    }
}

/// Sends events to a watcher until the node ends or the watcher leaves.
async fn forward(cluster: Cluster, cluster_name: String, sender: mpsc::Sender<Result<v1::WatchEvent, Status>>) {
    let mut events = cluster.subscribe();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = sender.closed() => return,
        };
        let Some(event) = event else { return };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        let condition = match &event {
            // These events are frequent and concern no single member, so the core is not asked for the condition.
            ClusterEvent::SeenChanged { .. } | ClusterEvent::ReachabilityChanged => Condition::default(),
            _ => Condition::of(&cluster).await,
        };
        let told = wire::event(&event, &cluster.view(), &condition, &cluster_name);
        if sender.send(Ok(v1::WatchEvent { wall_ms, ..told })).await.is_err() {
            return;
        }
    }
}

fn told<T>(answer: Result<T, ShardsError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(|error| {
        let text = error.to_string();
        match error {
            ShardsError::UnknownType { .. } | ShardsError::NoRegion(_) => Status::not_found(text),
            ShardsError::Silent(_) => Status::deadline_exceeded(text),
            ShardsError::Nonsense(_) => Status::invalid_argument(text),
        }
    })
}

fn target(address: &str) -> Result<Target, Status> {
    let target = if address.contains('#') {
        address.parse::<UniqueAddress>().map(Target::from)
    } else {
        address.parse::<NodeAddress>().map(Target::from)
    };
    target.map_err(|error| invalid(&error))
}

fn invalid(error: &InvalidAddress) -> Status {
    Status::invalid_argument(error.to_string())
}

fn join_failed(error: &JoinError) -> Status {
    let text = error.to_string();
    match error {
        JoinError::NoSeeds => Status::invalid_argument(text),
        JoinError::ShuttingDown(_) => Status::unavailable(text),
        JoinError::Unsuccessful(_) => Status::deadline_exceeded(text),
        _ => Status::failed_precondition(text),
    }
}
