//! The leases of one cluster: their provider and their names.
//!
//! Source: cluster S10, S16, P5.

use std::sync::Arc;

use super::lock::LeaseProvider;

/// The lease provider of a cluster. Two of these are equal if they share the provider.
#[derive(Debug, Clone)]
pub struct Leases {
    cluster: Arc<str>,
    provider: Arc<dyn LeaseProvider>,
}

impl PartialEq for Leases {
    fn eq(&self, other: &Self) -> bool {
        self.cluster == other.cluster && Arc::ptr_eq(&self.provider, &other.provider)
    }
}

impl Leases {
    /// Leases of the cluster with this name, so that clusters that share a store stay apart.
    pub fn new(cluster: impl Into<Arc<str>>, provider: impl LeaseProvider) -> Self {
        Self { cluster: cluster.into(), provider: Arc::new(provider) }
    }

    /// The provider that makes the leases.
    pub fn provider(&self) -> &dyn LeaseProvider {
        &*self.provider
    }

    /// The name of the cluster's lease for a purpose: the cluster's name, then the purpose. Source: cluster S16.
    pub fn name_of(&self, what: &str) -> String {
        format!("{}-{what}", self.cluster)
    }

    /// The lease of a singleton. Source: cluster P5.
    pub fn singleton_name(&self, singleton: &str) -> String {
        self.name_of(&format!("singleton-{singleton}"))
    }

    /// The lease of the resolver, unless its settings name another. Source: cluster S10.
    pub fn resolver_name(&self) -> String {
        self.name_of("greylag-sbr")
    }
}
