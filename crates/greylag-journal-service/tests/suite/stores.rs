//! States and offsets through the service: pages that fit into a frame, and limits with errors.

use std::error::Error as _;

use crate::common::{ServedMemory, append, client, event, id};
use greylag_core::CodecId;
use greylag_journal_service::{JournalServer, ServerSettings};
use greylag_persistence::{
    Append, AppendError, ChangesOf, EncodedValue, InMemoryJournal, InMemorySnapshots, Journal, Offset, OffsetKind,
    OffsetStore, PersistenceId, Position, Processed, ReadError, RejectReason, Revision, SeqNr, StateRejectReason,
    StateStore, StateWrite, StateWriteError, Stores, Timestamp, Under, WriterEpoch, WriterUuid,
};

const UUID: WriterUuid = WriterUuid::from_u128(1);

fn first_write(number: u32) -> StateWrite {
    StateWrite { id: id(number), revision: Revision::FIRST, generation: None, writer_uuid: UUID }
}

fn value(bytes: usize) -> EncodedValue {
    let (manifest, payload) = ("state".to_owned(), vec![7; bytes].into());
    EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload }
}

/// A list shorter than asked for would mean that no more changes exist, so the client joins the pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_large_changes_arrives_complete() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let states = served.client().await.states().unwrap();
    for number in 0..40 {
        states.upsert(first_write(number), value(1 << 20), Some("red".to_owned())).await.unwrap();
    }
    let of = ChangesOf::Tag("red".to_owned());
    let changes = states.changes(&of, &Offset::None, 1000).await.unwrap();
    assert!(changes.iter().map(|change| &change.state.id).eq((0..40).map(id).collect::<Vec<_>>().iter()));
    let rest = states.changes(&of, &changes[9].offset, 25).await.unwrap();
    assert_eq!(rest, changes[10..35]);
    assert_eq!(states.ids(None, usize::MAX).await.unwrap().len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_many_ids_arrive_complete() {
    const IDS: u32 = 30_000;
    let served = ServedMemory::start(OffsetKind::Timestamp).await;
    let owned = served.offsets.claim("carts", 0..=1023).await.unwrap();
    let at = |number: u32| Position::Timestamp(Timestamp::from_micros(u64::from(number / 3)));
    // Long ids, so that they do not fit into one page.
    let id = |number| PersistenceId::of("Cart", &format!("{number:0>240}")).unwrap();
    let processed = (0..IDS).map(|number| Processed { id: id(number), seq_nr: SeqNr::FIRST, position: at(number) });
    served.offsets.save(&owned, &processed.collect::<Vec<_>>()).await.unwrap();
    let offsets = served.client().await.offsets().unwrap();
    let loaded = offsets.load("carts", 0..=1023).await.unwrap();
    assert_eq!(loaded, served.offsets.load("carts", 0..=1023).await.unwrap());
}

/// A value too large for the service is refused for good, by name, and the session goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_values_are_refused_by_name() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let client = served.client().await;
    let (journal, states) = (client.journal(), client.states().unwrap());
    let claim = journal.claim(&id(1), UUID, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    // Each event may be stored, but all together do not fit into a frame.
    let events = vec![event(vec![7; 4 << 20]); 9];
    let together = Append { id: id(1), epoch: claim.epoch, writer_uuid: UUID, first: SeqNr::FIRST, events };
    let refused = journal.append(together).await.unwrap_err();
    assert!(matches!(&refused, AppendError::Rejected(RejectReason::Other(why)) if why.contains("frame")), "{refused}");
    let alone = Append { events: vec![event(vec![7; (4 << 20) + 1])], ..append(&id(1), &claim, UUID, 1, "") };
    let refused = journal.append(alone).await.unwrap_err();
    assert!(matches!(refused, AppendError::Rejected(RejectReason::EventTooLarge { .. })), "{refused}");
    let refused = states.upsert(first_write(1), value((4 << 20) + 1), None).await.unwrap_err();
    assert!(matches!(refused, StateWriteError::Rejected(StateRejectReason::TooLarge { .. })), "{refused}");
    journal.append(append(&id(1), &claim, UUID, 1, "fits")).await.unwrap();
}

/// A new server that does not serve some of the former stores refuses calls to these, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_no_longer_served_is_unavailable() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let address = served.server.local_address();
    let client = client(address).await;
    let (states, offsets) = (client.states().unwrap(), client.offsets().unwrap());
    served.server.shutdown().await;
    let stores =
        Stores::new(std::sync::Arc::new(InMemoryJournal::default()), std::sync::Arc::new(InMemorySnapshots::default()));
    let server = JournalServer::bind(address, stores, ServerSettings::test()).await.unwrap();
    assert_eq!(server.local_address(), address);
    let written = loop {
        match states.upsert(first_write(1), value(1), None).await {
            Err(StateWriteError::NotStored(_)) => tokio::task::yield_now().await,
            other => break other,
        }
    };
    let none = StateRejectReason::Other("this server does not serve durable states".to_owned());
    assert_eq!(written, Err(StateWriteError::Rejected(none)));
    let unserved = states.get(&id(1)).await.unwrap_err();
    let ReadError::Unavailable(failure) = &unserved else { panic!("{unserved:?}") };
    assert!(failure.text().contains("not serve durable"), "{failure}");
    let texts: Vec<_> =
        std::iter::successors(unserved.source(), |&source| source.source()).map(ToString::to_string).collect();
    assert_eq!(texts, [failure.to_string(), failure.text()], "the wire carries text, which is the last source");
    let error = offsets.claim("carts", 0..=0).await.unwrap_err().to_string();
    assert!(error.contains("not serve offsets"), "{error}");
}
