//! Resolves a peer's host name anew for every dial: a name that moved is found at its new address, and each of several
//! addresses is tried. Source: cluster T9.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use greylag_core::NodeAddress;

/// Resolves names by the system; tests answer instead.
#[derive(Default)]
pub(crate) struct Resolver {
    #[cfg(test)]
    answers: std::sync::Mutex<Option<tests::Answers>>,
}

impl Resolver {
    pub(crate) async fn look_up(&self, address: &NodeAddress) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        if let Some(answers) = &mut *self.answers.lock().expect("no answer panics") {
            return Ok(answers(address));
        }
        Ok(tokio::net::lookup_host((address.host(), address.port())).await?.collect())
    }
}

/// The order in which a dial tries the addresses, and the time limit of each. A first address that swallows everything
/// must not use up the time of the others, nor always be first.
pub(crate) fn in_turn(mut found: Vec<SocketAddr>, dial: u64, limit: Duration) -> (Vec<SocketAddr>, Duration) {
    let count = found.len().max(1);
    found.rotate_left(usize::try_from(dial).unwrap_or_default() % count);
    (found, limit / u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greylag_core::{CodecId, UniqueAddress};
    use tokio::sync::mpsc;

    use super::*;
    use crate::driver::grpc::GrpcTransport;
    use crate::messages::envelope::{Envelope, Inbound, Recipient};
    use crate::remoting::{Receiver, Remoting};
    use crate::settings::TransportSettings;

    pub(crate) type Answers = Box<dyn FnMut(&NodeAddress) -> Vec<SocketAddr> + Send>;

    struct Inbox(mpsc::UnboundedSender<Inbound>);

    impl Receiver for Inbox {
        fn receive(&self, message: Inbound) {
            self.0.send(message).unwrap();
        }
    }

    /// Sends a message to a node whose host name the test's resolver answers, and waits until it arrives.
    async fn reaches(answers: impl Fn(u64, SocketAddr) -> Vec<SocketAddr> + Send + 'static) {
        let named = TransportSettings {
            canonical_host: Some("peer.test".to_owned()),
            bind_host: Some("127.0.0.1".to_owned()),
            ..TransportSettings::test()
        };
        let peer = GrpcTransport::bind(named, Arc::default()).await.unwrap();
        let (sender, mut inbox) = mpsc::unbounded_channel();
        peer.register("inbox", Arc::new(Inbox(sender)));
        let hasty = TransportSettings { connection_timeout: Duration::from_millis(500), ..TransportSettings::test() };
        let node = GrpcTransport::bind(hasty, Arc::default()).await.unwrap();
        let to: UniqueAddress = peer.self_address().clone();
        let bound: SocketAddr = ([127, 0, 0, 1], to.address().port()).into();
        let mut asked = 0;
        let answer = move |address: &NodeAddress| {
            assert_eq!(address.host(), "peer.test");
            asked += 1;
            answers(asked, bound)
        };
        *node.shared.resolver.answers.lock().unwrap() = Some(Box::new(answer));
        let envelope = Envelope::new(Recipient::new("inbox"), CodecId::JSON, "number", "1".as_bytes());
        node.send(&to.into(), envelope).unwrap();
        let arrived = tokio::time::timeout(Duration::from_secs(20), inbox.recv()).await;
        assert!(arrived.is_ok(), "it arrives in the end");
    }

    /// A port of this host that refuses connections.
    fn refusing() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// Cluster T9: each dial resolves the name anew.
    #[tokio::test]
    async fn every_dial_asks_for_the_address_anew() {
        let gone = refusing();
        reaches(move |asked, bound| vec![if asked == 1 { gone } else { bound }]).await;
    }

    /// Cluster T9: one of two addresses accepts connections and never sends a byte; the dial reaches the other address.
    #[tokio::test]
    async fn a_dial_finds_the_answering_one_of_two_addresses() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let swallows = silent.local_addr().unwrap();
        reaches(move |_, bound| vec![swallows, bound]).await;
        reaches(move |_, bound| vec![bound, swallows]).await;
    }

    /// Cluster T9: the first of two addresses refuses; the same dial tries the second, which has its share of the time.
    #[tokio::test]
    async fn a_dial_tries_every_address() {
        let gone = refusing();
        reaches(move |asked, bound| if asked == 1 { vec![bound, gone] } else { Vec::new() }).await;
        reaches(move |asked, bound| if asked == 1 { vec![gone, bound] } else { Vec::new() }).await;
        let addresses: Vec<SocketAddr> = [1, 2, 3].map(|port| ([127, 0, 0, 1], port).into()).to_vec();
        let limit = Duration::from_secs(6);
        let firsts = (0..4).map(|dial| in_turn(addresses.clone(), dial, limit).0[0].port());
        assert_eq!(firsts.collect::<Vec<_>>(), [1, 2, 3, 1]);
        assert_eq!(in_turn(addresses, 0, limit).1, Duration::from_secs(2));
        assert_eq!(in_turn(Vec::new(), 7, limit), (Vec::new(), limit));
    }
}
