//! A listener in the place of a stopped server: it closes every connection at once, and measures how long clients wait
//! between their tries.
//!
//! The delay of a client after its server is back cannot be measured on a busy machine, since its answer may be late
//! for many reasons. The waits between its tries can, since nothing makes a wait shorter.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Connections closer together than this belong to one try.
const ONE_TRY: Duration = Duration::from_millis(20);

/// The shortest of `count` waits between the tries of a client to connect to `address`, where no server may listen.
/// `None` if there are fewer within `time_limit`. Blocks its thread.
///
/// # Panics
/// If the address cannot be bound.
pub fn shortest_wait(address: SocketAddr, count: usize, time_limit: Duration) -> Option<Duration> {
    let listener = TcpListener::bind(address).expect("no server listens at the address");
    listener.set_nonblocking(true).expect("a listener can be made non-blocking");
    let (begun, mut last, mut waits) = (Instant::now(), None::<Instant>, Vec::new());
    while waits.len() < count {
        match listener.accept() {
            Ok(connection) => {
                drop(connection);
                let wait = last.replace(Instant::now()).map(|last| last.elapsed());
                waits.extend(wait.filter(|wait| *wait > ONE_TRY));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("accepting a connection failed: {error}"),
        }
        if begun.elapsed() > time_limit {
            return None;
        }
    }
    waits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn connections_of_one_try_do_not_count_as_a_wait() {
        let address = crate::port::unused();
        let client = std::thread::spawn(move || {
            let mut has_met = false;
            loop {
                let is_there = (0..2).all(|_| TcpStream::connect(address).is_ok());
                if has_met && !is_there {
                    return;
                }
                has_met |= is_there;
                std::thread::sleep(Duration::from_millis(60));
            }
        });
        let shortest = shortest_wait(address, 3, Duration::from_secs(30)).expect("it tries again and again");
        assert!(shortest >= Duration::from_millis(40), "{shortest:?}");
        client.join().unwrap();
        assert_eq!(shortest_wait(address, 1, Duration::from_millis(1)), None, "nothing comes");
    }
}
