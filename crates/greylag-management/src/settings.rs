//! Settings of the admin service: section `management.*` of a configuration.

/// Whether a node offers the admin service, where, and what it may do.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ManagementSettings {
    /// Where to listen, `host:port`; port 0 picks a free one. `None`, the default: the service is off.
    pub address: Option<String>,
    /// Lets callers change the cluster (join, leave, down, prepare for shutdown). Without it they may
    /// only look. Default false.
    pub allow_writes: bool,
    /// Encryption: an address that others can reach is refused unless this was chosen. Default
    /// [`ManagementTls::LoopbackOnly`].
    pub tls: ManagementTls,
}

/// Whether connections to the admin service are encrypted. Source: cluster T40.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManagementTls {
    /// Nothing was chosen: no encryption, and therefore loopback only.
    #[default]
    LoopbackOnly,
    /// No encryption on any address: whoever reaches it may use it.
    None,
}

impl ManagementSettings {
    /// Read-only on this address.
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: Some(address.into()), ..Self::default() }
    }

    /// The same, with changes allowed.
    #[must_use]
    pub fn with_writes(self) -> Self {
        Self { allow_writes: true, ..self }
    }
}
