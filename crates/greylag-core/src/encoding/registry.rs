//! Which codec serves which type: the serialization registry of a node.
//!
//! Types are bound while the node is set up; from then on any layer writes a value by its Rust
//! type and reads one by the codec id and manifest on the wire. Reading never looks at Rust types, so a
//! peer can only make us build registered types.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use bytes::{Bytes, BytesMut};

use super::codec::{Codec, CodecId, DecodeError, EncodeError};
use super::manifest::Manifest;

/// A message as on wire and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The codec that wrote the payload.
    pub codec: CodecId,
    /// The stable name of the message type.
    pub manifest: Manifest,
    /// The encoded message.
    pub payload: Bytes,
}

/// A value whose type is erased.
pub(crate) type AnyMessage = Box<dyn Any + Send>;

/// A codec whose message type is erased.
pub(crate) trait ErasedCodec: Send + Sync {
    /// Whether this codec reads payloads that carry this codec id and manifest.
    fn reads(&self, codec: CodecId, manifest: &str) -> bool;
    fn encode(&self, message: &dyn Any) -> Result<Encoded, EncodeError>;
    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<AnyMessage, DecodeError>;
}

pub(crate) struct Erased<M, C> {
    codec: C,
    message: std::marker::PhantomData<fn() -> M>,
}

impl<M, C> Erased<M, C> {
    pub(crate) fn new(codec: C) -> Self {
        Self { codec, message: std::marker::PhantomData }
    }
}

impl<M: Send + 'static, C: Codec<M>> ErasedCodec for Erased<M, C> {
    fn reads(&self, codec: CodecId, manifest: &str) -> bool {
        self.codec.id() == codec && self.codec.manifests().iter().any(|known| **known == *manifest)
    }

    fn encode(&self, message: &dyn Any) -> Result<Encoded, EncodeError> {
        let message = message.downcast_ref::<M>().ok_or(EncodeError::NotRegistered { type_name: type_name::<M>() })?;
        let mut buffer = BytesMut::new();
        self.codec.encode(message, &mut buffer)?;
        Ok(Encoded { codec: self.codec.id(), manifest: self.codec.manifest(message), payload: buffer.freeze() })
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<AnyMessage, DecodeError> {
        Ok(Box::new(self.codec.decode(manifest, bytes)?))
    }
}

#[derive(Default)]
struct Tables {
    by_type: HashMap<TypeId, Arc<dyn ErasedCodec>>,
    by_name: HashMap<CodecId, HashMap<Manifest, (TypeId, Arc<dyn ErasedCodec>)>>,
}

/// The codecs of one node. Shared by reference; registering takes effect at once.
///
/// Source: cluster T34, T35.
#[derive(Default)]
pub struct Registry {
    tables: RwLock<Tables>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables = self.tables.read().expect("registering never panics under the lock");
        f.debug_struct("Registry")
            .field("types", &tables.by_type.len())
            .field("manifests", &tables.by_name.values().map(HashMap::len).sum::<usize>())
            .finish()
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `M` to `codec`. The same type under the same manifests again is accepted and ignored,
    /// so two entity types may share a reply type.
    ///
    /// # Errors
    /// [`RegistryError`] if the type has other manifests already, or a manifest another type.
    /// Nothing is registered then.
    pub fn register<M: Send + 'static>(&self, codec: impl Codec<M>) -> Result<(), RegistryError> {
        let id = codec.id();
        let manifests = codec.manifests();
        let this = TypeId::of::<M>();
        let mut tables = self.tables.write().expect("registering never panics under the lock");
        for manifest in &manifests {
            match tables.by_name.get(&id).and_then(|names| names.get(manifest)) {
                Some((owner, _)) if *owner != this => {
                    return Err(RegistryError::ManifestTaken {
                        codec: id,
                        manifest: manifest.to_string(),
                        type_name: type_name::<M>(),
                    });
                }
                None if tables.by_type.contains_key(&this) => {
                    return Err(RegistryError::TypeBound {
                        type_name: type_name::<M>(),
                        manifest: manifest.to_string(),
                    });
                }
                _ => {}
            }
        }
        let erased: Arc<dyn ErasedCodec> = Arc::new(Erased::new(codec));
        for manifest in manifests {
            tables.by_name.entry(id).or_default().insert(manifest, (this, erased.clone()));
        }
        tables.by_type.entry(this).or_insert(erased);
        Ok(())
    }

    /// Whether values of `M` can be written.
    pub fn knows<M: 'static>(&self) -> bool {
        self.tables.read().expect("registering never panics under the lock").by_type.contains_key(&TypeId::of::<M>())
    }

    /// Writes a value by its Rust type.
    ///
    /// # Errors
    /// [`EncodeError::NotRegistered`], or the codec's error.
    pub fn encode<M: 'static>(&self, message: &M) -> Result<Encoded, EncodeError> {
        self.encode_any(message, type_name::<M>())
    }

    /// Writes a value whose type is known only at run time; `name` is for the error.
    ///
    /// # Errors
    /// [`EncodeError::NotRegistered`], or the codec's error.
    pub fn encode_any(&self, message: &dyn Any, name: &'static str) -> Result<Encoded, EncodeError> {
        let codec = {
            let tables = self.tables.read().expect("registering never panics under the lock");
            tables.by_type.get(&message.type_id()).cloned()
        };
        codec.ok_or(EncodeError::NotRegistered { type_name: name })?.encode(message)
    }

    /// Reads a value by the codec id and manifest on the wire.
    ///
    /// # Errors
    /// [`DecodeError::UnknownCodec`], [`DecodeError::UnknownManifest`], or the codec's error.
    pub fn decode(&self, codec: CodecId, manifest: &str, bytes: Bytes) -> Result<Box<dyn Any + Send>, DecodeError> {
        let found = {
            let tables = self.tables.read().expect("registering never panics under the lock");
            match tables.by_name.get(&codec).map(|names| names.get(manifest)) {
                Some(Some((_, found))) => Ok(found.clone()),
                Some(None) => Err(DecodeError::UnknownManifest { codec, manifest: manifest.to_owned() }),
                None => Err(DecodeError::UnknownCodec { codec, manifest: manifest.to_owned() }),
            }
        };
        found?.decode(manifest, bytes)
    }

    /// Reads a value that must be an `M`.
    ///
    /// # Errors
    /// As [`Registry::decode`], and [`DecodeError::WrongType`].
    pub fn decode_as<M: 'static>(&self, codec: CodecId, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        let any = self.decode(codec, manifest, bytes)?;
        any.downcast::<M>()
            .map(|message| *message)
            .map_err(|_| DecodeError::WrongType { manifest: manifest.to_owned(), expected: type_name::<M>() })
    }
}

/// Why a codec was not registered. Nothing changed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Another type owns the manifest.
    #[error("manifest {manifest:?} of codec {codec} belongs to another type than {type_name}; choose another manifest")]
    ManifestTaken {
        /// The codec.
        codec: CodecId,
        /// The manifest of both types.
        manifest: String,
        /// The type that came second.
        type_name: &'static str,
    },
    /// The type has a codec already, under other manifests.
    #[error("{type_name} is already bound to another codec or manifest than {manifest:?}")]
    TypeBound {
        /// The type bound twice.
        type_name: &'static str,
        /// A manifest of the second binding.
        manifest: String,
    },
}

crate::debug_is_sentence!(RegistryError);

#[cfg(test)]
mod tests {
    use super::*;

    /// Codec of the tests: writes a number as text under a manifest of the test's choice.
    struct Text(&'static str);

    macro_rules! text_codec {
        ($type:ty) => {
            impl Codec<$type> for Text {
                fn id(&self) -> CodecId {
                    CodecId::FIRST_USER
                }
                fn manifest(&self, _: &$type) -> Manifest {
                    self.0.into()
                }
                fn manifests(&self) -> Vec<Manifest> {
                    vec![self.0.into()]
                }
                fn encode(&self, message: &$type, buffer: &mut BytesMut) -> Result<(), EncodeError> {
                    buffer.extend_from_slice(message.to_string().as_bytes());
                    Ok(())
                }
                fn decode(&self, manifest: &str, bytes: Bytes) -> Result<$type, DecodeError> {
                    let text = std::str::from_utf8(&bytes).map_err(|e| DecodeError::malformed(manifest, e))?;
                    text.parse().map_err(|e| DecodeError::malformed(manifest, e))
                }
            }
        };
    }
    text_codec!(u32);
    text_codec!(i64);

    /// Cluster T34: the codec id chooses the codec, the manifest tells the codec how to read the bytes.
    #[test]
    fn a_value_comes_back_by_what_the_wire_says() {
        let registry = Registry::new();
        registry.register::<u32>(Text("count")).unwrap();
        let encoded = registry.encode(&7_u32).unwrap();
        assert_eq!((encoded.codec, &*encoded.manifest), (CodecId::FIRST_USER, "count"));
        assert_eq!(registry.decode_as::<u32>(encoded.codec, &encoded.manifest, encoded.payload), Ok(7));
    }

    /// Cluster T34: a manifest with two owners, or a type bound twice, is an error at start.
    #[test]
    fn conflicts_are_refused_and_repeats_are_not() {
        let registry = Registry::new();
        registry.register::<u32>(Text("count")).unwrap();
        registry.register::<u32>(Text("count")).unwrap();
        assert!(matches!(registry.register::<i64>(Text("count")), Err(RegistryError::ManifestTaken { .. })));
        assert!(matches!(registry.register::<u32>(Text("other")), Err(RegistryError::TypeBound { .. })));
    }

    /// Cluster T35.
    #[test]
    fn undecodable_messages_are_named() {
        let registry = Registry::new();
        registry.register::<u32>(Text("count")).unwrap();
        let read =
            |codec, manifest: &str| registry.decode_as::<u32>(codec, manifest, Bytes::from_static(b"x")).unwrap_err();
        assert!(matches!(read(CodecId::JSON, "count"), DecodeError::UnknownCodec { .. }));
        assert!(matches!(read(CodecId::FIRST_USER, "nope"), DecodeError::UnknownManifest { .. }));
        assert!(matches!(read(CodecId::FIRST_USER, "count"), DecodeError::Malformed { .. }));
        assert!(matches!(registry.encode(&1_u8), Err(EncodeError::NotRegistered { .. })));
    }
}
