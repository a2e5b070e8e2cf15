//! Copies between stores in memory pass the kit, and what a copy must not do is refused.

use std::sync::Arc;

use futures::FutureExt;
use greylag_persistence::copy::{CopyError, check, copy, verify};
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{Import, InMemoryArchive, Journal, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

#[test]
fn stores_in_memory_move_everything() {
    let open = || async { Arc::new(InMemoryArchive::default()) as Arc<dyn Import> };
    let report = now(tck::transfer(&open, Flags::default()));
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 0, "{report}");
}

#[test]
fn a_closed_store_is_neither_copied_nor_compared() {
    let (open, closed) = (InMemoryArchive::default(), InMemoryArchive::default());
    now(closed.journal.close()).unwrap();
    for refused in [now(copy(&closed, &open)).unwrap_err(), now(copy(&open, &closed)).unwrap_err()] {
        assert!(matches!(&refused, CopyError::InUse(_)), "{refused}");
        assert!(refused.to_string().contains("closed"), "{refused}");
    }
    assert!(matches!(now(verify(&open, &closed, 1)), Err(CopyError::InUse(_))));
}

/// Damage is found by whoever reads everything, told by number, and not copied.
#[test]
fn a_damaged_event_is_named_and_not_copied() {
    let source = InMemoryArchive::default();
    let id = PersistenceId::of("Counter", "1").unwrap();
    let epoch = now(source.journal.claim(&id, WriterUuid::from_u128(1), Under::Seen(WriterEpoch::NONE))).unwrap().epoch;
    let event = greylag_persistence::NewEvent {
        codec_id: greylag_core::CodecId::JSON,
        manifest: "counted".into(),
        schema_version: 1,
        kind: greylag_persistence::EventKind::Event,
        payload: "1".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let writer_uuid = WriterUuid::from_u128(1);
    let events = vec![event; 5];
    let append = greylag_persistence::Append { id: id.clone(), epoch, writer_uuid, first: SeqNr::FIRST, events };
    now(source.journal.append(append)).unwrap();
    assert!(source.journal.corrupt(&id, SeqNr::from(2)) && source.journal.corrupt(&id, SeqNr::from(4)));
    let checked = now(check(&source, 10)).unwrap();
    let told: Vec<_> = checked.differences.iter().map(ToString::to_string).collect();
    let damage = |number| format!("event {number} of Counter|1: checksum mismatch in the first store");
    assert_eq!(told, [damage(2), damage(4)]);
    assert_eq!(checked.counts.events, 3, "those between are whole");
    let target = InMemoryArchive::default();
    let refused = now(copy(&source, &target)).unwrap_err();
    assert!(matches!(&refused, CopyError::Damaged(found) if found.id == id), "{refused}");
}
