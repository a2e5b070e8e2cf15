//! Export: everything that can be read of a journal, as lines of JSON, for people and for other programs.

use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use greylag_core::Generation;
use greylag_persistence::{EventKind, Metadata};
use serde_json::{Value, json};

use super::failure::Failure;
use super::findings::Verification;
use super::survey::Found;
use super::verify::look_beside;
use crate::rows::keys::hex;
use crate::rows::offset_row::ProcessedChange;

/// Writes one object a line: `id`, `event`, `snapshot`, `state`, `offsets`, and `damage` for what cannot be
/// read. Payloads and values of metadata are hexadecimal, timestamps are microseconds since 1970. Works on a copy, as
/// [`verify`](super::verify) does.
///
/// # Errors
/// As [`verify`](super::verify); [`Failure::File`] if `out` fails, too.
pub fn export(path: &Path, out: &mut dyn Write) -> Result<Verification, Failure> {
    let mut failed = Ok(());
    let looked = look_beside(path, &mut |thing| {
        if failed.is_ok() {
            failed = writeln!(out, "{}", line(thing));
        }
    })?;
    failed.map_err(|source| Failure::File { path: "the output".into(), source })?;
    Ok(looked.found)
}

pub(super) fn line(thing: &Found<'_>) -> Value {
    match thing {
        Found::Id { id, head, .. } => {
            let head = head.map(|stored| {
                json!({
                    "epoch": stored.head.epoch.as_u64(),
                    "writer_uuid": stored.head.writer_uuid.to_string(),
                    "generation": stored.head.generation.map(Generation::as_u64),
                    "highest": stored.head.highest.as_u64(),
                    "deleted_to": stored.head.deleted_to.as_u64(),
                })
            });
            json!({ "id": { "id": id.as_str(), "head": head } })
        }
        Found::Event { row, .. } => {
            let event = &row.event;
            json!({ "event": {
                "id": event.id.as_str(),
                "seq_nr": event.seq_nr.as_u64(),
                "ordinal": row.ordinal,
                "timestamp": event.timestamp.as_micros(),
                "writer_uuid": event.writer_uuid.to_string(),
                "writer_epoch": event.writer_epoch.as_u64(),
                "codec_id": event.codec_id.as_u32(),
                "manifest": event.manifest,
                "schema_version": event.schema_version,
                "filtered": event.kind == EventKind::Filtered,
                "tags": event.tags,
                "metadata": metadata(&event.metadata),
                "payload": hex(&event.payload),
            }})
        }
        Found::Snapshot(_, snapshot) => json!({ "snapshot": {
            "id": snapshot.id.as_str(),
            "seq_nr": snapshot.seq_nr.as_u64(),
            "timestamp": snapshot.timestamp.as_micros(),
            "codec_id": snapshot.codec_id.as_u32(),
            "manifest": snapshot.manifest,
            "schema_version": snapshot.schema_version,
            "metadata": metadata(&snapshot.metadata),
            "payload": hex(&snapshot.payload),
        }}),
        Found::State(row) => {
            let state = &row.state;
            let value = state.value.as_ref().map(|value| {
                json!({
                    "codec_id": value.codec_id.as_u32(),
                    "manifest": value.manifest,
                    "schema_version": value.schema_version,
                    "payload": hex(&value.payload),
                })
            });
            json!({ "state": {
                "id": state.id.as_str(),
                "revision": state.revision.as_u64(),
                "generation": state.generation.map(Generation::as_u64),
                "writer_uuid": state.writer_uuid.to_string(),
                "timestamp": state.timestamp.as_micros(),
                "tag": state.tag,
                "value": value,
            }})
        }
        Found::Offsets { projection, slice, row } => {
            let place = |place: &ProcessedChange| json!({ "id": place.id.as_str(), "seq_nr": place.seq_nr.as_u64(), "ordinal": place.ordinal });
            let places: Vec<_> = row.places().map(place).collect();
            json!({ "offsets": {
                "projection": projection, "slice": slice, "owner_epoch": row.epoch.as_u64(), "places": places,
            }})
        }
        Found::Nameless { key, value } => json!({ "record": { "key": hex(key), "value": hex(value) } }),
        Found::Lost { id, seq_nr, why, .. } => {
            let why = why.as_deref().unwrap_or("missing");
            json!({ "damage": format!("event {seq_nr} of {id}: {why}") })
        }
        Found::Damage { what } => json!({ "damage": what }),
    }
}

fn metadata(metadata: &Metadata) -> Value {
    let field = |(name, value): (&String, &Bytes)| (name.clone(), Value::String(hex(value)));
    Value::Object(metadata.iter().map(field).collect())
}
