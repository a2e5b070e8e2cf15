//! The caller at the other end of an accepted connection.

use std::sync::Arc;

use super::connection_guard::ConnectionGuard;
use super::connection_runtime::ConnectionRuntime;
use crate::driver::grpc::tls::Certificate;

/// The caller at the other end of an accepted connection.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) guard: Arc<ConnectionGuard>,
    /// `None` without TLS, or where callers need not show a certificate.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) runtime: Arc<ConnectionRuntime>,
}
