//! A proxy in front of the server that knows its traffic: it breaks the connection at a chosen statement, before or
//! after the server has run it, or changes something on the server in between.
//!
//! The proxy does not parse the protocol. A piece of traffic that contains the watched id is taken for a statement
//! about that id, which holds as long as statements are small and connections are not encrypted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// An action at the next statement about the watched id.
pub(crate) enum Step {
    /// Carries the statement to the server or not, and breaks the connection before the answer.
    Break { carried: bool },
    /// Carries nothing more on this connection, without telling either end.
    Silence,
    /// Runs this, then carries the statement.
    Before(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct Script {
    watched: Vec<u8>,
    steps: VecDeque<Step>,
}

/// The proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    script: Arc<Mutex<Script>>,
    /// Count of answered bytes.
    answered: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script: Arc<Mutex<Script>> = Arc::default();
        let answered: Arc<AtomicU64> = Arc::default();
        let (scripted, counted) = (script.clone(), answered.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server, scripted.clone(), counted.clone()));
            }
        });
        Self { port, script, answered }
    }

    /// Sets the steps for the next statements that contain `watched`, one each.
    pub(crate) fn script(&self, watched: &str, steps: impl IntoIterator<Item = Step>) {
        *self.script.lock().unwrap() = Script { watched: watched.into(), steps: steps.into_iter().collect() };
    }

    /// Count of answered bytes.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Count of steps that have not happened.
    pub(crate) fn left(&self) -> usize {
        self.script.lock().unwrap().steps.len()
    }
}

async fn carry(near: TcpStream, server: u16, script: Arc<Mutex<Script>>, answered: Arc<AtomicU64>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let muted = AtomicBool::new(false);
    // When one side ends, both are closed.
    tokio::select! {
        _ = answers(far_in, near_out, &muted, &answered) => {}
        _ = statements(near_in, far_out, &muted, &script) => {}
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    muted: &AtomicBool,
    answered: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        // An answer comes after the commit, so dropping it loses the answer to a stored append.
        if length == 0 || muted.load(Ordering::SeqCst) {
            return Ok(());
        }
        answered.fetch_add(length as u64, Ordering::Relaxed);
        to.write_all(&buffer[..length]).await?;
    }
}

async fn statements(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    muted: &AtomicBool,
    script: &Mutex<Script>,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let piece = &buffer[..length];
        match next_step(script, piece) {
            Some(Step::Break { carried: false }) => return Ok(()),
            Some(Step::Break { carried: true }) => {
                muted.store(true, Ordering::SeqCst);
                to.write_all(piece).await?;
            }
            Some(Step::Silence) => std::future::pending().await,
            Some(Step::Before(first)) => {
                tokio::task::block_in_place(first);
                to.write_all(piece).await?;
            }
            None => to.write_all(piece).await?,
        }
    }
}

fn next_step(script: &Mutex<Script>, piece: &[u8]) -> Option<Step> {
    let mut script = script.lock().unwrap();
    let is_about_it =
        !script.watched.is_empty() && piece.windows(script.watched.len()).any(|part| part == script.watched);
    if is_about_it { script.steps.pop_front() } else { None }
}
