//! The settings of a node: one section per layer.

use greylag_cluster::ClusterSettings;
use greylag_transport::TransportSettings;

/// Every setting of a node. A document of the specification writes its keys without the section.
#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    /// `transport.*`.
    pub transport: TransportSettings,
    /// `cluster.*`. The builder sets the split brain resolver with keep-majority.
    pub cluster: ClusterSettings,
    /// `sharding.*`, the defaults of all entity types.
    #[cfg(feature = "sharding")]
    pub sharding: greylag_sharding::ShardingSettings,
}
