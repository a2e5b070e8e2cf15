//! What this process can know of the host it runs on.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// Kernel boot id and network namespace: two processes with the same can judge each other's death
/// by their common kernel (cluster T12, S20). `None` where the system does not tell.
pub(super) fn host_id() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.to_str()?))
}

/// The address that this host uses towards others; loopback if it has no other.
pub(super) fn outward_ip() -> IpAddr {
    // Connecting a datagram socket sends nothing: it only asks for the route to a documentation address.
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    route.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}
