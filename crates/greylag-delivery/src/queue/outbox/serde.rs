//! Serialises outboxes and their events: one record of bytes, in hexadecimal for human-readable formats.

use std::fmt;

use bytes::Bytes;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DeliveryOutbox, OutboxEvent};

fn write<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return serializer.serialize_bytes(bytes);
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    serializer.serialize_str(&hex)
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct Record;

    impl Visitor<'_> for Record {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a record of an outbox")
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(bytes))
        }

        fn visit_str<E: serde::de::Error>(self, hex: &str) -> Result<Bytes, E> {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
            let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
            let bytes: Option<Bytes> = pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(Bytes::from);
            bytes.filter(|_| rest.is_empty()).ok_or_else(|| E::custom("a record of an outbox is hexadecimal"))
        }
    }

    if deserializer.is_human_readable() {
        deserializer.deserialize_str(Record)
    } else {
        deserializer.deserialize_bytes(Record)
    }
}

impl Serialize for DeliveryOutbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(&self.to_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for DeliveryOutbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_bytes(read(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for OutboxEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(&self.to_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for OutboxEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_bytes(read(deserializer)?).map_err(D::Error::custom)
    }
}
