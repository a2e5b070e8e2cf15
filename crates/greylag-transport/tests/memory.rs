//! The memory that a hostile frame takes. The system counts memory for the whole process, so the test has a process of
//! its own.

#![cfg(target_os = "linux")]

#[path = "suite/common/mod.rs"]
mod common;

use common::raw;
use common::raw::{Hello, Raw};
use common::{node, until};
use greylag_transport::{Intrusion, TransportSettings};

/// The bytes that a connection and its buffers take beside the frame.
const BESIDE: usize = 2 << 20;

/// The peak resident memory of this process since the counter was reset.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn count_anew() -> usize {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak()
}

/// Cluster 82, T36: the values that a frame asks for are refused, or made in parts, before they take more than twice
/// the bytes of the frame.
#[tokio::test]
async fn scenario_82_a_frame_of_two_mebibytes_takes_no_more_than_twice_its_bytes() {
    let target = node(TransportSettings::test()).await;
    let stats = || target.transport.stats();
    let countless = raw::bytes(3, &raw::bytes(1, &[]).repeat(1 << 20));
    let beside_unknown = [&countless[..], &[0xf8, 0x06, 0x01]].concat();
    let unknown_first = [&[0xf8, 0x06, 0x01], &countless[..]].concat();
    // Each envelope could be read, but the frame holds more of them than allowed.
    let for_nobody = raw::empty_envelopes((2 << 20) / 18);
    let mut took = Vec::new();
    for (n, frame) in (0..).zip([beside_unknown, unknown_first, countless, for_nobody]) {
        let mut caller = Raw::connect(target.port()).await;
        caller.call().await;
        caller
            .say(&Hello { port: 4800 + n, uid: 80 + u64::from(n), lane: 3, ..Hello::to(target.port()) }.frame())
            .await;
        caller.settle().await;
        let (len, bytes) = (frame.len(), raw::data_frames(&frame));
        drop(frame);
        let before = count_anew();
        caller.send(&bytes).await;
        until(|| stats().intruded(Intrusion::Malformed) == u64::from(n) + 1).await;
        took.push((len, peak() - before));
    }
    assert!(took.iter().all(|(len, took)| *took <= 2 * len + BESIDE), "bytes, and what they took: {took:?}");
}
