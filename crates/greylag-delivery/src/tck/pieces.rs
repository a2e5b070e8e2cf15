//! Cases of queues that store a message in pieces: an incomplete message at the end counts as never stored.

use super::case::{Case, Checked, Failure, expect_eq, message, store};
use super::{Piece, QueueBench, Report};
use crate::driver::DurableProducerQueue;
use crate::ids::SeqNr;

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("an incomplete message at the end was never stored (37)", partial_tail(bench).await);
}

fn piece(seq_nr: u64, first: bool, last: bool, bytes: &'static str) -> Piece {
    Piece { seq_nr: SeqNr(seq_nr), first, last, bytes }
}

async fn partial_tail<B: QueueBench>(bench: &B) -> Checked {
    let a = || piece(1, true, true, "a");
    let cases = [
        (vec![a(), piece(2, true, false, "b"), piece(2, false, false, "c")], vec!["a"]),
        (
            vec![a(), piece(2, true, false, "d"), piece(2, false, true, "e"), piece(3, true, true, "f")],
            vec!["a", "de", "f"],
        ),
        (vec![a(), piece(2, true, false, "d"), piece(2, false, true, "e")], vec!["a", "de"]),
        (vec![a(), piece(2, true, true, "g"), piece(3, true, false, "h")], vec!["a", "g"]),
        (vec![piece(1, true, false, "i")], vec![]),
    ];
    for (pieces, complete) in cases {
        let case = Case::new(bench, "pieces");
        if !bench.plant(&case.name, &pieces).await {
            return Err(Failure::Skipped("no hook that puts pieces into a queue"));
        }
        let (mut queue, state) = case.loaded(1).await?;
        let found: Vec<_> = state.unconfirmed.iter().map(|sent| sent.message.payload.clone()).collect();
        expect_eq(&found, &complete.iter().map(|text| (*text).into()).collect(), "the complete messages")?;
        let next = complete.len() as u64 + 1;
        expect_eq(&state.current_seq_nr, &SeqNr(next), "the next number")?;
        let stored = queue.store_message_sent(vec![message(next, "", "new")]).await?;
        expect_eq(&stored, &SeqNr(next), "a store after that")?;
        store(&mut queue, [next + 1]).await?;
        bench.close(queue).await;
        let state = case.stored(2).await?;
        let kept = state.unconfirmed.get(complete.len()).map(|sent| sent.message.payload.clone());
        expect_eq(&kept, &Some("new".into()), "the message that got the number of the incomplete one")?;
    }
    Ok(())
}
