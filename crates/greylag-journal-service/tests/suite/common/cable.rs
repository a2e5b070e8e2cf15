//! A proxy between client and server that can swallow answers, and be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards every connection to one server.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    /// Connections made while the count of cuts has this value lose the server's answers.
    swallows: Arc<AtomicU64>,
    /// Count of cuts.
    cuts: watch::Sender<u64>,
}

impl Cable {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (swallows, cuts) = (Arc::new(AtomicU64::new(u64::MAX)), watch::Sender::new(0));
        let (swallowing, cut) = (swallows.clone(), cuts.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                tokio::spawn(carry(client, server, swallowing.clone(), cut.clone()));
            }
        });
        Self { address, swallows, cuts }
    }

    /// Drops all that the server sends on the present connections, until the next cut.
    pub(crate) fn swallow_answers(&self) {
        self.swallows.store(*self.cuts.borrow(), Ordering::SeqCst);
    }

    /// Ends every connection; later connections are whole.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn carry(client: TcpStream, server: TcpStream, swallows: Arc<AtomicU64>, mut cuts: watch::Receiver<u64>) {
    let made_after = *cuts.borrow_and_update();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let there = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let back = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<_, std::io::Error>(());
            }
            if swallows.load(Ordering::SeqCst) != made_after {
                to_client.write_all(&buffer[..read]).await?;
            }
        }
    };
    tokio::select! {
        _ = there => {}
        _ = back => {}
        _ = cuts.changed() => {}
    }
}
