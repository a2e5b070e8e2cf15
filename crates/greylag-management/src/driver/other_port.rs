//! Answers a node that dials the admin port instead of a node's port: which port this is, and which port it needs.

use std::convert::Infallible;
use std::task::{Context, Poll};

use greylag_core::NodeAddress;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};

/// Path prefix of the calls between nodes.
const OF_NODES: &str = "/greylag.transport.";

/// The admin service, with an answer for calls that belong on the node's port.
#[derive(Debug, Clone)]
pub(super) struct OtherPort<S> {
    admin: S,
    node: NodeAddress,
}

impl<S> OtherPort<S> {
    /// `node` is the address that the peers of this node dial.
    pub(super) fn new(admin: S, node: NodeAddress) -> Self {
        Self { admin, node }
    }
}

impl<S, B> Service<http::Request<B>> for OtherPort<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.admin.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path().starts_with(OF_NODES) {
            let told = format!(
                "this is the admin port (management.address) of the node {0}; a seed node is named by the address that its \
                 peers dial: {0}",
                self.node
            );
            return Box::pin(async move { Ok(Status::unimplemented(told).into_http()) });
        }
        Box::pin(self.admin.call(request))
    }
}
