//! Heads, events, snapshots and states as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use greylag_core::Generation;
use greylag_persistence::{EncodedValue, EventKind, Head, Snapshot, StoredEvent, StoredState, Timestamp};
use serde::Serialize;
use serde_json::Value;

/// Codec id of JSON, whose payloads can be read without the types of the program that wrote them.
const JSON: u32 = 2;
const CBOR: u32 = 3;

/// A payload as shown: as JSON if it is, whole and not too long; otherwise its first bytes in hexadecimal.
#[derive(Debug, Serialize)]
pub(crate) struct PayloadView {
    payload_bytes: usize,
    payload: Option<Value>,
    payload_hex: Option<String>,
}

impl PayloadView {
    fn new(codec: u32, payload: &[u8], limit: usize) -> Self {
        let value = match codec {
            _ if payload.len() > limit => None,
            JSON => serde_json::from_slice(payload).ok(),
            CBOR => ciborium::from_reader(payload).ok(),
            _ => None,
        };
        let hex = value.is_none().then(|| payload.iter().take(limit).map(|byte| format!("{byte:02x}")).collect());
        Self { payload_bytes: payload.len(), payload: value, payload_hex: hex }
    }
}

impl fmt::Display for PayloadView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.payload, &self.payload_hex) {
            (Some(value), _) => write!(f, "{value}"),
            (None, Some(hex)) if hex.len() / 2 < self.payload_bytes => {
                write!(f, "0x{hex}… ({} bytes)", self.payload_bytes)
            }
            (None, Some(hex)) if !hex.is_empty() => write!(f, "0x{hex}"),
            _ => f.write_str("(empty)"),
        }
    }
}

/// Microseconds since 1970 as a date, in UTC.
fn date(timestamp: Timestamp) -> String {
    let micros = timestamp.as_micros();
    let (days, rest) = (micros / 86_400_000_000, micros % 86_400_000_000);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": civil_from_days, for dates after 1970.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{micros:06}Z")
}

/// The head of a history.
#[derive(Debug, Serialize)]
pub(crate) struct HeadView {
    epoch: u64,
    writer: String,
    #[serde(serialize_with = "as_number")]
    generation: Option<Generation>,
    highest: u64,
    deleted_to: u64,
    last_append: Option<String>,
}

/// Serializes a generation as a number, which programs compare.
fn as_number<S: serde::Serializer>(generation: &Option<Generation>, to: S) -> Result<S::Ok, S::Error> {
    generation.map(Generation::as_u64).serialize(to)
}

impl HeadView {
    pub(crate) fn new(head: &Head, last_append: Timestamp) -> Self {
        Self {
            epoch: head.epoch.as_u64(),
            writer: head.writer_uuid.to_string(),
            generation: head.generation,
            highest: head.highest.as_u64(),
            deleted_to: head.deleted_to.as_u64(),
            last_append: (last_append != Timestamp::default()).then(|| date(last_append)),
        }
    }

    /// Whether no writer ever claimed the id.
    pub(crate) fn is_none(&self) -> bool {
        self.epoch == 0 && self.highest == 0
    }
}

impl fmt::Display for HeadView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, writer, generation, highest, deleted_to, last_append } = self;
        let generation = generation.map_or_else(|| "none".to_owned(), |generation| generation.to_string());
        writeln!(f, "head      epoch {epoch}, writer {writer}, generation {generation}")?;
        let at = last_append.as_deref().unwrap_or("never");
        writeln!(f, "events    {} to {highest}, the last append {at}", deleted_to + 1)
    }
}

/// One event.
#[derive(Debug, Serialize)]
pub(crate) struct EventView {
    seq_nr: u64,
    timestamp_us: u64,
    time: String,
    manifest: String,
    schema_version: u32,
    codec: u32,
    filtered: bool,
    tags: Vec<String>,
    /// Values in hexadecimal.
    metadata: BTreeMap<String, String>,
    writer: String,
    epoch: u64,
    crc32c: u32,
    #[serde(flatten)]
    payload: PayloadView,
}

impl EventView {
    pub(crate) fn new(event: &StoredEvent, limit: usize) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let codec = event.codec_id.as_u32();
        Self {
            seq_nr: event.seq_nr.as_u64(),
            timestamp_us: event.timestamp.as_micros(),
            time: date(event.timestamp),
            manifest: event.manifest.clone(),
            schema_version: event.schema_version,
            codec,
            filtered: event.kind == EventKind::Filtered,
            tags: event.tags.iter().cloned().collect(),
            metadata: event.metadata.iter().map(|(name, value)| (name.clone(), hex(value))).collect(),
            writer: event.writer_uuid.to_string(),
            epoch: event.writer_epoch.as_u64(),
            crc32c: event.crc32c,
            payload: PayloadView::new(codec, &event.payload, limit),
        }
    }
}

impl fmt::Display for EventView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq_nr, time, manifest, schema_version, filtered, tags, payload, .. } = self;
        write!(f, "{seq_nr}  {time}  {manifest} v{schema_version}  ")?;
        if *filtered {
            f.write_str("(filtered)")?;
        } else {
            payload.fmt(f)?;
        }
        tags.iter().try_for_each(|tag| write!(f, "  #{tag}"))
    }
}

/// One snapshot, without its payload.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotView {
    seq_nr: u64,
    time: String,
    manifest: String,
    schema_version: u32,
    codec: u32,
    bytes: usize,
}

impl From<&Snapshot> for SnapshotView {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            seq_nr: snapshot.seq_nr.as_u64(),
            time: date(snapshot.timestamp),
            manifest: snapshot.manifest.clone(),
            schema_version: snapshot.schema_version,
            codec: snapshot.codec_id.as_u32(),
            bytes: snapshot.payload.len(),
        }
    }
}

impl fmt::Display for SnapshotView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq_nr, time, manifest, schema_version, bytes, .. } = self;
        write!(f, "at {seq_nr}  {time}  {manifest} v{schema_version}  {bytes} bytes")
    }
}

/// A durable state.
#[derive(Debug, Serialize)]
pub(crate) struct StateView {
    revision: u64,
    time: String,
    writer: String,
    tag: Option<String>,
    deleted: bool,
    manifest: Option<String>,
    schema_version: Option<u32>,
    codec: Option<u32>,
    #[serde(flatten)]
    payload: PayloadView,
}

impl StateView {
    pub(crate) fn new(state: &StoredState, limit: usize) -> Self {
        let value = state.value.as_ref();
        let codec = value.map(|value: &EncodedValue| value.codec_id.as_u32());
        let bytes = value.map_or(&[][..], |value| &value.payload[..]);
        Self {
            revision: state.revision.as_u64(),
            time: date(state.timestamp),
            writer: state.writer_uuid.to_string(),
            tag: state.tag.clone(),
            deleted: value.is_none(),
            manifest: value.map(|value| value.manifest.clone()),
            schema_version: value.map(|value| value.schema_version),
            codec,
            payload: PayloadView::new(codec.unwrap_or_default(), bytes, limit),
        }
    }
}

impl fmt::Display for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, time, manifest, schema_version, payload, .. } = self;
        write!(f, "revision {revision}  {time}  ")?;
        match (manifest, schema_version) {
            (Some(manifest), Some(version)) => write!(f, "{manifest} v{version}  {payload}"),
            _ => f.write_str("(deleted)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_printed_as_calendar_dates() {
        for (micros, date) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
            (1_709_251_199_999_999, "2024-02-29T23:59:59.999999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(super::date(Timestamp::from_micros(micros)), date);
        }
    }

    /// Text shows a generation as every log and error does; JSON has the number.
    #[test]
    fn a_generation_is_printed_as_by_other_commands() {
        let generation = Generation::new(3, 7).unwrap();
        let head = Head { generation: Some(generation), ..Head::default() };
        let view = HeadView::new(&head, Timestamp::default());
        assert!(view.to_string().contains("generation 3.7\n"), "{view}");
        assert_eq!(serde_json::to_value(&view).unwrap()["generation"], generation.as_u64());
        let view = HeadView::new(&Head::default(), Timestamp::default());
        assert!(view.to_string().contains("generation none\n"), "{view}");
    }

    #[test]
    fn payloads_are_json_where_they_can_be() {
        let cbor = |value: &Value| {
            let mut bytes = Vec::new();
            ciborium::into_writer(value, &mut bytes).unwrap();
            bytes
        };
        let value = serde_json::json!({ "cents": 5 });
        let shown = |codec, bytes: &[u8], limit| PayloadView::new(codec, bytes, limit).to_string();
        assert_eq!(shown(JSON, value.to_string().as_bytes(), 100), r#"{"cents":5}"#);
        assert_eq!(shown(CBOR, &cbor(&value), 100), r#"{"cents":5}"#);
        assert_eq!(shown(JSON, b"not json", 100), "0x6e6f74206a736f6e");
        assert_eq!(shown(1, b"\x08\x05", 100), "0x0805");
        assert_eq!(shown(JSON, b"[1,2]", 2), "0x5b31… (5 bytes)");
        assert_eq!(shown(1, b"", 100), "(empty)");
    }
}
