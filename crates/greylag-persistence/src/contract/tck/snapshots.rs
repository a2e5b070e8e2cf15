//! The snapshot cases, by their numbers in persistence §4.5.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use greylag_core::CodecId;

use super::factories::SnapshotFactory;
use super::harness::{Checked, Flags, Report, Stop, cases, ensure, equal, must, skip};
use super::writer::seq;
use crate::contract::driver::journal_store::SnapshotStore;
use crate::contract::error::SnapshotError;
use crate::contract::records::event::{Metadata, SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCriteria};

type S<'a> = &'a Arc<dyn SnapshotStore>;

/// Runs every snapshot case against a fresh store of `factory`, in the order of their numbers.
pub async fn snapshots(factory: &impl SnapshotFactory, flags: Flags) -> Report {
    let store = &factory.open().await;
    let mut report = Report::default();
    cases! {report, &flags;
        "01 unknown id" => unknown_id(store);
        "02 timestamp bound excludes all" => timestamp_excludes_all(store);
        "03 seq bound excludes all" => seq_excludes_all(store);
        "04 newest" => newest(store);
        "05 newest under seq bound" => newest_under_seq(store);
        "06 under seq and timestamp" => under_seq_and_timestamp(store);
        "07 delete one by seq" => delete_one(store);
        "08 delete matching both bounds" => delete_matching(store);
        "09 non-matching timestamp deletes nothing" => delete_non_matching(store);
        "10 overwrite same seq" => overwrite(store);
        "11 sizes" => sizes(store, &flags);
        "12 metadata" => metadata(store);
        "13 codec, manifest, version" => fields_come_back(store);
        "14 a save under way" => save_under_way(store);
        "15 corrupted newest, older loadable" => corrupted_newest(factory, store);
        "16 ids that are prefixes" => prefixes(store);
        "17 close" => close(factory);
    }
    report
}

fn id(name: &str) -> PersistenceId {
    PersistenceId::of("tck-snapshot", name).expect("names of cases are valid ids")
}

fn state(id: &PersistenceId, number: u32, payload: impl Into<Bytes>) -> NewSnapshot {
    NewSnapshot {
        id: id.clone(),
        seq_nr: seq(number),
        codec_id: CodecId::JSON,
        manifest: "tck.state".to_owned(),
        schema_version: 1,
        payload: payload.into(),
        metadata: Metadata::new(),
    }
}

/// Saves snapshots 2, 4, 6 with rising timestamps, and returns the timestamps.
async fn three(store: S<'_>, id: &PersistenceId) -> Checked<[Timestamp; 3]> {
    let mut timestamps = [Timestamp::default(); 3];
    for at in 0..3 {
        // Save until the clock has moved; saving again overwrites, so a coarse clock only costs time.
        for _ in 0..1_000_000 {
            let number = u32::try_from(2 * at + 2).expect("6 at most");
            timestamps[at] = must("save", store.save(state(id, number, number.to_string())).await)?;
            if at == 0 || timestamps[at] > timestamps[at - 1] {
                break;
            }
        }
        ensure(at == 0 || timestamps[at] > timestamps[at - 1], || "the clock of the store stands still".to_owned())?;
    }
    Ok(timestamps)
}

/// Loads, checks that number and payload belong together, and returns the number.
async fn load(store: S<'_>, id: &PersistenceId, criteria: SnapshotCriteria) -> Checked<Option<u64>> {
    let Some(found) = must("load", store.load(id, criteria).await)? else { return Ok(None) };
    ensure(found.is_intact() && found.id == *id, || format!("load gives a damaged or foreign snapshot {found:?}"))?;
    equal("payload", &found.payload[..], found.seq_nr.to_string().as_bytes())?;
    Ok(Some(found.seq_nr.as_u64()))
}

async fn numbers(store: S<'_>, id: &PersistenceId) -> Checked<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut criteria = SnapshotCriteria::LATEST;
    while let Some(number) = load(store, id, criteria).await? {
        numbers.push(number);
        if number == 0 {
            break;
        }
        criteria.max_seq_nr = SeqNr::saturating(number - 1);
    }
    Ok(numbers)
}

async fn unknown_id(store: S<'_>) -> Checked {
    equal("load of an unknown id", load(store, &id("unknown"), SnapshotCriteria::LATEST).await?, None)?;
    must("delete of an unknown id", store.delete(&id("unknown"), seq(1)).await)?;
    must("delete_matching of an unknown id", store.delete_matching(&id("unknown"), SnapshotCriteria::LATEST).await)
}

async fn timestamp_excludes_all(store: S<'_>) -> Checked {
    let id = id("timestamp-excludes");
    let [first, _, last] = three(store, &id).await?;
    let before = Timestamp::from_micros(first.as_micros() - 1);
    let after = Timestamp::from_micros(last.as_micros() + 1);
    let too_old = SnapshotCriteria { max_timestamp: before, ..SnapshotCriteria::LATEST };
    let too_new = SnapshotCriteria { min_timestamp: after, ..SnapshotCriteria::LATEST };
    equal("older than all", load(store, &id, too_old).await?, None)?;
    equal("newer than all", load(store, &id, too_new).await?, None)
}

async fn seq_excludes_all(store: S<'_>) -> Checked {
    let id = id("seq-excludes");
    three(store, &id).await?;
    equal("below all", load(store, &id, SnapshotCriteria::up_to(seq(1))).await?, None)?;
    let above = SnapshotCriteria { min_seq_nr: seq(7), ..SnapshotCriteria::LATEST };
    equal("above all", load(store, &id, above).await?, None)?;
    let between = SnapshotCriteria { min_seq_nr: seq(5), ..SnapshotCriteria::up_to(seq(5)) };
    equal("between two", load(store, &id, between).await?, None)
}

async fn newest(store: S<'_>) -> Checked {
    let id = id("newest");
    three(store, &id).await?;
    equal("newest", load(store, &id, SnapshotCriteria::LATEST).await?, Some(6))?;
    // The newest snapshot is that of the highest number, not of the latest save.
    must("save", store.save(state(&id, 5, "5")).await)?;
    equal("newest after a later save of a lower number", load(store, &id, SnapshotCriteria::LATEST).await?, Some(6))
}

async fn newest_under_seq(store: S<'_>) -> Checked {
    let id = id("under-seq");
    three(store, &id).await?;
    for (bound, expected) in [(6, 6), (5, 4), (4, 4), (3, 2)] {
        let found = load(store, &id, SnapshotCriteria::up_to(seq(bound))).await?;
        equal(&format!("newest up to {bound}"), found, Some(expected))?;
    }
    Ok(())
}

async fn under_seq_and_timestamp(store: S<'_>) -> Checked {
    let id = id("under-both");
    let [first, second, third] = three(store, &id).await?;
    for (max_seq_nr, min_timestamp, max_timestamp, expected) in [
        (6, first, second, Some(4)),
        (3, first, third, Some(2)),
        (6, second, second, Some(4)),
        (3, second, third, None),
        (5, third, third, None),
    ] {
        let criteria = SnapshotCriteria { min_timestamp, max_timestamp, ..SnapshotCriteria::up_to(seq(max_seq_nr)) };
        equal(&format!("{criteria:?}"), load(store, &id, criteria).await?, expected)?;
    }
    Ok(())
}

async fn delete_one(store: S<'_>) -> Checked {
    let id = id("delete-one");
    three(store, &id).await?;
    must("delete", store.delete(&id, seq(4)).await)?;
    must("delete of one that is not there", store.delete(&id, seq(5)).await)?;
    equal("left", numbers(store, &id).await?, vec![6, 2])
}

async fn delete_matching(store: S<'_>) -> Checked {
    let id = id("delete-matching");
    let [_, second, _] = three(store, &id).await?;
    let criteria = SnapshotCriteria { max_timestamp: second, ..SnapshotCriteria::up_to(seq(6)) };
    must("delete_matching", store.delete_matching(&id, criteria).await)?;
    equal("left", numbers(store, &id).await?, vec![6])?;
    must("delete_matching", store.delete_matching(&id, SnapshotCriteria::up_to(seq(5))).await)?;
    equal("left", numbers(store, &id).await?, vec![6])?;
    must("delete_matching", store.delete_matching(&id, SnapshotCriteria::up_to(seq(6))).await)?;
    equal("left", numbers(store, &id).await?, vec![])
}

async fn delete_non_matching(store: S<'_>) -> Checked {
    let id = id("delete-nothing");
    let [first, ..] = three(store, &id).await?;
    let before = Timestamp::from_micros(first.as_micros() - 1);
    let criteria = SnapshotCriteria { max_timestamp: before, ..SnapshotCriteria::LATEST };
    must("delete_matching", store.delete_matching(&id, criteria).await)?;
    equal("left", numbers(store, &id).await?, vec![6, 4, 2])
}

async fn overwrite(store: S<'_>) -> Checked {
    let id = id("overwrite");
    must("save", store.save(state(&id, 3, "a longer first state")).await)?;
    let timestamp = must("save again", store.save(state(&id, 3, "3")).await)?;
    let found = must("load", store.load(&id, SnapshotCriteria::LATEST).await)?;
    equal("snapshot", found, Some(state(&id, 3, "3").stored(timestamp)))?;
    equal("all of them", numbers(store, &id).await?, vec![3])
}

async fn sizes(store: S<'_>, flags: &Flags) -> Checked {
    let id = id("sizes");
    let max = store.caps().max_bytes;
    let mut sizes = vec![0, 1, 10_000, 1 << 20];
    if flags.largest {
        sizes.push(max - 1);
    }
    for (number, size) in (1..).zip(sizes) {
        let payload: Vec<u8> = (0..size).map(|at: usize| (at.wrapping_mul(37) >> 4) as u8).collect();
        must(&format!("save of {size} bytes"), store.save(state(&id, number, payload.clone())).await)?;
        let found = must("load", store.load(&id, SnapshotCriteria::LATEST).await)?;
        let same = found.is_some_and(|found| found.seq_nr == seq(number) && found.payload == payload);
        ensure(same, || format!("{size} bytes do not come back"))?;
        must("delete", store.delete(&id, seq(number)).await)?;
    }
    if flags.largest {
        let refused = store.save(state(&id, 9, vec![0; max + 1])).await;
        ensure(matches!(refused, Err(SnapshotError::TooLarge { .. })), || {
            format!("max_bytes + 1 must be refused, but: {refused:?}")
        })?;
        equal("nothing of it is stored", load(store, &id, SnapshotCriteria::LATEST).await?, None)?;
    }
    Ok(())
}

async fn metadata(store: S<'_>) -> Checked {
    let id = id("metadata");
    let metadata: Metadata =
        [("gl.delivery".to_owned(), Bytes::from_static(b"\0\xff")), ("empty".to_owned(), Bytes::new())].into();
    let rich = NewSnapshot { metadata, ..state(&id, 1, "1") };
    let timestamp = must("save", store.save(rich.clone()).await)?;
    let found = must("load", store.load(&id, SnapshotCriteria::LATEST).await)?;
    equal("snapshot", found, Some(rich.stored(timestamp)))
}

async fn fields_come_back(store: S<'_>) -> Checked {
    let id = id("fields");
    let odd = NewSnapshot {
        seq_nr: SeqNr::MAX,
        codec_id: CodecId::from_u32(1234),
        manifest: "m".repeat(255),
        schema_version: u32::MAX,
        ..state(&id, 0, vec![0, 255])
    };
    let timestamp = must("save", store.save(odd.clone()).await)?;
    let found = must("load", store.load(&id, SnapshotCriteria::LATEST).await)?;
    equal("snapshot", found, Some(odd.stored(timestamp)))
}

/// A load never shows a part of a snapshot, however far its save has come, even if the save's caller dropped it.
async fn save_under_way(store: S<'_>) -> Checked {
    const BYTES: usize = 300_000; // several chunks, or pages, of whatever the store is made of
    for (loads, number) in (0..8).flat_map(|loads| [(loads, 2), (loads, 4)]) {
        let id = id(&format!("under-way-{loads}-{number}"));
        let (old, new) = (state(&id, 2, vec![b'o'; BYTES]), state(&id, number, vec![b'n'; BYTES]));
        must("save", store.save(old.clone()).await)?;
        let whole = async |may_be_old: bool| {
            let found = must("load", store.load(&id, SnapshotCriteria::LATEST).await)?;
            let is = |saved: &NewSnapshot| {
                found.as_ref().is_some_and(|found| *found == saved.clone().stored(found.timestamp))
            };
            let what = || format!("snapshot {number} is saved over 2, and after {loads} loads neither is there whole");
            ensure(is(&new) || may_be_old && is(&old), what)
        };
        let mut saving = Some(store.save(new.clone()));
        for _ in 0..loads {
            let Some(save) = saving.take() else { break };
            // Wait for both: a store may make one wait for the other.
            match select(save, pin!(whole(true))).await {
                Either::Left((saved, load)) => {
                    must("save", saved)?;
                    load.await?;
                }
                Either::Right((loaded, save)) => {
                    loaded?;
                    saving = Some(save);
                }
            }
        }
        drop(saving);
        whole(true).await?;
        must("save once more", store.save(new.clone()).await)?;
        whole(false).await?;
    }
    Ok(())
}

async fn corrupted_newest(factory: &impl SnapshotFactory, store: S<'_>) -> Checked {
    let id = id("corrupted");
    three(store, &id).await?;
    if !factory.corrupt(store, &id, seq(6)).await {
        return skip("no hook to break a stored byte");
    }
    let answer = store.load(&id, SnapshotCriteria::LATEST).await;
    let named = matches!(&answer, Err(SnapshotError::Corrupt(corrupt)) if corrupt.id == id && corrupt.seq_nr == seq(6));
    ensure(named, || format!("loading a broken snapshot must answer Corrupt at 6, but: {answer:?}"))?;
    equal("the one before", load(store, &id, SnapshotCriteria::up_to(seq(5))).await?, Some(4))
}

async fn prefixes(store: S<'_>) -> Checked {
    let parse = |text: &str| text.parse::<PersistenceId>().map_err(|error| Stop::Failed(error.to_string()));
    let texts = ["s", "s-x", "s|", "s|1", "s|10", "日本|東京", "日本|東"];
    for (number, text) in (1..).zip(texts) {
        must("save", store.save(state(&parse(text)?, number, number.to_string())).await)?;
    }
    for (number, text) in (1..).zip(texts) {
        equal(&format!("snapshots of {text:?}"), numbers(store, &parse(text)?).await?, vec![number])?;
    }
    must("delete_matching", store.delete_matching(&parse("s")?, SnapshotCriteria::LATEST).await)?;
    equal("snapshots of \"s\"", numbers(store, &parse("s")?).await?, vec![])?;
    for (number, text) in (1..).zip(texts).skip(1) {
        equal(&format!("snapshots of {text:?}"), numbers(store, &parse(text)?).await?, vec![number])?;
    }
    Ok(())
}

async fn close(factory: &impl SnapshotFactory) -> Checked {
    let store = factory.open().await;
    let id = id("closing");
    must("save", store.save(state(&id, 1, "1")).await)?;
    must("close", store.close().await)?;
    for (what, answer) in [
        ("load", store.load(&id, SnapshotCriteria::LATEST).await.map(drop)),
        ("save", store.save(state(&id, 2, "2")).await.map(drop)),
        ("delete", store.delete(&id, seq(1)).await),
    ] {
        ensure(matches!(answer, Err(SnapshotError::Unavailable(_))), || format!("a closed store answers {what}"))?;
    }
    Ok(())
}
