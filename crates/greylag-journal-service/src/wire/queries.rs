//! Pages of events across histories.

use std::time::Duration;

use greylag_persistence::{
    Cursor, EventPage, EventsOf, FoundEvent, PageQuery, Position, QueryCaps, Scope, SeqNr, Shows, Timestamp, Visible,
};

use super::journal::{from_stored, stored};
use super::offsets::{from_position, position};
use super::states::{from_kind, from_slices, kind, slices};
use super::values::{Decoded, Malformed, id, seq_nr, usize_of};
use crate::generated::{self as proto, cursor, selection, visible};

pub(crate) fn from_query_caps(caps: QueryCaps) -> proto::QueryCaps {
    proto::QueryCaps { kind: from_kind(caps.kind).into(), newest_only: caps.shows == Shows::Newest }
}

/// The capabilities of the served journal; for clients the scope is `Shared`.
pub(crate) fn query_caps(caps: proto::QueryCaps) -> QueryCaps {
    let shows = if caps.newest_only { Shows::Newest } else { Shows::Every };
    QueryCaps { scope: Scope::Shared, kind: kind(caps.kind()), shows }
}

fn from_events_of(of: &EventsOf) -> proto::Selection {
    let of = match of {
        EventsOf::Tag(tag) => selection::Of::Tag(tag.clone()),
        EventsOf::Slices { entity_type, slices } => selection::Of::Slices(from_slices(entity_type, slices)),
    };
    proto::Selection { of: Some(of) }
}

fn events_of(message: Option<proto::Selection>) -> Decoded<EventsOf> {
    match message.and_then(|message| message.of) {
        Some(selection::Of::Tag(tag)) => Ok(EventsOf::Tag(tag)),
        Some(selection::Of::Slices(meant)) => {
            let slices = slices(meant.first, meant.last)?;
            Ok(EventsOf::Slices { entity_type: meant.entity_type, slices })
        }
        None => Err(Malformed("selection")),
    }
}

fn from_cursor(cursor: &Cursor) -> Option<proto::Cursor> {
    let cursor = match cursor {
        Cursor::Start => return None,
        Cursor::Ordinal(ordinal) => cursor::Cursor::Ordinal(*ordinal),
        Cursor::Row { timestamp, id, seq_nr } => cursor::Cursor::Row(proto::Row {
            timestamp: timestamp.as_micros(),
            persistence_id: id.as_ref().map(|id| id.as_str().to_owned()),
            seq_nr: seq_nr.as_u64(),
        }),
    };
    Some(proto::Cursor { cursor: Some(cursor) })
}

/// The cursor of the page that continues after this event.
pub(crate) fn cursor_after(found: &FoundEvent) -> Cursor {
    match found.position {
        Position::Ordinal(ordinal) => Cursor::Ordinal(ordinal),
        Position::Timestamp(timestamp) => Cursor::Row { timestamp, id: Some(found.id.clone()), seq_nr: found.seq_nr },
    }
}

fn cursor(message: Option<proto::Cursor>) -> Decoded<Cursor> {
    let Some(message) = message else { return Ok(Cursor::Start) };
    match message.cursor.ok_or(Malformed("cursor"))? {
        cursor::Cursor::Ordinal(ordinal) => Ok(Cursor::Ordinal(ordinal)),
        cursor::Cursor::Row(row) => Ok(Cursor::Row {
            timestamp: Timestamp::from_micros(row.timestamp),
            id: row.persistence_id.map(|text| id(&text)).transpose()?,
            seq_nr: seq_nr(row.seq_nr)?,
        }),
    }
}

fn from_visible(visible: Visible) -> Option<proto::Visible> {
    let visible = match visible {
        Visible::All => return None,
        Visible::Settled => visible::Visible::Settled(proto::Done {}),
        Visible::Older(age) => visible::Visible::OlderNanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
    };
    Some(proto::Visible { visible: Some(visible) })
}

fn visible(message: Option<proto::Visible>) -> Decoded<Visible> {
    let Some(message) = message else { return Ok(Visible::All) };
    match message.visible.ok_or(Malformed("visibility"))? {
        visible::Visible::Settled(proto::Done {}) => Ok(Visible::Settled),
        visible::Visible::OlderNanos(nanos) => Ok(Visible::Older(Duration::from_nanos(nanos))),
    }
}

pub(crate) fn from_page_query(query: &PageQuery) -> proto::FindEvents {
    proto::FindEvents {
        of: Some(from_events_of(&query.of)),
        after: from_cursor(&query.after),
        until: query.until.map(from_position),
        visible: from_visible(query.visible),
        limit: query.limit as u64,
        load: query.load,
        changes: false,
    }
}

pub(crate) fn page_query(message: proto::FindEvents) -> Decoded<PageQuery> {
    Ok(PageQuery {
        of: events_of(message.of)?,
        after: cursor(message.after)?,
        until: message.until.map(|until| position(Some(until))).transpose()?,
        visible: visible(message.visible)?,
        limit: usize_of(message.limit),
        load: message.load,
    })
}

pub(crate) fn from_event_page(page: EventPage) -> proto::FoundEvents {
    let events = page.events.into_iter().map(|found| proto::FoundEvent {
        persistence_id: found.id.as_str().to_owned(),
        seq_nr: found.seq_nr.as_u64(),
        position: Some(from_position(found.position)),
        event: found.event.map(from_stored),
    });
    proto::FoundEvents { events: events.collect(), next: from_cursor(&page.next), more: page.more }
}

pub(crate) fn event_page(message: proto::FoundEvents) -> Decoded<EventPage> {
    let events = message.events.into_iter().map(|found| {
        let id = id(&found.persistence_id)?;
        let seq_nr: SeqNr = seq_nr(found.seq_nr)?;
        let event = found.event.map(|event| stored(&id, event)).transpose()?;
        Ok(FoundEvent { seq_nr, position: position(found.position)?, event, id })
    });
    Ok(EventPage { events: events.collect::<Decoded<_>>()?, next: cursor(message.next)?, more: message.more })
}
