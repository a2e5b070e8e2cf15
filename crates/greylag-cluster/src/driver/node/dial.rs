//! Makes one connection attempt to a process that may be dead, and decides whether a refusal counts.
//!
//! A refusal proves a death only if no host but the process's own can have refused: under `local` the process named
//! this very host and network namespace in its handshake, the address is one of our own interfaces, and the kernel
//! shows no listener on the port. Each dial checks all of this anew. Source: cluster S20.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use greylag_core::UniqueAddress;
use greylag_transport::{PeerInfo, Remoting};
use tokio::net::TcpStream;

use crate::core::Input;
use crate::settings::ProofOfDeath;

/// A dial that takes longer proves nothing.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Dials `peer` once, at the address where its last active stream ended.
pub(crate) async fn dial(policy: ProofOfDeath, remoting: &dyn Remoting, peer: UniqueAddress) -> Input {
    // Dial only a process that was reached: one that only called from there need not listen, so a refusal proves
    // nothing.
    let known = remoting.peer(peer.address()).filter(|info| info.peer == peer && info.reached);
    let Some(info) = known.filter(|info| covers(policy, remoting.host_id().as_deref(), info)) else {
        return Input::DialFailed(peer);
    };
    let port = peer.address().port();
    let attempt = TcpStream::connect(SocketAddr::new(info.ip, port));
    match tokio::time::timeout(DIAL_TIMEOUT, attempt).await {
        Ok(Ok(_accepted)) => Input::DialAnswered(peer),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            // Read the kernel's tables on a blocking thread: that may take a while on a busy host.
            let silent = tokio::task::spawn_blocking(move || policy == ProofOfDeath::On || no_listener(port)).await;
            if silent.unwrap_or(false) { Input::DialRefused(peer) } else { Input::DialFailed(peer) }
        }
        _ => Input::DialFailed(peer),
    }
}

fn covers(policy: ProofOfDeath, own_host: Option<&str>, peer: &PeerInfo) -> bool {
    if cfg!(windows) {
        // A Windows kernel also refuses when a backlog is full.
        return false;
    }
    match policy {
        ProofOfDeath::Off => false,
        ProofOfDeath::On => true,
        ProofOfDeath::Local => {
            let same_host = own_host.is_some() && peer.host_id.as_deref() == own_host;
            same_host && is_own_interface(peer.ip)
        }
    }
}

/// Whether this is an address of this network namespace: only such an address can be bound.
fn is_own_interface(ip: IpAddr) -> bool {
    let foreign_bind = ["/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind"];
    let allowed = |path: &&str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
    !foreign_bind.iter().any(allowed) && UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// Whether the kernel's tables show no listening socket on the port, on any address.
#[cfg(target_os = "linux")]
fn no_listener(port: u16) -> bool {
    // Without IPv6 the second table is missing; without the first table nothing is known.
    let Ok(v4) = std::fs::read_to_string("/proc/net/tcp") else { return false };
    let v6 = std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    !listens(&v4, port) && !listens(&v6, port)
}

#[cfg(not(target_os = "linux"))]
fn no_listener(_port: u16) -> bool {
    true
}

/// Whether a table of `/proc/net` has a listening socket (state 0A) on the port.
#[cfg(any(target_os = "linux", test))]
fn listens(table: &str, port: u16) -> bool {
    let listening = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|local| local.rsplit_once(':'));
        let local_port = local.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        local_port == Some(port) && words.nth(1) == Some("0A")
    };
    table.lines().skip(1).any(listening)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_62_a_listener_on_any_address_of_the_host_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:1F91 0100007F:D2F0 01 00000000:00000000\n";
        assert!(listens(table, 0x1F90));
        assert!(!listens(table, 0x1F91), "an established connection is no listener");
        assert!(!listens(table, 80));
    }

    #[test]
    fn scenario_62_local_covers_processes_of_the_own_host() {
        let peer = |host: Option<&str>, ip: &str| PeerInfo {
            peer: "b:1#2".parse().unwrap(),
            ip: ip.parse().unwrap(),
            reached: true,
            host_id: host.map(ToOwned::to_owned),
            cluster_id: None,
        };
        let local = |own: Option<&str>, info: &PeerInfo| covers(ProofOfDeath::Local, own, info);
        assert!(local(Some("boot/net"), &peer(Some("boot/net"), "127.0.0.1")));
        assert!(!local(Some("boot/net"), &peer(Some("boot/other"), "127.0.0.1")), "another namespace");
        assert!(!local(None, &peer(None, "127.0.0.1")), "two unknown hosts are not the same");
        assert!(!local(Some("boot/net"), &peer(Some("boot/net"), "192.0.2.1")), "not an own interface");
        assert!(covers(ProofOfDeath::On, None, &peer(None, "192.0.2.1")));
        assert!(!covers(ProofOfDeath::Off, Some("h"), &peer(Some("h"), "127.0.0.1")));
    }

    /// cluster S20: a process is not dialled at an address that it only called from.
    #[tokio::test]
    async fn scenario_62_addresses_of_callers_are_not_dialled() {
        use greylag_core::{CodecId, DeadLetterReason};
        use greylag_transport::{Destination, Envelope, GrpcTransport, Recipient, TransportSettings};

        let bind = async || {
            let settings = TransportSettings {
                canonical_host: Some("127.0.0.1".to_owned()),
                canonical_port: 0,
                ..TransportSettings::new("test")
            };
            GrpcTransport::bind(settings, std::sync::Arc::default()).await.unwrap()
        };
        let (here, there) = (bind().await, bind().await);
        let (own, peer) = (here.self_address().clone(), there.self_address().clone());
        let call = |from: &GrpcTransport, to: &UniqueAddress| {
            let stray = Envelope::new(Recipient::new("control/none"), CodecId::INTERNAL, "x", bytes::Bytes::new());
            from.send(&Destination::Incarnation(to.clone()), stray.to_uid(to.uid())).unwrap();
        };
        let arrived = async |at: &GrpcTransport| {
            while !at.dead_letter_totals().contains_key(&DeadLetterReason::NoSuchRecipient) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let dialled = || dial(ProofOfDeath::On, &*here, peer.clone());
        call(&there, &own);
        arrived(&here).await;
        assert_eq!(dialled().await, Input::DialFailed(peer.clone()), "known, but never reached");
        call(&here, &peer);
        arrived(&there).await;
        assert_eq!(dialled().await, Input::DialAnswered(peer.clone()));
        there.shutdown().await;
        assert_eq!(dialled().await, Input::DialRefused(peer.clone()));
        here.shutdown().await;
    }

    /// cluster S20: an address that this node never reached is not dialled, although a kernel would refuse the dial;
    /// and a dial that is neither accepted nor refused proves nothing.
    #[tokio::test]
    async fn scenario_62_neither_a_time_out_nor_an_unknown_address_proves_a_death() {
        use greylag_core::{CodecId, DeadLetterReason};
        use greylag_transport::{Destination, Envelope, GrpcTransport, Recipient, TransportSettings};

        let bind = async |port| {
            let settings = TransportSettings {
                canonical_host: Some("127.0.0.1".to_owned()),
                canonical_port: port,
                ..TransportSettings::new("test")
            };
            GrpcTransport::bind(settings, std::sync::Arc::default()).await.unwrap()
        };
        let (here, there) = (bind(0).await, bind(0).await);
        let never: UniqueAddress = "127.0.0.1:1#9".parse().unwrap();
        assert_eq!(dial(ProofOfDeath::On, &*here, never.clone()).await, Input::DialFailed(never));

        let peer = there.self_address().clone();
        let stray = Envelope::new(Recipient::new("control/none"), CodecId::INTERNAL, "x", bytes::Bytes::new());
        here.send(&Destination::Incarnation(peer.clone()), stray).unwrap();
        while !there.dead_letter_totals().contains_key(&DeadLetterReason::NoSuchRecipient) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        there.shutdown().await;
        let refused = dial(ProofOfDeath::On, &*here, peer.clone()).await;
        assert_eq!(refused, Input::DialRefused(peer.clone()), "it was associated with");
        // Let the listener accept nothing and fill its backlog, so that a further dial gets no answer.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        let address = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), peer.address().port());
        socket.bind(address).unwrap();
        let _listener = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(DIAL_TIMEOUT / 4, TcpStream::connect(address)).await {
            waiting.push(stream);
        }
        for policy in [ProofOfDeath::On, ProofOfDeath::Local] {
            assert_eq!(dial(policy, &*here, peer.clone()).await, Input::DialFailed(peer.clone()));
        }
        here.shutdown().await;
    }

    #[tokio::test]
    async fn a_port_that_was_closed_is_silent_and_an_open_one_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!no_listener(port));
        drop(listener);
        assert!(no_listener(port));
    }
}
