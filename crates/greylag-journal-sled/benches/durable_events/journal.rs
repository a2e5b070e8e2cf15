//! Entities that append to the journal.

use std::path::Path;
use std::time::Instant;

use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{Append, EventKind, Journal, NewEvent, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid};

use crate::{Load, Shape};

/// The id of entity `number`.
pub(crate) fn id(number: u64) -> PersistenceId {
    PersistenceId::of("Customer", &number.to_string()).expect("a valid id")
}

/// Runs the entities; answers events per second, and the shape of the committer's groups.
pub(crate) async fn run(path: &Path, load: Load) -> Result<(f64, Shape), Box<dyn std::error::Error>> {
    let journal = SledJournal::open(path, SledJournalSettings::default()).await?;
    let claims = (0..load.entities).map(|number| {
        let journal = journal.clone();
        async move {
            let uuid = WriterUuid::from_u128(u128::from(number) + 1);
            let claim = journal.claim(&id(number), uuid, Under::Seen(WriterEpoch::NONE)).await;
            (id(number), uuid, claim.expect("a fresh id").epoch)
        }
    });
    let claimed = join_all(claims).await;
    let before = journal.stats();
    let began_at = Instant::now();
    let entities = claimed.into_iter().map(|(id, writer_uuid, epoch)| {
        let journal = journal.clone();
        tokio::spawn(async move {
            for number in 1..=load.events_each {
                let (first, events) = (SeqNr::saturating(number), vec![event(load.payload_bytes)]);
                let append = Append { id: id.clone(), epoch, writer_uuid, first, events };
                journal.append(append).await.expect("no other writer");
            }
        })
    });
    for entity in join_all(entities).await {
        entity?;
    }
    let rate = load.rate(began_at);
    let after = journal.stats();
    let shape = Shape {
        groups: after.groups - before.groups,
        keys: after.keys - before.keys,
        bytes: after.bytes - before.bytes,
    };
    journal.close().await?;
    Ok((rate, shape))
}

fn event(payload_bytes: usize) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "purchased".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: vec![7; payload_bytes].into(),
        metadata: Default::default(),
        tags: Default::default(),
    }
}
