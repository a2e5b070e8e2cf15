//! Ports on which no process listens, for tests that bind one later or want their dial refused.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port handed out.
const FIRST: u16 = 10_000;

/// The number of ports: all lie below 32,768, where Linux begins to choose ports for those who name none.
const COUNT: u16 = 20_000;

static CALLS: AtomicU16 = AtomicU16::new(0);

/// Returns an address of 127.0.0.1 on which no process listens.
///
/// The kernel never gives the port to a socket that is bound to port 0, so no other test takes it by chance; a port that
/// was bound to 0 and closed again can be anyone's a moment later. Each call of a process returns another port, and
/// processes begin at ports of their own.
///
/// # Panics
///
/// If all ports of the range are in use.
pub fn unused() -> SocketAddr {
    // Leave 40 ports to each process before the next one's begin.
    let begin = (std::process::id() % u32::from(COUNT / 40)) as u16 * 40;
    for _ in 0..COUNT {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (begin + call % COUNT) % COUNT;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().expect("the listener is bound");
        }
    }
    panic!("no port of {FIRST} to {} is unused", FIRST + COUNT - 1);
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn each_call_returns_another_port_that_refuses_and_can_be_bound() {
        let (one, other) = (unused(), unused());
        assert_ne!(one, other);
        assert!((FIRST..FIRST + COUNT).contains(&one.port()), "{one}");
        TcpStream::connect(one).unwrap_err();
        TcpListener::bind(one).unwrap();
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let kept: Vec<_> = (0..100).map(|_| TcpListener::bind(unused()).unwrap()).collect();
        let next = unused();
        assert!(kept.iter().all(|listener| listener.local_addr().unwrap() != next));
    }
}
