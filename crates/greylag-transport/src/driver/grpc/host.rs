//! Facts about the host that this process runs on.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// Kernel boot id and network namespace: two processes with equal ones can judge each other's death by their common
/// kernel (cluster T12, S20). `None` where the system does not tell.
pub(crate) fn host_id() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.to_str()?))
}

/// The address that this host uses towards others; loopback if it has no other.
pub(crate) fn outward_ip() -> IpAddr {
    // Connecting a datagram socket sends nothing: it only asks for the route to a documentation address.
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    route.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

/// Whether a socket bound to `bound` and advertised as `host` may be reachable from public networks, as far as the
/// addresses tell. A socket on all interfaces is as public as its advertised host; a host known only by name may be
/// public.
pub(crate) fn is_public(bound: IpAddr, host: &str) -> bool {
    let is_private = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_carrier_grade(ip),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    let judged = if bound.is_unspecified() { host.parse().ok() } else { Some(bound) };
    !judged.is_some_and(is_private)
}

/// 100.64.0.0/10, private like the others (RFC 6598).
fn is_carrier_grade(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 100 && b & 0xC0 == 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_public_by_their_range() {
        let public = |bound: &str, host| is_public(bound.parse().unwrap(), host);
        for private in ["127.0.0.1", "10.1.2.3", "192.168.0.9", "172.31.0.1", "100.127.0.1", "fd00::1", "::1"] {
            assert!(!public(private, "db.example.com"), "{private}");
        }
        assert!(public("203.0.113.7", "10.0.0.1"));
        assert!(public("2001:db8::1", "node"));
        assert!(public("0.0.0.0", "node.example.com"), "a name can be any network's, so it counts as public");
        assert!(!public("0.0.0.0", "10.0.0.1"));
        assert!(public("::", "203.0.113.7"));
    }
}
