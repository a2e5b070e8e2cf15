//! The trait of elements: elements of a set, keys of a map, values of a register.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use crate::encoding::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::encoding::tag::TypeTag;

/// An immutable value with a total order and canonical bytes.
///
/// Provided for integers, `bool`, `char`, texts, byte strings, tuples, options, vectors, ordered sets and maps. Types
/// with unordered iteration and floats are left out on purpose: equal values would have unequal bytes. Source: ddata
/// Y1.
pub trait Element: Ord + Clone + Debug + Send + Sync + 'static {
    /// The type's stable name; part of the tags of types that contain it.
    const TAG: TypeTag;

    /// Appends the canonical bytes, at least one.
    fn encode(&self, out: &mut Encoder);

    /// Reads what `encode` wrote, and nothing else.
    ///
    /// # Errors
    /// [`DecodeError`]; never panics, whatever the bytes.
    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

macro_rules! integers {
    ($($type:ty: $name:literal, $wide:ident;)*) => {$(
        impl Element for $type {
            const TAG: TypeTag = TypeTag::new($name);

            fn encode(&self, out: &mut Encoder) {
                out.$wide((*self).into());
            }

            fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                inp.$wide()?.try_into().map_err(|_| DecodeError::Invalid("an integer is too large"))
            }
        }
    )*};
}
integers! {
    u8: "u8", u64; u16: "u16", u64; u32: "u32", u64; u64: "u64", u64; u128: "u128", u128;
    i8: "i8", i64; i16: "i16", i64; i32: "i32", i64; i64: "i64", i64; i128: "i128", i128;
}

impl Element for bool {
    const TAG: TypeTag = TypeTag::new("bool");

    fn encode(&self, out: &mut Encoder) {
        out.u8(u8::from(*self));
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match inp.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("a truth value is neither 0 nor 1")),
        }
    }
}

impl Element for char {
    const TAG: TypeTag = TypeTag::new("char");

    fn encode(&self, out: &mut Encoder) {
        out.u64(u32::from(*self).into());
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let number = u32::try_from(inp.u64()?).ok();
        number.and_then(Self::from_u32).ok_or(DecodeError::Invalid("not a character"))
    }
}

fn text<'a>(inp: &mut Decoder<'a>) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(inp.bytes()?).map_err(|_| DecodeError::Invalid("a text is not UTF-8"))
}

macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const TAG: TypeTag = TypeTag::new("str");

            fn encode(&self, out: &mut Encoder) {
                out.bytes(self.as_bytes());
            }

            fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                text(inp).map(Into::into)
            }
        }
    )*};
}
texts!(String, Arc<str>);

impl<T: Element> Element for Option<T> {
    const TAG: TypeTag = TypeTag::with("option", &[&T::TAG]);

    fn encode(&self, out: &mut Encoder) {
        out.u8(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        if bool::decode(inp)? { T::decode(inp).map(Some) } else { Ok(None) }
    }
}

fn encode_items<'a, T: Element>(count: usize, items: impl Iterator<Item = &'a T>, out: &mut Encoder) {
    out.u64(count as u64);
    items.for_each(|item| item.encode(out));
}

impl<T: Element> Element for Vec<T> {
    const TAG: TypeTag = TypeTag::with("list", &[&T::TAG]);

    fn encode(&self, out: &mut Encoder) {
        encode_items(self.len(), self.iter(), out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Self::new();
        for _ in 0..inp.count()? {
            items.push(T::decode(inp)?);
        }
        Ok(items)
    }
}

impl<T: Element> Element for BTreeSet<T> {
    const TAG: TypeTag = TypeTag::with("set", &[&T::TAG]);

    fn encode(&self, out: &mut Encoder) {
        encode_items(self.len(), self.iter(), out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Self::new();
        ascending(inp, |inp| {
            let item = T::decode(inp)?;
            items.insert(item.clone());
            Ok(item)
        })?;
        Ok(items)
    }
}

impl<K: Element, V: Element> Element for BTreeMap<K, V> {
    const TAG: TypeTag = TypeTag::with("map", &[&K::TAG, &V::TAG]);

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.len() as u64);
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Self::new();
        ascending(inp, |inp| {
            let key = K::decode(inp)?;
            items.insert(key.clone(), V::decode(inp)?);
            Ok(key)
        })?;
        Ok(items)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: Element),+> Element for ($($name,)+) {
            const TAG: TypeTag = TypeTag::with("tuple", &[$(&$name::TAG),+]);

            fn encode(&self, out: &mut Encoder) {
                $(self.$index.encode(out);)+
            }

            fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(($($name::decode(inp)?,)+))
            }
        }
    )*};
}
tuples! {
    (A 0); (A 0, B 1); (A 0, B 1, C 2); (A 0, B 1, C 2, D 3); (A 0, B 1, C 2, D 3, E 4); (A 0, B 1, C 2, D 3, E 4, F 5);
}
