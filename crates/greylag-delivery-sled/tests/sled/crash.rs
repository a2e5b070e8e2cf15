//! A process killed under load, several times: every acknowledged, unconfirmed message is there, and no confirmed one.
//!
//! The child is this test binary, started with the directory in an environment variable. It prints what it has loaded,
//! then stores and confirms as fast as it can, and prints each acknowledgement. The parent kills it after some of them,
//! and compares the printed lines with what the next child has loaded.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{Confirmation, MessageSent};
use greylag_delivery::{ControllerRef, DurableProducerQueue, KvProducerQueue, SeqNr};
use greylag_delivery_sled::{SledQueueSettings, SledQueues};

const PLACE: &str = "GREYLAG_DELIVERY_CRASH_PLACE";
const CYCLES: u64 = 6;
/// Number of later messages that are stored before a message is confirmed.
const CONFIRM_LAG: u64 = 5;

fn print_line(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn payload(seq_nr: u64) -> Vec<u8> {
    // Every tenth message has several pieces.
    let bytes = if seq_nr.is_multiple_of(10) { 150_000 } else { 100 };
    (0..bytes).map(|at: u64| ((at + seq_nr) % 251) as u8).collect()
}

/// Not a test of its own: the child that the test below starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let queues = SledQueues::open(&place, SledQueueSettings::test()).await.unwrap();
    let mut queue = KvProducerQueue::open(queues, "orders", Default::default()).unwrap();
    let instance = u64::from(std::process::id());
    let controller = ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "orders".into(), instance };
    let state = queue.load(&controller).await.unwrap();
    for sent in &state.unconfirmed {
        assert_eq!(&sent.message.payload[..], &payload(sent.seq_nr.get())[..], "message {}", sent.seq_nr);
    }
    let first = state.unconfirmed.first().map_or(state.current_seq_nr.get(), |sent| sent.seq_nr.get());
    let whole = state.unconfirmed.iter().map(|sent| sent.seq_nr.get()).eq(first..state.current_seq_nr.get());
    assert!(whole, "a message is missing between {first} and {}", state.current_seq_nr);
    print_line(&format!("have {first} {}", state.current_seq_nr));
    for seq_nr in state.current_seq_nr.get().. {
        let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: payload(seq_nr).into() };
        let sent = MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: "".into(), timestamp_ms: 1 };
        queue.store_message_sent(vec![sent]).await.unwrap();
        print_line(&format!("stored 0 {seq_nr}"));
        if let Some(confirmed) = seq_nr.checked_sub(CONFIRM_LAG).filter(|confirmed| *confirmed > 0) {
            let (qualifier, seq_nr) = ("".into(), SeqNr(confirmed));
            queue
                .store_message_confirmed(vec![Confirmation::UpTo { qualifier, seq_nr, timestamp_ms: 1 }])
                .await
                .unwrap();
            print_line(&format!("confirmed 0 {confirmed}"));
        }
    }
}

fn spawn(place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Parses a line of the child: the kind, and two numbers.
fn parse(line: &str) -> Option<(&str, u64, u64)> {
    // Skip output of the test harness at the beginning of the first line.
    let at = ["have ", "stored ", "confirmed "].iter().find_map(|word| line.find(word))?;
    let mut words = line[at..].split_whitespace();
    Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[test]
fn store_killed_under_load_loses_nothing_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let (mut stored, mut confirmed) = (0, 0);
    for cycle in 0..CYCLES {
        let mut child = spawn(place.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = 10 + 17 * cycle;
        let mut take = |line: &str, left: &mut u64| match parse(line) {
            Some(("have", first, current)) => {
                // Calls under way when the process was killed may have been stored or not.
                let (after_confirmed, after_stored) = (confirmed + 1..=confirmed + 2, stored + 1..=stored + 2);
                assert!(after_confirmed.contains(&first), "cycle {cycle}: first {first}, confirmed {confirmed}");
                assert!(after_stored.contains(&current), "cycle {cycle}: next {current}, stored {stored}");
                (stored, confirmed) = (current - 1, first - 1);
            }
            Some((what, _, number)) => {
                *if what == "stored" { &mut stored } else { &mut confirmed } = number;
                *left = left.saturating_sub(1);
            }
            None => {}
        };
        while left > 0 {
            let line = lines.next().expect("the child runs until it is killed").unwrap();
            take(&line, &mut left);
        }
        child.kill().unwrap();
        // The kill may have truncated the last line, and thus its numbers, so it is ignored.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let whole = rest.len().saturating_sub(1);
        rest[..whole].iter().for_each(|line| take(line, &mut left));
        let cut = rest.last().and_then(|line| parse(line));
        if let Some((what, _, number)) = cut {
            let last = if what == "stored" { &mut stored } else { &mut confirmed };
            *last = number.max(*last);
        }
        child.wait().unwrap();
    }
    assert!(stored > 100, "{stored} were stored");
}
