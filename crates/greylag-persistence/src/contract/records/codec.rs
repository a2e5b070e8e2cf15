//! How events and states become stored bytes, and how old stored bytes are read.
//!
//! On read, in this order: upcasters raise the version of the raw payload until none matches, then
//! the codec of the *stored* codec id decodes. So a type can move from JSON to prost, or change its
//! fields, and its old events are still read. Source: persistence §1 (codecs, schema evolution).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, EncodeError, StorageScope};

use super::event::{EventKind, SeqNr};
use super::persistence_id::PersistenceId;

/// A value as stores keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedValue {
    /// Id of the codec that wrote the payload.
    pub codec_id: CodecId,
    /// The name of the value's type.
    pub manifest: String,
    /// Version of the type's format under this manifest.
    pub schema_version: u32,
    /// The encoded value.
    pub payload: Bytes,
}

/// The events that one stored record decodes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSeq<E> {
    /// No event to apply; the record's number counts. Also for a payload whose key was destroyed.
    Filtered,
    /// One event, the usual case.
    One(E),
    /// Any number of events; all carry the number of their record.
    Many(Vec<E>),
}

/// A function that raises the version of a raw payload.
#[derive(Clone)]
pub struct Upcaster {
    /// Payloads of this manifest …
    pub manifest: String,
    /// … and of this version.
    pub from_version: u32,
    /// Makes the payload of the new version; the version must rise, unless the manifest changes, and no value may pass
    /// the same upcaster twice.
    pub upcast: Arc<dyn Fn(EncodedValue) -> Result<EncodedValue, String> + Send + Sync>,
}

impl fmt::Debug for Upcaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upcaster({} v{})", self.manifest, self.from_version)
    }
}

impl Upcaster {
    /// An upcaster of JSON payloads, from `from_version` to `to_version` under the same manifest.
    pub fn json(
        manifest: impl Into<String>,
        from_version: u32,
        to_version: u32,
        upcast: impl Fn(serde_json::Value) -> Result<serde_json::Value, String> + Send + Sync + 'static,
    ) -> Self {
        let upcast = move |old: EncodedValue| {
            let value = serde_json::from_slice(&old.payload).map_err(|error| error.to_string())?;
            let payload = serde_json::to_vec(&upcast(value)?).map_err(|error| error.to_string())?.into();
            Ok(EncodedValue { schema_version: to_version, payload, ..old })
        };
        Self { manifest: manifest.into(), from_version, upcast: Arc::new(upcast) }
    }
}

type Adapter<T> = Arc<dyn Fn(T) -> EventSeq<T> + Send + Sync>;
type IsLost = Arc<dyn Fn(&EncodedValue) -> bool + Send + Sync>;
type WriteAdapter<T> = Arc<dyn Fn(&T) -> T + Send + Sync>;

/// Writes and reads the stored values of one type: one codec that writes, any number that read.
///
/// Cheap to clone; make one for a type and share it.
///
/// ```
/// use greylag_codec::json;
/// use greylag_persistence::StoredCodec;
///
/// let codec = StoredCodec::new(json::<u32>("counter.added"));
/// let stored = codec.encode(&7)?;
/// assert_eq!((stored.manifest.as_str(), &stored.payload[..]), ("counter.added", &b"7"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoredCodec<T>(Arc<Inner<T>>);

struct Inner<T> {
    writer: Arc<dyn Codec<T>>,
    version: u32,
    readers: BTreeMap<(CodecId, String), Reader<T>>,
    upcasters: Vec<Upcaster>,
    to_journal: Option<WriteAdapter<T>>,
    from_journal: Option<Adapter<T>>,
    is_lost: Option<IsLost>,
}

struct Reader<T> {
    codec: Arc<dyn Codec<T>>,
    newest_version: u32,
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self { codec: self.codec.clone(), newest_version: self.newest_version }
    }
}

impl<T> Clone for Inner<T> {
    fn clone(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            version: self.version,
            readers: self.readers.clone(),
            upcasters: self.upcasters.clone(),
            to_journal: self.to_journal.clone(),
            from_journal: self.from_journal.clone(),
            is_lost: self.is_lost.clone(),
        }
    }
}

impl<T> Clone for StoredCodec<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: 'static> fmt::Debug for StoredCodec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredCodec")
            .field("writer", &self.0.writer.id())
            .field("version", &self.0.version)
            .field("reads", &self.0.readers.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A way of storing `T`s, as the definition of an entity type names it: a codec, or a [`StoredCodec`], which can also
/// read the values of earlier releases. `By` tells the two implementations apart, and is never written.
pub trait IntoStored<T, By> {
    /// Converts to a stored codec.
    fn into_stored(self) -> StoredCodec<T>;
}

/// Marker of the [`IntoStored`] implementation for codecs.
#[derive(Debug)]
pub enum ByCodec {}

/// Marker of the [`IntoStored`] implementation for stored codecs.
#[derive(Debug)]
pub enum AsIs {}

impl<T: 'static, C: Codec<T>> IntoStored<T, ByCodec> for C {
    fn into_stored(self) -> StoredCodec<T> {
        StoredCodec::new(self)
    }
}

impl<T> IntoStored<T, AsIs> for StoredCodec<T> {
    fn into_stored(self) -> StoredCodec<T> {
        self
    }
}

impl<T: 'static> StoredCodec<T> {
    /// A codec that writes and reads by `codec`, at version 1.
    pub fn new(codec: impl Codec<T>) -> Self {
        Self::with_version(codec, 1)
    }

    /// Writes by `codec` at `version`, and reads all versions up to it. Formats that do not
    /// describe themselves need a higher version at every change.
    pub fn with_version(codec: impl Codec<T>, version: u32) -> Self {
        let writer: Arc<dyn Codec<T>> = Arc::new(codec);
        let inner = Inner {
            writer: writer.clone(),
            version,
            readers: BTreeMap::new(),
            upcasters: Vec::new(),
            to_journal: None,
            from_journal: None,
            is_lost: None,
        };
        Self(Arc::new(inner)).reading(writer, version)
    }

    /// Also reads values that `codec` wrote, up to version `newest_version`.
    #[must_use]
    pub fn reads(self, codec: impl Codec<T>, newest_version: u32) -> Self {
        self.reading(Arc::new(codec), newest_version)
    }

    /// Runs `upcaster` on matching payloads before they are decoded.
    #[must_use]
    pub fn upcaster(mut self, upcaster: Upcaster) -> Self {
        self.inner_mut().upcasters.push(upcaster);
        self
    }

    /// Replaces each value by another before encoding. Tags and snapshots
    /// are of the value that the entity persisted.
    #[must_use]
    pub fn to_journal(mut self, adapter: impl Fn(&T) -> T + Send + Sync + 'static) -> Self {
        self.inner_mut().to_journal = Some(Arc::new(adapter));
        self
    }

    /// Replaces each decoded value by none, one or several.
    #[must_use]
    pub fn from_journal(mut self, adapter: impl Fn(T) -> EventSeq<T> + Send + Sync + 'static) -> Self {
        self.inner_mut().from_journal = Some(Arc::new(adapter));
        self
    }

    /// Reads an event as filtered if `is_lost` returns `true` for its stored form, before decoding is tried: for an
    /// event whose payload cannot be read any more, say because the personal key that encrypted it was destroyed. The
    /// event's number counts, and no handler is called. Source: persistence §1.
    #[must_use]
    pub fn filtered_when(mut self, is_lost: impl Fn(&EncodedValue) -> bool + Send + Sync + 'static) -> Self {
        self.inner_mut().is_lost = Some(Arc::new(is_lost));
        self
    }

    fn reading(mut self, codec: Arc<dyn Codec<T>>, newest_version: u32) -> Self {
        for manifest in codec.manifests() {
            let reader = Reader { codec: codec.clone(), newest_version };
            self.inner_mut().readers.insert((codec.id(), manifest.into()), reader);
        }
        self
    }

    fn inner_mut(&mut self) -> &mut Inner<T> {
        Arc::make_mut(&mut self.0)
    }

    /// The stored form of `value`.
    ///
    /// # Errors
    /// [`EncodeError`] if the codec refuses the value, or if the value holds something that belongs to a running
    /// process: a reply token or a reference to an entity.
    pub fn encode(&self, value: &T) -> Result<EncodedValue, EncodeError> {
        let adapted = self.0.to_journal.as_ref().map(|adapter| adapter(value));
        let value = adapted.as_ref().unwrap_or(value);
        let mut payload = BytesMut::new();
        let storing = StorageScope::enter();
        self.0.writer.encode(value, &mut payload)?;
        drop(storing);
        Ok(EncodedValue {
            codec_id: self.0.writer.id(),
            manifest: self.0.writer.manifest(value).into(),
            schema_version: self.0.version,
            payload: payload.freeze(),
        })
    }

    /// Reads a stored record of `kind`.
    ///
    /// # Errors
    /// [`StoredDecodeError`]; an unreadable record is never skipped silently here.
    pub fn decode(&self, kind: EventKind, stored: EncodedValue) -> Result<EventSeq<T>, StoredDecodeError> {
        if kind == EventKind::Filtered || self.0.is_lost.as_ref().is_some_and(|is_lost| is_lost(&stored)) {
            return Ok(EventSeq::Filtered);
        }
        let value = self.decode_one(stored)?;
        Ok(match &self.0.from_journal {
            Some(adapter) => adapter(value),
            None => EventSeq::One(value),
        })
    }

    /// Reads a stored value that decodes to exactly one value, such as a state.
    ///
    /// # Errors
    /// [`StoredDecodeError`].
    pub fn decode_one(&self, stored: EncodedValue) -> Result<T, StoredDecodeError> {
        let stored = self.upcast(stored)?;
        let EncodedValue { codec_id, manifest, schema_version, payload } = stored;
        let key = (codec_id, manifest);
        let Some(reader) = self.0.readers.get(&key) else {
            return Err(StoredDecodeError::UnknownManifest { codec_id, manifest: key.1 });
        };
        if schema_version > reader.newest_version {
            let known = reader.newest_version;
            return Err(StoredDecodeError::NewerSchema { manifest: key.1, found: schema_version, known });
        }
        reader
            .codec
            .decode(&key.1, payload)
            .map_err(|error| StoredDecodeError::Malformed { manifest: key.1, reason: error.to_string() })
    }

    fn upcast(&self, mut stored: EncodedValue) -> Result<EncodedValue, StoredDecodeError> {
        let mut steps = 0;
        while let Some(upcaster) = self
            .0
            .upcasters
            .iter()
            .find(|upcaster| upcaster.manifest == stored.manifest && upcaster.from_version == stored.schema_version)
        {
            steps += 1;
            let (manifest, from) = (stored.manifest.clone(), stored.schema_version);
            let malformed = |reason| StoredDecodeError::Malformed { manifest: manifest.clone(), reason };
            stored = (upcaster.upcast)(stored).map_err(&malformed)?;
            // Require progress: an upcaster that keeps version and manifest would run for ever.
            if stored.manifest == manifest && stored.schema_version <= from {
                return Err(malformed(format!("the upcaster from version {from} does not raise it")));
            }
            // Limit the steps: several upcasters that rename in a circle would run for ever.
            if steps > self.0.upcasters.len() {
                return Err(malformed(format!("the upcasters from version {from} rename it in a circle")));
            }
        }
        Ok(stored)
    }
}

/// Why a stored value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoredDecodeError {
    /// No codec of this id knows the manifest; deploy readers before writers.
    #[error("codec {codec_id} knows no stored manifest {manifest:?}")]
    UnknownManifest {
        /// The stored codec id.
        codec_id: CodecId,
        /// The stored manifest.
        manifest: String,
    },
    /// The value was written by newer code; deploy readers before writers.
    #[error("manifest {manifest:?} is stored at version {found}, known are versions up to {known}")]
    NewerSchema {
        /// The stored manifest.
        manifest: String,
        /// The stored version.
        found: u32,
        /// The newest version that this code knows.
        known: u32,
    },
    /// The bytes are not a value of this manifest.
    #[error("malformed value with manifest {manifest:?}: {reason}")]
    Malformed {
        /// The stored manifest.
        manifest: String,
        /// The codec's message.
        reason: String,
    },
}

impl StoredDecodeError {
    /// Whether the value is of a type or version that this code does not know, rather than damaged.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::UnknownManifest { .. } | Self::NewerSchema { .. })
    }
}

/// A decode error with its place in a history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {id} at {seq_nr}: {error}")]
pub struct UnreadableRecord {
    /// The id that the history belongs to.
    pub id: PersistenceId,
    /// Number of the record.
    pub seq_nr: SeqNr,
    /// The decode error.
    pub error: StoredDecodeError,
}

#[cfg(test)]
mod tests {
    use super::*;
    use greylag_codec::{json, prost};

    fn stored(manifest: &str, schema_version: u32, payload: &'static [u8]) -> EncodedValue {
        let payload = Bytes::from_static(payload);
        EncodedValue { codec_id: CodecId::JSON, manifest: manifest.into(), schema_version, payload }
    }

    #[test]
    fn a_type_that_moved_to_another_codec_still_reads_old_events() {
        let codec = StoredCodec::with_version(prost::<u32>("added"), 3).reads(json::<u32>("added"), 2);
        let written = codec.encode(&7).unwrap();
        assert_eq!((written.codec_id, written.schema_version), (CodecId::PROST, 3));
        assert_eq!(codec.decode_one(written), Ok(7));
        assert_eq!(codec.decode_one(stored("added", 1, b"8")), Ok(8));
        let newer = StoredDecodeError::NewerSchema { manifest: "added".into(), found: 3, known: 2 };
        assert_eq!(codec.decode_one(stored("added", 3, b"8")), Err(newer));
        assert!(matches!(codec.decode_one(stored("removed", 1, b"8")), Err(StoredDecodeError::UnknownManifest { .. })));
        assert!(matches!(codec.decode_one(stored("added", 1, b"{")), Err(StoredDecodeError::Malformed { .. })));
    }

    #[test]
    fn upcasters_run_until_none_matches_and_must_make_progress() {
        let rename = Upcaster {
            manifest: "plus".into(),
            from_version: 1,
            upcast: Arc::new(|old| Ok(EncodedValue { manifest: "added".into(), ..old })),
        };
        let ten_times = Upcaster {
            manifest: "added".into(),
            from_version: 1,
            upcast: Arc::new(|old| {
                let payload = [&old.payload[..], b"0"].concat().into();
                Ok(EncodedValue { schema_version: 2, payload, ..old })
            }),
        };
        let codec = StoredCodec::with_version(json::<u32>("added"), 2).upcaster(rename).upcaster(ten_times);
        assert_eq!(codec.decode_one(stored("plus", 1, b"4")), Ok(40));
        assert_eq!(codec.decode_one(stored("added", 2, b"4")), Ok(4));

        let stuck = Upcaster { manifest: "added".into(), from_version: 2, upcast: Arc::new(Ok) };
        let codec = codec.upcaster(stuck);
        assert!(matches!(codec.decode_one(stored("added", 2, b"4")), Err(StoredDecodeError::Malformed { .. })));
    }

    #[test]
    fn upcasters_that_rename_in_a_circle_are_refused() {
        let rename = |from: &str, to: &'static str| Upcaster {
            manifest: from.into(),
            from_version: 1,
            upcast: Arc::new(move |old| Ok(EncodedValue { manifest: to.into(), ..old })),
        };
        let codec = StoredCodec::new(json::<u32>("added"));
        let codec = codec.upcaster(rename("a", "b")).upcaster(rename("b", "c")).upcaster(rename("c", "added"));
        assert_eq!(codec.decode_one(stored("a", 1, b"4")), Ok(4), "every upcaster once is no circle");
        let codec = codec.upcaster(rename("added", "a"));
        for manifest in ["a", "added"] {
            let error = codec.decode_one(stored(manifest, 1, b"4")).unwrap_err();
            assert!(matches!(error, StoredDecodeError::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn json_upcasters_change_values_of_one_version() {
        let codec = StoredCodec::with_version(json::<u32>("added"), 3)
            .upcaster(Upcaster::json("added", 1, 2, |value| value.get("by").cloned().ok_or_else(|| "no \"by\"".into())))
            .upcaster(Upcaster::json("added", 2, 3, |value| Ok((value.as_u64().unwrap_or(0) * 100).into())));
        assert_eq!(codec.decode_one(stored("added", 1, br#"{"by":4}"#)), Ok(400));
        assert_eq!(codec.decode_one(stored("added", 2, b"4")), Ok(400));
        assert_eq!(codec.decode_one(stored("added", 3, b"4")), Ok(4));
        for broken in [&b"{"[..], br#"{"from":4}"#] {
            let error = codec.decode_one(stored("added", 1, broken)).unwrap_err();
            assert!(matches!(&error, StoredDecodeError::Malformed { .. }) && !error.is_unknown(), "{error}");
        }
    }

    #[test]
    fn adapters_change_what_is_written() {
        let codec = StoredCodec::new(json::<u32>("added"))
            .to_journal(|cents| cents / 100)
            .from_journal(|euros| EventSeq::One(euros * 100));
        let written = codec.encode(&700).unwrap();
        assert_eq!(&written.payload[..], b"7");
        assert_eq!(codec.decode(EventKind::Event, written), Ok(EventSeq::One(700)));
    }

    /// persistence §1: the key that encrypted the payload was destroyed.
    #[test]
    fn an_event_whose_key_was_destroyed_is_filtered() {
        let codec =
            StoredCodec::new(json::<u32>("added")).filtered_when(|stored| stored.payload.starts_with(b"key 1:"));
        assert_eq!(codec.decode(EventKind::Event, stored("added", 1, b"key 1:?")), Ok(EventSeq::Filtered));
        assert_eq!(codec.decode(EventKind::Event, stored("gone", 9, b"key 1:?")), Ok(EventSeq::Filtered));
        assert_eq!(codec.decode(EventKind::Event, stored("added", 1, b"4")), Ok(EventSeq::One(4)));
    }

    #[test]
    fn adapters_wrap_split_and_drop() {
        let codec = StoredCodec::new(json::<u32>("added")).from_journal(|n| match n {
            0 => EventSeq::Many(vec![]),
            n if n > 9 => EventSeq::Many(vec![n / 10, n % 10]),
            n => EventSeq::One(n + 1),
        });
        assert_eq!(codec.decode(EventKind::Event, stored("added", 1, b"42")), Ok(EventSeq::Many(vec![4, 2])));
        assert_eq!(codec.decode(EventKind::Event, stored("added", 1, b"0")), Ok(EventSeq::Many(vec![])));
        assert_eq!(codec.decode(EventKind::Event, stored("added", 1, b"1")), Ok(EventSeq::One(2)));
        assert_eq!(codec.decode(EventKind::Filtered, stored("gone", 9, b"")), Ok(EventSeq::Filtered));
    }
}
