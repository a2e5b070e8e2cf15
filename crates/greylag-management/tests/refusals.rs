//! Refused calls: the codes that `lib.rs` promises, and that nothing has changed.

use std::sync::Arc;

use greylag_cluster::{Cluster, ClusterSettings, MemberStatus, MembershipView};
use greylag_core::Registry;
use greylag_management::{Client, ManagementServer, ManagementSettings, connect, v1};
use greylag_transport::{GrpcTransport, TransportSettings};
use tonic::{Code, Response, Status};

struct Node {
    cluster: Cluster,
    transport: Arc<GrpcTransport>,
    admin: ManagementServer,
    client: Client,
}

impl Node {
    async fn start(settings: ManagementSettings) -> Self {
        let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
        let cluster = Cluster::start(ClusterSettings::test(), transport.clone()).await.unwrap();
        let admin = ManagementServer::start(settings, cluster.clone(), transport.clone()).await.unwrap().expect("on");
        let client = connect(&admin.local_address().to_string()).unwrap();
        Self { cluster, transport, admin, client }
    }

    fn address(&self) -> String {
        self.cluster.self_address().address().to_string()
    }

    async fn join(&mut self, addresses: &[&str]) -> Option<Code> {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        code(self.client.join(v1::JoinRequest { addresses }).await)
    }

    async fn leave(&mut self, address: &str) -> Option<Code> {
        code(self.client.leave(v1::LeaveRequest { address: address.to_owned() }).await)
    }

    async fn down(&mut self, address: &str) -> Option<Code> {
        code(self.client.down(v1::DownRequest { address: address.to_owned() }).await)
    }

    async fn prepare(&mut self) -> Option<Code> {
        code(self.client.prepare_for_full_shutdown(v1::PrepareForFullShutdownRequest {}).await)
    }

    async fn end(self) {
        self.cluster.shutdown().await;
        self.admin.shutdown().await;
        self.transport.shutdown().await;
    }
}

fn code<T>(answer: Result<Response<T>, Status>) -> Option<Code> {
    answer.err().map(|status| status.code())
}

fn facts(view: &MembershipView) -> (Vec<(String, MemberStatus)>, usize) {
    let members = view.members.iter().map(|member| (member.address.to_string(), member.status)).collect();
    (members, view.tombstones.len())
}

/// Read-only is the default. Each change is refused for that reason alone, even if it is invalid otherwise, on a member
/// and on a node that is none; and nothing has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_node_refuses_every_change_and_nothing_changes() {
    let mut member = Node::start(ManagementSettings::at("127.0.0.1:0")).await;
    member.cluster.join_self().await.unwrap();
    member.cluster.wait_up().await.unwrap();
    let mut stranger = Node::start(ManagementSettings::at("127.0.0.1:0")).await;
    let (own, theirs) = (member.address(), stranger.address());
    let before = facts(&member.cluster.view());
    for (node, other) in [(&mut member, &theirs), (&mut stranger, &own)] {
        let denied = Some(Code::PermissionDenied);
        for address in [own.as_str(), theirs.as_str(), "nonsense", "absent.example:1", ""] {
            assert_eq!(node.leave(address).await, denied, "leave {address:?}");
            assert_eq!(node.down(address).await, denied, "down {address:?}");
            assert_eq!(node.join(&[address]).await, denied, "join {address:?}");
        }
        assert_eq!(node.join(&[other]).await, denied);
        assert_eq!(node.prepare().await, denied);
        assert_eq!(code(node.client.members(v1::MembersRequest {}).await), None, "looking is allowed");
    }
    assert_eq!(facts(&member.cluster.view()), before);
    assert!(stranger.cluster.view().members.is_empty(), "it has joined no cluster");
    member.end().await;
    stranger.end().await;
}

/// Each row of the table in the crate's documentation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_change_is_told_by_its_code() {
    let mut node = Node::start(ManagementSettings::at("127.0.0.1:0").with_writes()).await;
    assert_eq!(node.prepare().await, Some(Code::FailedPrecondition), "no member yet");
    assert_eq!(node.join(&[]).await, Some(Code::InvalidArgument));
    node.cluster.join_self().await.unwrap();
    node.cluster.wait_up().await.unwrap();
    for nonsense in ["", "nonsense", "a:99999", "a:1#x"] {
        assert_eq!(node.leave(nonsense).await, Some(Code::InvalidArgument), "{nonsense:?}");
        assert_eq!(node.down(nonsense).await, Some(Code::InvalidArgument), "{nonsense:?}");
        assert_eq!(node.join(&[nonsense]).await, Some(Code::InvalidArgument), "{nonsense:?}");
    }
    let own = node.address();
    for absent in ["absent.example:1".to_owned(), format!("{own}#1")] {
        assert_eq!(node.leave(&absent).await, Some(Code::NotFound), "{absent}");
        assert_eq!(node.down(&absent).await, Some(Code::NotFound), "{absent}");
    }
    assert_eq!(node.join(&[&own]).await, Some(Code::FailedPrecondition), "a member already");
    assert_eq!(node.cluster.view().self_status(), Some(MemberStatus::Up), "nothing has changed");
    node.end().await;
}
