//! `greylag journal serve`: one process opens an embedded journal, and serves it to the others of its machine.
//!
//! The process runs until a signal ends it (SIGTERM, or Ctrl-C): then it takes no more calls, answers those in
//! progress, closes the journal and exits with 0. `greylag journal health` asks it for its health.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use greylag_journal_service::{
    BindError, ClientSettings, ConnectError, JournalClient, JournalServer, Served, ServerSettings, Tls, TlsSettings,
};
use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings};
use greylag_persistence::{Health, Journal as _};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::arguments::{self, Serve, ServiceHealth};
use crate::failure::{Failure, UNHEALTHY};
use crate::output::print;

/// How long `health` waits for an answer without `--timeout`.
const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The line that `serve` prints when clients may connect.
#[derive(Debug, Serialize)]
struct Serving {
    store: String,
    address: SocketAddr,
    tls: bool,
}

pub(super) async fn serve(serve: &Serve, tls: &arguments::Tls, json: bool) -> Result<ExitCode, Failure> {
    log_to_standard_error();
    // Signals are handled before the journal is opened, so that an early one still ends the program in order.
    let mut signals = TerminationSignals::listen()?;
    let settings = ServerSettings { tls: tls_of_server(tls, serve.plain_text)?, ..ServerSettings::default() };
    let is_encrypted = matches!(settings.tls, Tls::Files(_));
    let store = format!("sled:{}", serve.dir.display());
    let journal = open(&serve.dir).await?;
    let server = match JournalServer::bind(serve.listen, all_stores(&journal), settings).await {
        Ok(server) => server,
        Err(error) => return close(&journal, &store, Err(bind_failure(&error))).await,
    };
    let serving = Serving { store: store.clone(), address: server.local_address(), tls: is_encrypted };
    let said = print(json, &serving, || {
        let how = if is_encrypted { "by TLS" } else { "in plain text" };
        format!("{store} is served at {} {how}", serving.address)
    });
    if said.is_ok() {
        signals.received().await;
    }
    // Shut down before the journal is closed, so that calls in progress are answered.
    server.shutdown().await;
    close(&journal, &store, said.map(|()| ExitCode::SUCCESS)).await
}

/// Signals that end a program in order.
struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::Refused(format!("SIGTERM and SIGINT cannot be handled: {error}")))
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn open(directory: &Path) -> Result<SledJournal, Failure> {
    SledJournal::open(directory, SledJournalSettings::default()).await.map_err(|error| {
        let advice = match &error {
            OpenError::Locked { .. } => "; another process has it: a node, or another `greylag journal serve`",
            _ => "",
        };
        Failure::Unreachable(format!("sled:{}: {error}{advice}", directory.display()))
    })
}

async fn close(journal: &SledJournal, store: &str, done: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    let closed = journal.close().await;
    let code = done?;
    closed.map_err(|error| Failure::Refused(format!("{store}: {error}; acknowledged writes are stored")))?;
    Ok(code)
}

/// All stores of the directory.
fn all_stores(journal: &SledJournal) -> Served {
    let stores = journal.stores().with_states(Arc::new(journal.states()));
    Served::new(stores)
        .with_offsets(Arc::new(journal.offsets()))
        .with_queries(Arc::new(journal.queries()))
        .with_changes(Arc::new(journal.states().queries()))
}

fn tls_of_server(tls: &arguments::Tls, plain_text: bool) -> Result<Tls, Failure> {
    match (files(tls)?, plain_text) {
        (Some(_), true) => {
            Err(Failure::Usage("--plain-text and --tls-ca exclude each other; give one of them".to_owned()))
        }
        (Some(files), false) => Ok(Tls::Files(files)),
        (None, true) => Ok(Tls::None),
        (None, false) => Ok(Tls::LoopbackOnly),
    }
}

/// The certificate files. Both ends present a certificate, so all three files are needed.
fn files(tls: &arguments::Tls) -> Result<Option<TlsSettings>, Failure> {
    if tls.tls_host.is_some() {
        let why = "--tls-host (or GREYLAG_TLS_HOST) is for admin services; a journal service is called by the name in its \
                   certificate";
        return Err(Failure::Usage(why.to_owned()));
    }
    match (&tls.tls_key, &tls.tls_cert, &tls.tls_ca) {
        (Some(key), Some(cert), Some(ca)) => Ok(Some(TlsSettings::new(key, cert, ca))),
        (None, None, None) => Ok(None),
        _ => Err(Failure::Usage(
            "a journal service needs --tls-ca, --tls-cert and --tls-key, all three or none: both ends present a certificate"
                .to_owned(),
        )),
    }
}

fn bind_failure(error: &BindError) -> Failure {
    match error {
        BindError::PlainText { address } => Failure::Usage(format!(
            "{address} can be reached from other machines: give --tls-ca, --tls-cert and --tls-key, or --plain-text for a \
             network that is trusted"
        )),
        BindError::Listen { .. } => Failure::Unreachable(error.to_string()),
        BindError::Tls(_) | BindError::Settings(_) => Failure::Usage(error.to_string()),
    }
}

/// Result of `health`.
#[derive(Debug, Serialize)]
struct HealthView {
    address: String,
    healthy: bool,
    health: String,
}

pub(super) async fn health(
    asked: &ServiceHealth,
    tls: &arguments::Tls,
    json: bool,
    limit: Option<Duration>,
) -> Result<ExitCode, Failure> {
    let tls = files(tls)?.map_or(Tls::LoopbackOnly, Tls::Files);
    let connect_timeout = limit.unwrap_or(DEFAULT_ANSWER_TIMEOUT);
    let settings = ClientSettings { connect_timeout, tls, ..ClientSettings::default() };
    let client = JournalClient::connect(&asked.address, settings).await.map_err(|error| match &error {
        ConnectError::Unreachable { .. } => Failure::Unreachable(error.to_string()),
        ConnectError::Refused { .. } => Failure::Refused(error.to_string()),
        ConnectError::Untrusted { .. } => Failure::Untrusted(error.to_string()),
        ConnectError::Tls(_) | ConnectError::Settings(_) => Failure::Usage(error.to_string()),
    })?;
    // The journal's health as the service told it when the client connected.
    let health = client.journal().health();
    let answer =
        HealthView { address: asked.address.clone(), healthy: health == Health::Up, health: health.to_string() };
    print(json, &answer, || format!("{}: {}", answer.address, answer.health))?;
    Ok(if answer.healthy { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

/// Logs to standard error. `RUST_LOG` sets the level; warnings by default.
fn log_to_standard_error() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(ca: bool, cert: bool, key: bool) -> arguments::Tls {
        let file = |is: bool| is.then(|| "file".into());
        arguments::Tls { tls_ca: file(ca), tls_cert: file(cert), tls_key: file(key), tls_host: None }
    }

    #[test]
    fn certificate_options_come_together_or_not_at_all() {
        assert_eq!(tls_of_server(&given(false, false, false), false).unwrap(), Tls::LoopbackOnly);
        assert_eq!(tls_of_server(&given(false, false, false), true).unwrap(), Tls::None);
        assert!(matches!(tls_of_server(&given(true, true, true), false), Ok(Tls::Files(_))));
        for refused in [
            tls_of_server(&given(true, false, false), false),
            tls_of_server(&given(false, true, true), false),
            tls_of_server(&given(true, true, true), true),
            tls_of_server(&arguments::Tls { tls_host: Some("h".into()), ..given(true, true, true) }, false),
        ] {
            assert!(matches!(refused, Err(Failure::Usage(_))));
        }
    }
}
