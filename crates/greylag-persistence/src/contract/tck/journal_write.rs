//! Appending: J1, J3, J5, J11, J12, limits, and that events are read as they were written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use greylag_core::CodecId;

use super::factories::JournalFactory;
use super::harness::{Checked, Flags, Stop, ensure, equal, must, skip};
use super::writer::{Writer, event, id, numbers, read_all, seq};
use crate::contract::driver::journal_store::Journal;
use crate::contract::error::{AppendError, ReadError, RejectReason};
use crate::contract::head::Under;
use crate::contract::journal::{Health, ReadRange};
use crate::contract::records::event::{EventKind, NewEvent, SeqNr};
use crate::contract::records::persistence_id::PersistenceId;

type J<'a> = &'a Arc<dyn Journal>;

fn events(count: usize) -> Vec<NewEvent> {
    (1..=count).map(|number| event(number.to_string())).collect()
}

pub(super) async fn atomic_append(journal: J<'_>) -> Checked {
    let max = journal.caps().max_atomic_events;
    let writer = Writer::claim(journal, &id("atomic"), 1).await?;
    must("append of two", writer.append(1, events(2)).await)?;
    must("append of max_atomic_events", writer.append(3, events(max)).await)?;
    let records = writer.read(1, SeqNr::MAX).await?;
    equal("numbers", numbers(&records), (1..=max as u64 + 2).collect())?;
    ensure(records[2..].iter().all(|record| record.timestamp == records[2].timestamp), || {
        "the events of one append have one timestamp".to_owned()
    })?;
    let first = u32::try_from(max + 3).map_err(|_| Stop::Failed("max_atomic_events is too large".to_owned()))?;
    let refused = writer.append(first, events(max + 1)).await;
    ensure(matches!(refused, Err(AppendError::Rejected(RejectReason::TooManyEvents { .. }))), || {
        format!("max_atomic_events + 1 must be rejected, but: {refused:?}")
    })?;
    equal("nothing of it is stored", writer.read(first, SeqNr::MAX).await?, vec![])?;
    let empty = writer.append(first, vec![]).await;
    ensure(matches!(empty, Err(AppendError::Rejected(RejectReason::Empty))), || {
        format!("an empty append must be rejected, but: {empty:?}")
    })
}

pub(super) async fn taken_number(journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "taken", 3).await?;
    let before = writer.read(1, SeqNr::MAX).await?;
    for first in 1..=3 {
        let refused = writer.append(first, vec![event("other"), event("content")]).await;
        equal("append of a taken number", refused, Err(AppendError::Conflict { highest: seq(3) }))?;
    }
    equal("the first content is intact", writer.read(1, SeqNr::MAX).await?, before)
}

pub(super) async fn number_beyond_next(journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "beyond", 3).await?;
    let refused = writer.append(5, vec![event("5")]).await;
    equal("append that leaves a hole", refused, Err(AppendError::Conflict { highest: seq(3) }))?;
    writer.expect("numbers", &[1, 2, 3]).await
}

pub(super) async fn payload_sizes(journal: J<'_>, flags: &Flags) -> Checked {
    let writer = Writer::claim(journal, &id("sizes"), 1).await?;
    let max = journal.caps().max_event_bytes;
    let mut sizes = vec![0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1];
    sizes.extend([1 << 20, max].into_iter().filter(|size| flags.largest && *size <= max));
    for (number, size) in (1..).zip(sizes) {
        // Varied bytes, so that lost or swapped chunks show.
        let payload: Vec<u8> = (0..size).map(|at: usize| (at.wrapping_mul(31) >> 3) as u8).collect();
        let large = NewEvent { payload: Bytes::from(payload.clone()), ..event("") };
        must(&format!("append of {size} bytes"), writer.append(number, vec![large]).await)?;
        let records = writer.read(number, SeqNr::MAX).await?;
        ensure(records.len() == 1 && records[0].payload == payload, || format!("{size} bytes do not come back"))?;
    }
    let next = must("head", journal.head(&writer.id).await)?.highest.next().unwrap_or(SeqNr::MAX);
    let first = u32::try_from(next.as_u64()).unwrap_or(u32::MAX);
    let too_large = NewEvent { payload: Bytes::from(vec![7; max + 1]), ..event("") };
    let refused = writer.append(first, vec![event("fits"), too_large]).await;
    ensure(matches!(refused, Err(AppendError::Rejected(RejectReason::EventTooLarge { .. }))), || {
        format!("max_event_bytes + 1 must be rejected, but: {refused:?}")
    })?;
    equal("nothing of it is stored", writer.read(first, SeqNr::MAX).await?, vec![])
}

pub(super) async fn fields_come_back(journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("fields"), 0xdead_beef).await?;
    let rich = NewEvent {
        codec_id: CodecId::from_u32(1234),
        manifest: "m".repeat(255),
        schema_version: u32::MAX,
        metadata: [("gl.delivery".to_owned(), Bytes::from_static(b"\0\xff")), (String::new(), Bytes::new())].into(),
        tags: ["red".to_owned(), "grün".to_owned(), "t".repeat(128)].into(),
        ..event("rich")
    };
    must("append", writer.append(1, vec![rich.clone(), event("plain")]).await)?;
    let records = writer.read(1, SeqNr::MAX).await?;
    let append = writer.build(1, vec![rich, event("plain")]);
    let timestamp = records.first().map(|record| record.timestamp).unwrap_or_default();
    equal("records", records, append.records(timestamp))?;
    for (what, refused) in [
        ("an empty manifest", NewEvent { manifest: String::new(), ..event("") }),
        ("a manifest of 256 bytes", NewEvent { manifest: "m".repeat(256), ..event("") }),
        ("17 tags", NewEvent { tags: (0..17).map(|number| number.to_string()).collect(), ..event("") }),
        ("a tag of 129 bytes", NewEvent { tags: ["t".repeat(129)].into(), ..event("") }),
        ("an empty tag", NewEvent { tags: [String::new()].into(), ..event("") }),
        ("a tag with the separator", NewEvent { tags: ["a\u{1f}b".to_owned()].into(), ..event("") }),
    ] {
        let answer = writer.append(3, vec![refused]).await;
        ensure(matches!(answer, Err(AppendError::Rejected(_))), || {
            format!("{what} must be rejected, but: {answer:?}")
        })?;
    }
    writer.expect("numbers", &[1, 2]).await
}

pub(super) async fn filtered_record(journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("filtered"), 1).await?;
    let filtered = NewEvent {
        kind: EventKind::Filtered,
        metadata: [("gl.delivery".to_owned(), Bytes::from_static(b"kept"))].into(),
        ..event("")
    };
    must("append", writer.append(1, vec![event("a"), filtered.clone(), event("b")]).await)?;
    let records = writer.read(1, SeqNr::MAX).await?;
    equal("numbers", numbers(&records), vec![1, 2, 3])?;
    equal("kind", records[1].kind, EventKind::Filtered)?;
    equal("metadata", records[1].metadata.clone(), filtered.metadata.clone())?;
    let answer = writer.append(4, vec![NewEvent { payload: Bytes::from_static(b"x"), ..filtered }]).await;
    ensure(matches!(answer, Err(AppendError::Rejected(_))), || {
        format!("a filtered event with a payload must be rejected, but: {answer:?}")
    })
}

pub(super) async fn odd_ids(journal: J<'_>) -> Checked {
    let long = "x".repeat(255);
    let texts = ["p", "p|", "p|1", "p|1|", "p|10", "p|2", "p\u{7fff}", "日本|東京", "日本|東", " p", &long, &long[1..]];
    let parse = |text: &str| text.parse::<PersistenceId>().map_err(|error| Stop::Failed(error.to_string()));
    for (uuid, text) in (1..).zip(texts) {
        let writer = Writer::claim(journal, &parse(text)?, uuid).await?;
        must("append", writer.append(1, vec![event(text), event(text)]).await)?;
    }
    for text in texts {
        let records = read_all(journal, &parse(text)?, ReadRange::all()).await?;
        let fine =
            records.len() == 2 && records.iter().all(|record| record.payload == text && record.id.as_str() == text);
        ensure(fine, || format!("{text:?} must see its own two records, but sees {}", records.len()))?;
    }
    let first = Writer::claim(journal, &parse("p")?, 99).await?;
    must("delete_to MAX", first.delete_to(SeqNr::MAX).await)?;
    for text in &texts[1..] {
        let records = read_all(journal, &parse(text)?, ReadRange::all()).await?;
        equal(&format!("records of {text:?} after \"p\" is deleted"), records.len(), 2)?;
    }
    Ok(())
}

pub(super) async fn timestamps_rise(factory: &impl JournalFactory, journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("timestamps"), 1).await?;
    let mut last = None;
    let mut turned = false;
    for first in 1..=200 {
        let appended = must("append", writer.append(first, vec![event("t")]).await)?;
        ensure(last.is_none_or(|last| last < appended.timestamp), || {
            format!("append {first} has {}, the one before {last:?}", appended.timestamp)
        })?;
        last = Some(appended.timestamp);
        if first == 100 {
            turned = factory.turn_clock_back(journal, Duration::from_secs(3600)).await;
        }
    }
    let records = writer.read(1, SeqNr::MAX).await?;
    ensure(records.windows(2).all(|pair| pair[0].timestamp < pair[1].timestamp), || {
        "stored timestamps must rise as the answered ones".to_owned()
    })?;
    if turned {
        factory.turn_clock_back(journal, Duration::ZERO).await;
        Ok(())
    } else {
        skip("they rise; no hook to turn the clock back")
    }
}

pub(super) async fn concurrent_ids(journal: J<'_>, flags: &Flags) -> Checked {
    const APPENDS: u32 = 20;
    let one = |number: u32| async move {
        let writer = Writer::claim(journal, &id(&format!("concurrent-{number}")), u128::from(number) + 1).await?;
        for first in 1..=APPENDS {
            must("append", writer.append(first, vec![event(format!("{number}-{first}"))]).await)?;
        }
        Ok(writer)
    };
    for writer in join_all((0..flags.concurrent_ids).map(one)).await {
        let writer = writer?;
        writer.expect(&format!("numbers of {}", writer.id), &(1..=u64::from(APPENDS)).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

pub(super) async fn rejected_leaves_others(journal: J<'_>) -> Checked {
    let mut writers = Vec::new();
    for number in 0..9 {
        writers.push(Writer::claim(journal, &id(&format!("group-{number}")), number + 1).await?);
    }
    let too_large = NewEvent { payload: Bytes::from(vec![0; journal.caps().max_event_bytes + 1]), ..event("") };
    let appends = writers.iter().enumerate().map(|(number, writer)| {
        let (first, content) = match number {
            3 => (1, too_large.clone()),
            6 => (2, event("leaves a hole")),
            _ => (1, event("fine")),
        };
        writer.append(first, vec![content])
    });
    for (number, answer) in join_all(appends).await.into_iter().enumerate() {
        let fine = match number {
            3 => matches!(answer, Err(AppendError::Rejected(_))),
            6 => matches!(answer, Err(AppendError::Conflict { .. })),
            _ => answer.is_ok(),
        };
        ensure(fine, || format!("append {number} of the group answers {answer:?}"))?;
        let expected: &[u64] = if matches!(number, 3 | 6) { &[] } else { &[1] };
        writers[number].expect(&format!("stored by append {number} of the group"), expected).await?;
    }
    Ok(())
}

pub(super) async fn corrupted_byte(factory: &impl JournalFactory, journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "corrupt", 5).await?;
    let other = Writer::with_events(journal, "corrupt-not", 5).await?;
    if !factory.corrupt(journal, &writer.id, seq(3)).await {
        return skip("no hook to break a stored byte");
    }
    let answer = journal.read(&writer.id, ReadRange::all()).await;
    let named =
        matches!(&answer, Err(ReadError::Corrupt(corrupt)) if corrupt.id == writer.id && corrupt.seq_nr == seq(3));
    ensure(named, || format!("reading a broken record must answer Corrupt at 3, but: {answer:?}"))?;
    let before = must("read before it", journal.read(&writer.id, ReadRange::new(seq(1), seq(2))).await)?;
    equal("what stands before it", numbers(&before.records), vec![1, 2])?;
    other.expect("another id", &[1, 2, 3, 4, 5]).await
}

pub(super) async fn health_and_close(factory: &impl JournalFactory) -> Checked {
    let journal = factory.open().await;
    let writer = Writer::with_events(&journal, "closing", 1).await?;
    equal("health of an open journal", journal.health(), Health::Up)?;
    must("close", journal.close().await)?;
    ensure(matches!(journal.health(), Health::Down(_)), || format!("closed, but {}", journal.health()))?;
    ensure(journal.head(&writer.id).await.is_err(), || "a closed journal answers head".to_owned())?;
    ensure(journal.read(&writer.id, ReadRange::all()).await.is_err(), || "a closed journal answers read".to_owned())?;
    ensure(journal.claim(&writer.id, writer.uuid, Under::Seen(writer.epoch())).await.is_err(), || {
        "a closed journal grants claims".to_owned()
    })?;
    let answer = writer.append(2, vec![event("2")]).await;
    ensure(matches!(answer, Err(AppendError::NotStored(_) | AppendError::Unknown(_))), || {
        format!("a closed journal answers an append {answer:?}")
    })
}
