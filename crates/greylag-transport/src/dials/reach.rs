//! Whether other hosts can reach an address at all.

use std::net::IpAddr;

use greylag_core::NodeAddress;

/// Whether a node advertises a loopback address although some of the nodes it wants to join run elsewhere: those could
/// not call the node back. Source: cluster T3.
pub fn is_out_of_reach(own: &NodeAddress, seeds: &[NodeAddress]) -> bool {
    is_loopback(own) && !seeds.iter().all(is_loopback)
}

fn is_loopback(address: &NodeAddress) -> bool {
    let host = address.host();
    let ip: Result<IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
    ip.map_or(host == "localhost" || host.ends_with(".localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster T3.
    #[test]
    fn a_loopback_address_is_no_use_to_remote_seeds() {
        let out_of_reach = |own: &str, seeds: &[&str]| {
            let seeds: Vec<_> = seeds.iter().map(|seed| seed.parse().unwrap()).collect();
            is_out_of_reach(&own.parse().unwrap(), &seeds)
        };
        assert!(out_of_reach("127.0.0.1:1", &["10.0.0.1:1"]));
        assert!(out_of_reach("localhost:1", &["127.0.0.1:1", "seed.example:1"]));
        assert!(!out_of_reach("127.0.0.1:1", &["localhost:2", "127.0.0.2:1"]));
        assert!(!out_of_reach("10.0.0.1:1", &["127.0.0.1:1", "10.0.0.2:1"]));
        assert!(!out_of_reach("127.0.0.1:1", &[]));
    }
}
