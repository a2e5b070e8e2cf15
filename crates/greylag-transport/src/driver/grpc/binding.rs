//! Binds the socket of a transport, and draws the uid of its process.

use std::net::{IpAddr, SocketAddr};

use greylag_core::Uid;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::error::BindError;
use crate::settings::TransportSettings;

/// The socket address to bind for a host and port of the settings.
pub(super) async fn resolve(settings: &TransportSettings, host: &str, port: u16) -> Result<SocketAddr, BindError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let failed = |cause| BindError::Resolve { host: host.to_owned(), cause };
    let found = tokio::time::timeout(settings.bind_timeout, tokio::net::lookup_host((host, port))).await;
    let mut found = found.map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

/// Binds a socket that the control runtime drives.
pub(super) fn listen(control: &Runtime, target: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let _context = control.enter();
    let socket = std::net::TcpListener::bind(target)?;
    socket.set_nonblocking(true)?;
    let bound = socket.local_addr()?;
    Ok((TcpListener::from_std(socket)?, bound))
}

/// A uid from the system's randomness: never 0, never used again.
pub(super) fn draw_uid() -> Uid {
    loop {
        if let Some(uid) = Uid::new(rand::random()) {
            return uid;
        }
    }
}
