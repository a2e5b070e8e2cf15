//! The server has carried out a write and its answer is lost: the write is sent again, and found done, once.

use std::collections::BTreeMap;

use crate::common::cable::Cable;
use crate::common::{ServedMemory, append, client, id};
use greylag_core::CodecId;
use greylag_persistence::{
    ChangesOf, EncodedValue, Journal, Offset, OffsetKind, OffsetStore, OwnedSlices, OwnerEpoch, Position, Processed,
    ReadRange, Revision, SeqNr, StateStore, StateWrite, StateWriteError, Under, WriterEpoch, WriterUuid,
};

const UUID: WriterUuid = WriterUuid::from_u128(1);

fn write(revision: u32) -> StateWrite {
    StateWrite { id: id(1), revision: Revision::from(revision), generation: None, writer_uuid: UUID }
}

fn value(payload: &'static str) -> EncodedValue {
    let (manifest, payload) = ("state".to_owned(), payload.into());
    EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload }
}

/// Starts `call`, loses its answer, and cuts the connection once `done` says that the server has carried it out.
async fn without_answer<T>(cable: &Cable, done: impl Fn() -> bool, call: impl Future<Output = T>) -> T {
    cable.swallow_answers();
    let cutting = async {
        while !done() {
            tokio::task::yield_now().await;
        }
        cable.cut();
    };
    tokio::join!(call, cutting).0
}

/// Scenario persistence 64: a state write whose answer is lost is repeated and answers Ok; the feed has
/// one change. Kit case `states 14` over a real loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_64_a_state_write_is_repeated() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let cable = Cable::to(served.server.local_address()).await;
    let states = client(cable.address).await.states().unwrap();
    let revision = |at: u32| served.states.row(&id(1)).is_some_and(|row| row.revision == Revision::from(at));
    let tag = || Some("red".to_owned());

    let stored = without_answer(&cable, || revision(1), states.upsert(write(1), value("one"), tag())).await;
    assert_eq!(stored, Ok(()));
    let deleted = without_answer(&cable, || revision(2), states.delete(write(2))).await;
    assert_eq!(deleted, Ok(()));
    let row = states.get(&id(1)).await.unwrap();
    assert_eq!((row.revision, row.value), (Revision::from(2), None));
    let feed = states.changes(&ChangesOf::Tag("red".to_owned()), &Offset::None, 9).await.unwrap();
    assert_eq!(feed.len(), 1, "{feed:?}");

    // A later write of another writer hides whether ours is stored, so the caller is not told that it is not.
    let next = StateWrite { writer_uuid: WriterUuid::from_u128(2), ..write(4) };
    let other = served.client().await.states().unwrap();
    cable.swallow_answers();
    let overtake = async {
        while !revision(3) {
            tokio::task::yield_now().await;
        }
        other.upsert(next, value("four"), None).await.unwrap();
        cable.cut();
    };
    let (hidden, ()) = tokio::join!(states.upsert(write(3), value("three"), None), overtake);
    assert!(matches!(hidden, Err(StateWriteError::Unknown(_))), "{hidden:?}");
}

/// persistence §4.1 J10: an append whose answer is lost is repeated and answers Ok, with one copy, even
/// if another writer has claimed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_append_is_retried() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let cable = Cable::to(served.server.local_address()).await;
    let journal = client(cable.address).await.journal();
    let claim = journal.claim(&id(1), UUID, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    let (other, taken) = (served.client().await.journal(), WriterUuid::from_u128(2));
    cable.swallow_answers();
    let overtake = async {
        while served.journal.events(&id(1)).is_empty() {
            tokio::task::yield_now().await;
        }
        other.claim(&id(1), taken, Under::Seen(claim.epoch)).await.unwrap();
        cable.cut();
    };
    let (appended, ()) = tokio::join!(journal.append(append(&id(1), &claim, UUID, 1, "a")), overtake);
    appended.unwrap();
    assert_eq!(journal.read(&id(1), ReadRange::all()).await.unwrap().records.len(), 1);
}

/// persistence §5: a claim of slices whose answer is lost is repeated, and its owner is not fenced by
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_claim_of_slices_is_retried() {
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let cable = Cable::to(served.server.local_address()).await;
    let offsets = client(cable.address).await.offsets().unwrap();
    cable.swallow_answers();
    let overtake = async {
        // A reset succeeds only under the epoch of the first try, and so tells when the store has done it.
        let first = OwnedSlices { projection: "carts".to_owned(), epochs: [(7, OwnerEpoch::from_u64(1))].into() };
        while served.offsets.reset(&first).await.is_err() {
            tokio::task::yield_now().await;
        }
        cable.cut();
    };
    let (owned, ()) = tokio::join!(offsets.claim("carts", 7..=7), overtake);
    let owned = owned.unwrap();
    assert_eq!(owned.epochs, BTreeMap::from([(7, OwnerEpoch::from_u64(2))]), "once lost, once answered");
    let mine = (0..).map(id).find(|id| id.slice() == 7).unwrap();
    let processed = Processed { id: mine, seq_nr: SeqNr::FIRST, position: Position::Ordinal(1) };
    offsets.save(&owned, &[processed]).await.unwrap();
}
