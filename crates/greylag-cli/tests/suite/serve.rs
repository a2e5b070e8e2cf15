//! `greylag journal serve` and `greylag journal health`: the built binary, clients of this process.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::common::{code, json, output_text, program};
use greylag_core::CodecId;
use greylag_journal_service::{ClientSettings, JournalClient, Tls, TlsSettings};
use greylag_persistence::{Append, EventKind, Journal, NewEvent, PersistenceId, Under, WriterEpoch, WriterUuid};
use greylag_testkit::certificates::{Authority, Files};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const TIME_LIMIT: Duration = Duration::from_secs(60);

async fn journal(arguments: &[&str]) -> Output {
    let output = program().arg("journal").args(arguments).output();
    tokio::time::timeout(TIME_LIMIT, output).await.expect("it ends").expect("it starts")
}

/// A program that serves a directory, with its address.
struct Service {
    program: Child,
    address: String,
}

impl Service {
    async fn start(directory: &Path, more: &[&str]) -> Self {
        let mut command = program();
        command.args(["journal", "serve", "--listen", "127.0.0.1:0", "--json", "--dir"]).arg(directory).args(more);
        let mut program = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(TIME_LIMIT, lines.next_line()).await.expect("it begins").unwrap().unwrap();
        let serving: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(serving["store"], format!("sled:{}", directory.display()));
        Self { program, address: serving["address"].as_str().unwrap().to_owned() }
    }

    async fn signal(&mut self, signal: &str) -> Option<i32> {
        let pid = self.program.id().expect("it runs").to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
        tokio::time::timeout(TIME_LIMIT, self.program.wait()).await.expect("it ends").unwrap().code()
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("made for the test")
}

fn shows(files: &Files) -> [&str; 6] {
    ["--tls-ca", path(&files.ca), "--tls-cert", path(&files.cert), "--tls-key", path(&files.key)]
}

async fn append(client: &JournalClient, name: &str) {
    let (id, writer_uuid) = (PersistenceId::unique(name).unwrap(), WriterUuid::from_u128(7));
    let journal = client.journal();
    let claim = journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "counted".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "1".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let first = claim.highest.next().unwrap();
    journal.append(Append { id, epoch: claim.epoch, writer_uuid, first, events: vec![event] }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_served_until_a_signal_ends_the_program() {
    let directory = tempfile::tempdir().unwrap();
    for (number, signal) in [(1, "-TERM"), (2, "-INT")] {
        let mut service = Service::start(directory.path(), &[]).await;
        let client = JournalClient::connect(&service.address, ClientSettings::default()).await.unwrap();
        append(&client, &format!("Counter|{number}")).await;
        let health = journal(&["health", &service.address, "--json"]).await;
        assert_eq!(code(&health), 0, "{}", output_text(&health));
        assert_eq!(json(&health)["healthy"], true);
        // A second process that opens the journal meanwhile is refused.
        let second = journal(&["serve", "--listen", "127.0.0.1:0", "--dir", path(directory.path())]).await;
        assert_eq!(code(&second), 3);
        assert!(output_text(&second).contains("another process has it"), "{}", output_text(&second));
        // A connected client does not keep the program from ending in order.
        assert_eq!(service.signal(signal).await, Some(0));
        let away = journal(&["health", &service.address, "--timeout", "200ms"]).await;
        assert_eq!(code(&away), 3, "{}", output_text(&away));
        drop(client);
        let held = json(&journal(&["inspect", &format!("sled:{}", directory.path().display()), "--json"]).await);
        assert_eq!(held["events"], number, "what was acknowledged is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_loopback_address_needs_a_choice_of_encryption() {
    let directory = tempfile::tempdir().unwrap();
    let dir = path(directory.path());
    let open = journal(&["serve", "--dir", dir, "--listen", "0.0.0.0:0"]).await;
    assert_eq!(code(&open), 2);
    assert!(
        output_text(&open).contains("--tls-ca") && output_text(&open).contains("--plain-text"),
        "{}",
        output_text(&open)
    );
    let authority = Authority::new();
    let files = authority.sign("host", &["127.0.0.1"]);
    let mut service = Service::start(directory.path(), &shows(&files)).await;
    let trusted = journal(&[&["health", service.address.as_str()][..], &shows(&files)].concat()).await;
    assert_eq!(code(&trusted), 0, "{}", output_text(&trusted));
    let plain = journal(&["health", &service.address]).await;
    assert_eq!(code(&plain), 6, "{}", output_text(&plain));
    // The authority's files are deleted when it is dropped.
    let others = Authority::new();
    let stranger = others.sign("host", &["127.0.0.1"]);
    let foreign = journal(&[&["health", service.address.as_str()][..], &shows(&stranger)].concat()).await;
    assert_eq!(code(&foreign), 6, "{}", output_text(&foreign));
    let tls = Tls::Files(TlsSettings::new(&files.key, &files.cert, &files.ca));
    let client =
        JournalClient::connect(&service.address, ClientSettings { tls, ..ClientSettings::default() }).await.unwrap();
    append(&client, "Counter|1").await;
    assert_eq!(service.signal("-TERM").await, Some(0));
}
