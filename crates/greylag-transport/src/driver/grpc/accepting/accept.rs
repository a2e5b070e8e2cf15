//! Accepts connections at the listening socket, and moves each to the runtime of its lane.
//!
//! A connection carries one lane, but only its Hello says which. So every connection begins on the control runtime;
//! once its Hello names a data lane, the connection moves to the data runtime: the task that parses its frames, and the
//! socket's registration with the poller. The control runtime keeps control lanes and Hellos only, so load on the data
//! lanes, encryption included, cannot delay a heartbeat. Source: cluster T5, T6, T9, C7.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tonic::body::Body;
use tonic::codegen::http;

use super::answer;
use super::caller::Caller;
use super::connection_guard::{ConnectionGuard, GuardedStream};
use super::connection_runtime::{ConnectionRuntime, Socket};
use crate::admission::control::Intrusion;
use crate::driver::grpc::http2::window;
use crate::driver::grpc::shared::TransportInner;
use crate::driver::grpc::tls::ALPN;

/// Pause after a failed accept: the process may lack descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Upper bound of that pause, which doubles; callers that connect meanwhile wait in the system's backlog.
const MAX_ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Calls on one connection: one stream, and a second one only while it replaces the first.
const CALLS_PER_CONNECTION: u32 = 4;
/// Limit of the headers: a call names a path and little else.
const MAX_HEADERS: u32 = 16 * 1024;

/// Accepts connections once `opened` resolves, until told to stop; then waits until the connections have ended.
pub(crate) async fn serve(
    shared: Arc<TransportInner>,
    listener: Arc<TcpListener>,
    opened: oneshot::Receiver<()>,
    mut stop: oneshot::Receiver<()>,
) {
    let is_open = tokio::select! {
        _ = &mut stop => false,
        opened = opened => opened.is_ok(),
    };
    if !is_open {
        return;
    }
    let (closing, watcher) = watch::channel(());
    let mut pause = Duration::ZERO;
    loop {
        let accepted = tokio::select! {
            _ = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                pause = Duration::ZERO;
                if let Some(guard) = ConnectionGuard::begin(&shared, address.ip().to_canonical()) {
                    socket.set_nodelay(true).ok();
                    tokio::spawn(begin(shared.clone(), socket, guard, watcher.clone()));
                }
            }
            Err(error) if is_lost(&error) => lost(&error),
            // Keep the socket: nothing else could be bound in its place (cluster T33).
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted; tried again on the same socket");
                pause = (2 * pause).clamp(ACCEPT_PAUSE, MAX_ACCEPT_PAUSE);
                tokio::time::sleep(pause).await;
            }
        }
    }
    closing.send_replace(());
    drop(watcher);
    closing.closed().await;
    drop(listener);
}

/// Whether the error concerns the socket itself, and not one connection or a passing lack of resources.
fn is_lost(error: &io::Error) -> bool {
    const EBADF: i32 = 9;
    const EINVAL: i32 = 22;
    const ENOTSOCK: i32 = if cfg!(target_os = "linux") { 88 } else { 38 };
    matches!(error.raw_os_error(), Some(EBADF | EINVAL | ENOTSOCK))
}

/// Aborts the process, because it must not live on behind a port that refuses: for other nodes the kernel's refusals
/// prove the process dead, and they start elsewhere what still runs here (cluster T33, S20).
fn lost(error: &io::Error) -> ! {
    tracing::error!(%error, "the listening socket is lost; this process ends at once");
    std::process::abort()
}

/// Drives a connection on the control runtime until its lane is known, then on the runtime of the lane.
async fn begin(
    shared: Arc<TransportInner>,
    socket: TcpStream,
    guard: Arc<ConnectionGuard>,
    closing: watch::Receiver<()>,
) {
    let runtime = Arc::new(ConnectionRuntime::default());
    let socket = Socket::new(socket, runtime.clone());
    let connection = Box::pin(handshake(shared.clone(), socket, guard, runtime.clone(), closing));
    if runtime.drive(connection, shared.node.runtimes.data().clone()).await {
        shared.counters.moved_connection();
    }
}

/// Performs the TLS handshake, if TLS is on, and then speaks HTTP/2 unless the caller's certificate is refused.
async fn handshake(
    shared: Arc<TransportInner>,
    socket: Socket,
    guard: Arc<ConnectionGuard>,
    runtime: Arc<ConnectionRuntime>,
    closing: watch::Receiver<()>,
) {
    let Some(files) = shared.tls.clone() else {
        let caller = Caller { guard, certificate: None, runtime };
        return serve_http2(shared, socket, caller, closing).await;
    };
    let handshake = files.current().acceptor.accept(socket);
    let tls = match tokio::time::timeout(shared.node.settings.handshake_timeout, handshake).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            if let Some(intrusion) = classify(&error) {
                guard.report(intrusion, &error.to_string());
            }
            return;
        }
        Err(_) => return guard.report(Intrusion::NoHello, "no TLS handshake came about in time"),
    };
    let session = tls.get_ref().1;
    if session.alpn_protocol() != Some(ALPN) {
        return guard.report(Intrusion::NotGrpc, "it does not want to speak HTTP/2");
    }
    match files.judge(session.peer_certificates()) {
        Ok(certificate) => {
            let caller = Caller { guard, certificate: certificate.map(Arc::new), runtime };
            serve_http2(shared, tls, caller, closing).await;
        }
        Err(error) => guard.report(Intrusion::Certificate, &error.to_string()),
    }
}

/// The intrusion that a failed handshake stands for. `None`: the caller hung up, as a port check does.
fn classify(error: &io::Error) -> Option<Intrusion> {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};
    let cause = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match cause {
        // An alert may mean that the caller does not believe our certificate; its log says so.
        InvalidCertificate(_) | NoCertificatesPresented | AlertReceived(_) => Intrusion::Certificate,
        _ => Intrusion::NotGrpc,
    })
}

/// Speaks HTTP/2 on one connection until it ends.
async fn serve_http2<S>(shared: Arc<TransportInner>, stream: S, caller: Caller, mut closing: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = &shared.node.settings;
    let window = window(settings.largest_message_size());
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .adaptive_window(false)
        .max_frame_size(256 * 1024)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(settings.http2_keepalive_interval)
        .keep_alive_timeout(settings.http2_keepalive_timeout);
    let guard = caller.guard.clone();
    let stream = GuardedStream::new(stream, guard.clone());
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (shared, caller) = (shared.clone(), caller.clone());
        async move { Ok::<_, std::convert::Infallible>(answer::answer(shared, caller, request.map(Body::new)).await) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            end = &mut connection => {
                if let Err(error) = end {
                    tracing::debug!(ip = %guard.ip, %error, "a connection ended");
                }
                return;
            }
            _ = closing.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TransportSettings;

    #[test]
    fn a_connection_that_fails_is_not_the_socket() {
        const EMFILE: i32 = 24;
        const ECONNABORTED: i32 = 103;
        for passing in [EMFILE, ECONNABORTED] {
            assert!(!is_lost(&io::Error::from_raw_os_error(passing)));
        }
        assert!(!is_lost(&io::Error::other("a runtime that ends")));
    }

    /// Cluster T33: once the listening socket is lost, the kernel refuses connections, which other nodes take for this
    /// process's death; so the process must die. The test aborts a child process.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_lost_listening_socket_aborts_the_process_at_once() {
        use std::os::unix::process::ExitStatusExt;
        const CHILD: &str = "GREYLAG_TEST_LOSES_ITS_SOCKET";
        if std::env::var_os(CHILD).is_some() {
            return lose_the_socket();
        }
        let this = "driver::grpc::accepting::accept::tests::a_lost_listening_socket_aborts_the_process_at_once";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        const SIGABRT: i32 = 6;
        assert_eq!(child.status.signal(), Some(SIGABRT), "{}", String::from_utf8_lossy(&child.stdout));
    }

    #[cfg(target_os = "linux")]
    fn lose_the_socket() {
        use crate::driver::grpc::GrpcTransport;
        use crate::driver::grpc::binding::{draw_uid, listen};
        use crate::driver::grpc::local::Threads;
        let (control, data) = (Threads::start("control", 1).unwrap(), Threads::start("data", 1).unwrap());
        let listener = listen(&control, "127.0.0.1:0".parse().unwrap()).unwrap();
        let (listener, address) = (listener.0.into_std().unwrap(), listener.1);
        let same = std::net::TcpStream::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()));
        let listener = {
            let _context = control.enter();
            TcpListener::from_std(listener).unwrap()
        };
        let ua = greylag_core::UniqueAddress::new(address.to_string().parse().unwrap(), draw_uid());
        let settings = TransportSettings::test();
        let node = GrpcTransport::start(settings, Arc::default(), ua, None, listener, control, data);
        node.open();
        assert!(std::net::TcpStream::connect(address).is_ok(), "it listens");
        same.shutdown(std::net::Shutdown::Both).unwrap();
        std::thread::sleep(Duration::from_secs(20));
        drop(node);
    }
}
