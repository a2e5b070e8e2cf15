//! Settings of the admin service: section `management.*` of a configuration.

use greylag_transport::{ConfigError, ConfigErrors, Tls};

/// Whether a node offers the admin service, on which address, and whether it allows changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ManagementSettings {
    /// The address to listen on, `host:port`; port 0 picks a free one. `None`, the default: the service is off.
    pub address: Option<String>,
    /// Lets callers change the cluster (join, leave, down, prepare for shutdown). Otherwise they can only read. Default
    /// false.
    pub allow_writes: bool,
    /// Encryption, with the same choices as between nodes. An address that others can reach is refused unless a choice
    /// was made. With [`Tls::Files`] callers must present a certificate of the same authorities, unless `mutual` is
    /// false; with [`Tls::None`], or without `mutual`, every client that reaches the address may use the service.
    /// Callers are no hosts, so `verify_hostname` has no meaning here. Default [`Tls::LoopbackOnly`]. Source: cluster
    /// T40.
    pub tls: Tls,
}

impl ManagementSettings {
    /// Read-only on `address`.
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: Some(address.into()), ..Self::default() }
    }

    /// The same, with this choice of encryption.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls, ..self }
    }

    /// Checks that every setting is valid.
    ///
    /// # Errors
    /// All invalid settings together, by their keys.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let mut refuse = |setting, value: String, why| errors.push(ConfigError { setting, value, why });
        if let Some(address) = &self.address
            && !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        {
            refuse("management.address", format!("{address:?}"), "write it as host:port");
        }
        if let Tls::Files(tls) = &self.tls {
            if tls.reload_interval.is_zero() {
                refuse("management.tls_reload_interval", "0s".to_owned(), "it must be longer than zero");
            }
            for (setting, file) in
                [("management.tls_key", &tls.key), ("management.tls_cert", &tls.cert), ("management.tls_ca", &tls.ca)]
            {
                if file.as_os_str().is_empty() {
                    refuse(setting, "\"\"".to_owned(), "management.tls = on needs this file");
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }

    /// The same, with changes allowed.
    #[must_use]
    pub fn with_writes(self) -> Self {
        Self { allow_writes: true, ..self }
    }
}
