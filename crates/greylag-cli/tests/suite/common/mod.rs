//! Nodes of this process with their admin services, and the binary that calls them.

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings, MemberStatus};
use greylag_core::Registry;
use greylag_management::{ManagementServer, ManagementSettings};
use greylag_transport::{GrpcTransport, TransportSettings};
use serde_json::Value;
use tokio::process::Command;

/// A node of this process, with its admin service.
pub(crate) struct Node {
    pub(crate) cluster: Cluster,
    pub(crate) transport: Arc<GrpcTransport>,
    pub(crate) admin: ManagementServer,
}

impl Node {
    pub(crate) async fn start(settings: ManagementSettings) -> Self {
        let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
        let settings_of_cluster = ClusterSettings::test().with_roles(["shop"]);
        let cluster = Cluster::start(settings_of_cluster, transport.clone()).await.unwrap();
        let admin = ManagementServer::start(settings, cluster.clone(), transport.clone()).await.unwrap().unwrap();
        // A process ends when its membership does, so its listener is shut down, too.
        let (ending, listener) = (cluster.clone(), transport.clone());
        tokio::spawn(async move {
            ending.terminated().await;
            listener.shutdown().await;
        });
        Self { cluster, transport, admin }
    }

    pub(crate) async fn writable() -> Self {
        Self::start(ManagementSettings::at("127.0.0.1:0").with_writes()).await
    }

    /// A cluster of two, both writable and converged.
    pub(crate) async fn pair() -> (Self, Self) {
        let (one, two) = (Self::writable().await, Self::writable().await);
        one.cluster.join_self().await.unwrap();
        two.cluster.join_seed_nodes(vec![one.cluster.self_address().address().clone()]).await.unwrap();
        for node in [&one, &two] {
            let both_up = node.cluster.wait_for(|view| {
                view.converged && view.members.iter().filter(|member| member.status == MemberStatus::Up).count() == 2
            });
            tokio::time::timeout(Duration::from_secs(30), both_up).await.expect("both are Up").unwrap();
        }
        (one, two)
    }

    pub(crate) fn admin(&self) -> String {
        self.admin.local_address().to_string()
    }

    pub(crate) fn address(&self) -> String {
        self.cluster.self_address().address().to_string()
    }

    pub(crate) fn unique(&self) -> String {
        self.cluster.self_address().to_string()
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        greylag(&self.admin(), arguments).await
    }

    pub(crate) async fn end(self) {
        self.cluster.shutdown().await;
        self.admin.shutdown().await;
        self.transport.shutdown().await;
    }
}

/// The program, without its environment variables.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greylag"));
    for variable in ["ADDRESS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_HOST"] {
        command.env_remove(format!("GREYLAG_{variable}"));
    }
    command.kill_on_drop(true);
    command
}

pub(crate) async fn greylag(address: &str, arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(["--address", address]).args(arguments);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output());
    output.await.expect("it ends").expect("it starts")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub(crate) fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(crate) fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", output_text(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output_text(output)))
}
