//! Appends as the parameters of a statement: each column is one array.

use std::sync::Arc;

use greylag_persistence::{EventKind, StoredEvent};
use tokio_postgres::types::ToSql;

use super::rows::{self, Uuid};

/// Columns of the appends of one statement. A column of which every value is the default is sent as a null.
pub(crate) struct Columns<'a> {
    places: Vec<i32>,
    ids: Vec<&'a str>,
    uuids: Vec<Uuid>,
    epochs: Vec<i64>,
    firsts: Vec<i64>,
    /// Last numbers; `None` while each append is one event.
    lasts: Option<Vec<i64>>,
    events: EventColumns<'a>,
}

#[derive(Default)]
struct EventColumns<'a> {
    /// Place of the append that the event belongs to.
    places: Vec<i32>,
    numbers: Vec<i64>,
    codecs: Vec<i32>,
    manifests: Vec<&'a str>,
    versions: Vec<i32>,
    /// `None` while no event is filtered.
    filtered: Option<Vec<bool>>,
    payloads: Vec<&'a [u8]>,
    /// `None` while no event has metadata.
    metadata: Option<Vec<Option<Vec<u8>>>>,
    crcs: Vec<i64>,
    /// `None` while no event has tags.
    tags: Option<Vec<Option<String>>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(appends: &'a [Arc<[StoredEvent]>]) -> Self {
        let rows = appends.len();
        let mut columns = Self {
            places: (0..).take(rows).collect(),
            ids: Vec::with_capacity(rows),
            uuids: Vec::with_capacity(rows),
            epochs: Vec::with_capacity(rows),
            firsts: Vec::with_capacity(rows),
            lasts: None,
            events: EventColumns::with_capacity(appends.iter().map(|records| records.len()).sum()),
        };
        for (records, place) in appends.iter().zip(0..) {
            let Some((first, last)) = records.first().zip(records.last()) else { continue };
            columns.ids.push(first.id.as_str());
            columns.uuids.push(Uuid(first.writer_uuid));
            columns.epochs.push(rows::epoch(first.writer_epoch));
            columns.firsts.push(rows::number(first.seq_nr));
            records.iter().for_each(|event| columns.events.push(place, event));
            if columns.lasts.is_some() || first.seq_nr != last.seq_nr {
                let before = &columns.firsts[..columns.firsts.len() - 1];
                columns.lasts.get_or_insert_with(|| before.to_vec()).push(rows::number(last.seq_nr));
            }
        }
        columns
    }

    pub(crate) fn are_tagged(&self) -> bool {
        self.events.tags.is_some()
    }

    /// The parameters in the order of the statements: the columns, then `shared`, then the tags if there are any.
    pub(crate) fn parameters<'b>(&'b self, shared: [&'b (dyn ToSql + Sync); 2]) -> Vec<&'b (dyn ToSql + Sync)> {
        let Self { places, ids, uuids, epochs, firsts, lasts, events } = self;
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![places, ids, uuids, epochs, firsts, lasts];
        events.add_to(&mut parameters, shared);
        parameters
    }
}

impl<'a> EventColumns<'a> {
    fn with_capacity(rows: usize) -> Self {
        Self {
            places: Vec::with_capacity(rows),
            numbers: Vec::with_capacity(rows),
            codecs: Vec::with_capacity(rows),
            manifests: Vec::with_capacity(rows),
            versions: Vec::with_capacity(rows),
            payloads: Vec::with_capacity(rows),
            crcs: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    fn push(&mut self, place: i32, event: &'a StoredEvent) {
        let before = self.places.len();
        self.places.push(place);
        self.numbers.push(rows::number(event.seq_nr));
        self.codecs.push(rows::bits(event.codec_id.as_u32()));
        self.manifests.push(&event.manifest);
        self.versions.push(rows::bits(event.schema_version));
        self.payloads.push(&event.payload);
        self.crcs.push(i64::from(event.crc32c));
        push_sparse(&mut self.filtered, before, event.kind == EventKind::Filtered);
        push_sparse(&mut self.metadata, before, rows::write_metadata(&event.metadata));
        push_sparse(&mut self.tags, before, rows::join_tags(&event.tags));
    }

    fn add_to<'b>(&'b self, parameters: &mut Vec<&'b (dyn ToSql + Sync)>, shared: [&'b (dyn ToSql + Sync); 2]) {
        let Self { places, numbers, codecs, manifests, versions, filtered, payloads, metadata, crcs, tags } = self;
        let columns: [&(dyn ToSql + Sync); 9] =
            [places, numbers, codecs, manifests, versions, filtered, payloads, metadata, crcs];
        parameters.extend(columns);
        parameters.extend(shared);
        parameters.extend(tags.as_ref().map(|tags| tags as &(dyn ToSql + Sync)));
    }
}

/// Pushes onto a sparse column, which most statements do not need. The column is made at the first value that is not the
/// default.
fn push_sparse<T: Clone + Default + PartialEq>(column: &mut Option<Vec<T>>, before: usize, value: T) {
    if column.is_some() || value != T::default() {
        column.get_or_insert_with(|| vec![T::default(); before]).push(value);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use greylag_core::CodecId;
    use greylag_persistence::{Append, NewEvent, PersistenceId, SeqNr, Timestamp, WriterEpoch, WriterUuid};

    use super::*;

    fn event() -> NewEvent {
        NewEvent {
            codec_id: CodecId::JSON,
            manifest: "test.event".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: Bytes::from_static(b"{}"),
            metadata: Default::default(),
            tags: Default::default(),
        }
    }

    fn append(id: u64, first: u64, events: Vec<NewEvent>) -> Arc<[StoredEvent]> {
        let append = Append {
            id: PersistenceId::of("Test", &id.to_string()).unwrap(),
            epoch: WriterEpoch::from_u64(id),
            writer_uuid: WriterUuid::from_u128(id.into()),
            first: SeqNr::saturating(first),
            events,
        };
        append.records(Timestamp::default()).into()
    }

    #[test]
    fn a_column_of_defaults_is_sent_as_null() {
        let appends = [append(1, 5, vec![event()]), append(2, 9, vec![event()])];
        let columns = Columns::of(&appends);
        assert_eq!((columns.places, columns.ids), (vec![0, 1], vec!["Test|1", "Test|2"]));
        assert_eq!((columns.epochs, columns.firsts, columns.lasts), (vec![1, 2], vec![5, 9], None));
        let events = columns.events;
        assert_eq!((events.places, events.numbers), (vec![0, 1], vec![5, 9]));
        assert_eq!((events.filtered, events.metadata, events.tags), (None, None, None));
    }

    #[test]
    fn a_column_with_one_value_has_a_default_for_every_other_event() {
        let filtered = NewEvent { kind: EventKind::Filtered, payload: Bytes::new(), ..event() };
        let noted = NewEvent { metadata: [("by".to_owned(), Bytes::from_static(b"x"))].into(), ..event() };
        let tagged = NewEvent { tags: ["red".to_owned()].into(), ..event() };
        let appends = [
            append(1, 5, vec![event()]),
            append(2, 9, vec![event(), filtered]),
            append(3, 1, vec![noted]),
            append(4, 1, vec![tagged, event()]),
            append(5, 7, vec![event()]),
        ];
        let columns = Columns::of(&appends);
        assert!(columns.are_tagged());
        assert_eq!(columns.parameters([&"lane", &0_i64]).len(), 18);
        assert_eq!(columns.firsts, [5, 9, 1, 1, 7]);
        assert_eq!(columns.lasts, Some(vec![5, 10, 1, 2, 7]));
        let events = columns.events;
        assert_eq!(events.places, [0, 1, 1, 2, 3, 3, 4]);
        assert_eq!(events.numbers, [5, 9, 10, 1, 1, 2, 7]);
        assert_eq!(events.filtered, Some(vec![false, false, true, false, false, false, false]));
        let has_metadata: Vec<_> = events.metadata.iter().flatten().map(Option::is_some).collect();
        assert_eq!(has_metadata, [false, false, false, true, false, false, false]);
        let tags: Vec<_> = events.tags.iter().flatten().map(Option::as_deref).collect();
        assert_eq!(tags, [None, None, None, None, Some("red"), None, None]);
    }
}
