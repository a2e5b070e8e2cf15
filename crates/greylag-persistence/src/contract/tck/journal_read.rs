//! Reading and deleting: J2, J6 to J9.

use std::sync::Arc;

use super::harness::{Checked, ensure, equal, must};
use super::writer::{Writer, event, id, numbers, read_all, seq};
use crate::contract::driver::journal_store::Journal;
use crate::contract::head::Head;
use crate::contract::journal::{Page, ReadRange};
use crate::contract::records::event::SeqNr;

type J<'a> = &'a Arc<dyn Journal>;

/// Reads one page of five stored events and compares numbers and `next`.
async fn page(
    journal: J<'_>,
    name: &str,
    from: u32,
    to: u32,
    max_events: usize,
    expected: &[u64],
    next: Option<u32>,
) -> Checked {
    let writer = Writer::with_events(journal, name, 5).await?;
    let range = ReadRange { max_events, ..ReadRange::new(seq(from), seq(to)) };
    let Page { records, next: found } = must("read", journal.read(&writer.id, range).await)?;
    equal("numbers", numbers(&records), expected.to_vec())?;
    for record in &records {
        equal("payload", record.payload.to_vec(), record.seq_nr.to_string().into_bytes())?;
    }
    equal("next page", found, next.map(seq))
}

pub(super) async fn replay_all(journal: J<'_>) -> Checked {
    page(journal, "replay-all", 1, u32::MAX, 1000, &[1, 2, 3, 4, 5], None).await
}

pub(super) async fn lower_bound(journal: J<'_>) -> Checked {
    page(journal, "lower-bound", 3, u32::MAX, 1000, &[3, 4, 5], None).await
}

pub(super) async fn upper_bound(journal: J<'_>) -> Checked {
    page(journal, "upper-bound", 1, 3, 1000, &[1, 2, 3], None).await
}

pub(super) async fn count_limit(journal: J<'_>) -> Checked {
    page(journal, "count-limit", 1, u32::MAX, 3, &[1, 2, 3], Some(4)).await
}

pub(super) async fn both_bounds(journal: J<'_>) -> Checked {
    page(journal, "both-bounds", 2, 4, 1000, &[2, 3, 4], None).await
}

pub(super) async fn both_bounds_and_limit(journal: J<'_>) -> Checked {
    page(journal, "bounds-limit", 2, 5, 2, &[2, 3], Some(4)).await
}

pub(super) async fn from_equals_to(journal: J<'_>) -> Checked {
    page(journal, "from-is-to", 3, 3, 1000, &[3], None).await
}

pub(super) async fn limit_one(journal: J<'_>) -> Checked {
    page(journal, "limit-one", 2, 4, 1, &[2], Some(3)).await
}

pub(super) async fn limit_zero(journal: J<'_>) -> Checked {
    page(journal, "limit-zero", 1, 5, 0, &[], None).await
}

pub(super) async fn from_beyond_to(journal: J<'_>) -> Checked {
    page(journal, "from-beyond", 4, 2, 1000, &[], None).await
}

pub(super) async fn unknown_id(journal: J<'_>) -> Checked {
    let id = id("never-written");
    equal("page of an unknown id", must("read", journal.read(&id, ReadRange::all()).await)?, Page::default())?;
    equal("head of an unknown id", must("head", journal.head(&id).await)?, Head::default())
}

/// A writer with events 1 to 5, of which 1 to 3 are deleted.
async fn with_deleted(journal: J<'_>, name: &str) -> Checked<Writer> {
    let writer = Writer::with_events(journal, name, 5).await?;
    equal("deleted up to", must("delete_to 3", writer.delete_to(seq(3)).await)?, seq(3))?;
    Ok(writer)
}

async fn after_delete(journal: J<'_>, name: &str, from: u32, to: u32, expected: &[u64]) -> Checked {
    let writer = with_deleted(journal, name).await?;
    let range = ReadRange::new(seq(from), seq(to));
    let records = read_all(journal, &writer.id, range).await?;
    equal("numbers", numbers(&records), expected.to_vec())
}

pub(super) async fn delete_prefix(journal: J<'_>) -> Checked {
    after_delete(journal, "delete-prefix", 1, u32::MAX, &[4, 5]).await
}

pub(super) async fn highest_kept_after_partial_delete(journal: J<'_>) -> Checked {
    let writer = with_deleted(journal, "highest-partial").await?;
    let head = must("head", journal.head(&writer.id).await)?;
    equal("highest and deleted_to", (head.highest, head.deleted_to), (seq(5), seq(3)))
}

pub(super) async fn highest_kept_after_delete_all(journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "highest-all", 5).await?;
    equal("deleted up to", must("delete_to MAX", writer.delete_to(SeqNr::MAX).await)?, seq(5))?;
    let again = Writer::claim(journal, &writer.id, 2).await?;
    equal("highest and deleted_to", (again.claim.highest, again.claim.deleted_to), (seq(5), seq(5)))?;
    must("append that continues the numbers", again.append(6, vec![event("6")]).await)?;
    again.expect("numbers", &[6]).await
}

pub(super) async fn from_last_deleted(journal: J<'_>) -> Checked {
    after_delete(journal, "from-deleted", 3, 5, &[4, 5]).await
}

pub(super) async fn to_inside_deleted(journal: J<'_>) -> Checked {
    after_delete(journal, "to-inside", 1, 2, &[]).await
}

pub(super) async fn to_last_deleted(journal: J<'_>) -> Checked {
    after_delete(journal, "to-deleted", 1, 3, &[]).await
}

pub(super) async fn from_first_survivor(journal: J<'_>) -> Checked {
    after_delete(journal, "from-survivor", 4, 5, &[4, 5]).await
}

pub(super) async fn window_spans_deleted(journal: J<'_>) -> Checked {
    after_delete(journal, "spans", 2, 4, &[4]).await
}

pub(super) async fn pages_chain(journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("pages"), 1).await?;
    let sizes = [10, 3000, 1, 500, 500, 500, 20_000, 5, 700, 0, 9, 1200];
    for (first, size) in (1..).zip(sizes) {
        must("append", writer.append(first, vec![event("x".repeat(size))]).await)?;
    }
    let whole = writer.read(1, SeqNr::MAX).await?;
    equal("numbers", numbers(&whole), (1..=12).collect())?;
    for (max_events, max_bytes) in [(1, 1 << 20), (5, 1 << 20), (12, 1 << 20), (1000, 1), (1000, 1000), (4, 2500)] {
        let mut range = ReadRange { max_events, max_bytes, ..ReadRange::all() };
        let mut chained = Vec::new();
        loop {
            let page = must("read", journal.read(&writer.id, range).await)?;
            let bytes: usize = page.records.iter().map(|record| record.payload.len()).sum();
            let what = || {
                format!("a page of {max_events} events and {max_bytes} bytes has {} and {bytes}", page.records.len())
            };
            ensure(!page.records.is_empty() && page.records.len() <= max_events, what)?;
            ensure(bytes <= max_bytes || page.records.len() == 1, what)?;
            chained.extend(page.records);
            match page.next {
                Some(next) => range.from = next,
                None => break,
            }
        }
        let what = format!("pages of {max_events} events and {max_bytes} bytes, chained");
        equal(&what, numbers(&chained), numbers(&whole))?;
        equal(&what, chained, whole.clone())?;
    }
    Ok(())
}

pub(super) async fn delete_idempotent(journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "delete-again", 5).await?;
    for (to, effective) in [(3, 3), (3, 3), (1, 3), (0, 3), (4, 4), (99, 5), (2, 5)] {
        let deleted = must("delete_to", writer.delete_to(seq(to)).await)?;
        equal(&format!("delete_to {to} answers"), deleted, seq(effective))?;
        let head = must("head", journal.head(&writer.id).await)?;
        equal("highest and deleted_to", (head.highest, head.deleted_to), (seq(5), seq(effective)))?;
        let left: Vec<u64> = (u64::from(effective) + 1..=5).collect();
        writer.expect(&format!("left after delete_to {to}"), &left).await?;
    }
    Ok(())
}
