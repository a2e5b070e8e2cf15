//! The text format of messages in transcripts.

pub(crate) mod consumer;
pub(crate) mod link;
pub(crate) mod point_to_point;
pub(crate) mod producer;
pub(crate) mod sharding;
pub(crate) mod storing;
pub(crate) mod work_pulling;

use greylag_delivery::{ControllerRef, Epoch, SequencedMessage, StreamId, Upstream};

/// Controllers have names of a letter and a number, as in the specification: `P1`, `C2`, `B10`.
pub(crate) fn controller(name: &str) -> ControllerRef {
    ControllerRef { node: "n:1#1".parse().unwrap(), path: name.into(), instance: 1 }
}

/// `Req(0,20)`, `ReqT(0,20)` after a timeout, `Ack(2,20)`, `Resend(3,4)`, `Register`, `Fenced(s,e)`.
pub(crate) fn upstream(message: &Upstream) -> String {
    match message {
        Upstream::Request { confirmed, up_to, support_resend, via_timeout } => {
            let kind = if *via_timeout { "ReqT" } else { "Req" };
            let lossy = if *support_resend { "" } else { " lossy" };
            format!("{kind}({confirmed},{up_to}){lossy}")
        }
        Upstream::Ack { confirmed, up_to } => format!("Ack({confirmed},{up_to})"),
        Upstream::Resend { from, to } => format!("Resend({from},{to})"),
        Upstream::RegisterConsumer => "Register".to_owned(),
        Upstream::Fenced { stream_id, newer } => format!("Fenced({stream_id:?},{newer})"),
    }
}

/// Parses the format of [`upstream`]; `lossy` comes from the case.
pub(crate) fn parse_upstream(text: &str, lossy: bool) -> Upstream {
    let (kind, arguments) = text.split_once('(').unwrap_or((text, ""));
    let numbers: Vec<u64> =
        arguments.trim_end_matches(')').split(',').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect();
    match kind {
        "Req" | "ReqT" => Upstream::Request {
            confirmed: numbers[0],
            up_to: numbers[1],
            support_resend: !lossy,
            via_timeout: kind == "ReqT",
        },
        "Ack" => Upstream::Ack { confirmed: numbers[0], up_to: numbers[1] },
        "Resend" => Upstream::Resend { from: numbers[0], to: numbers[1] },
        "Register" => Upstream::RegisterConsumer,
        "Fenced" => Upstream::Fenced { stream_id: StreamId(u128::from(numbers[0])), newer: Epoch(numbers[1]) },
        other => panic!("no upstream message {other}"),
    }
}

/// `F1(1)` with `first`, `F(2)`; the total when it differs, `F(2:7)`; then `a` for ack and `[`, `-`,
/// `]` for a first, middle or last chunk.
pub(crate) fn frame<P>(message: &SequencedMessage<P>) -> String {
    let frame = &message.frame;
    let first = if message.first { "F1" } else { "F" };
    let total = if frame.total.get() == frame.seq_nr { String::new() } else { format!(":{}", frame.total) };
    let chunk = match (frame.first_chunk, frame.last_chunk) {
        (true, true) => "",
        (true, false) => "[",
        (false, false) => "-",
        (false, true) => "]",
    };
    let ack = if frame.ack { "a" } else { "" };
    format!("{first}({}{total}){ack}{chunk}", frame.seq_nr)
}
