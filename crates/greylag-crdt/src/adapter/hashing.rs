//! A serializer that hashes, and for which maps and sequences have no order.
//!
//! Every node is a hash of 128 bits: a leaf of its kind and bytes, a struct or tuple of its children in order, a map or
//! sequence of the wrapping sum of its children. Source: ddata A8.

use std::fmt::{self, Display};

use serde::ser::{self, Serialize, Serializer};

use crate::encoding::hash::Digest;

/// The digest of a value, whatever the order of its maps and sequences.
pub(super) fn digest<T: Serialize + ?Sized>(value: &T) -> Digest {
    value.serialize(Hashing).unwrap_or_default()
}

/// The error of a type that cannot be serialized.
#[derive(Debug)]
pub(super) struct Unhashable;

impl Display for Unhashable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be serialized")
    }
}

impl std::error::Error for Unhashable {}

impl ser::Error for Unhashable {
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

struct Hashing;

fn leaf(kind: u8, bytes: &[u8]) -> Result<Digest, Unhashable> {
    Ok(Digest::of(&[&[kind], bytes].concat()))
}

fn hash<T: Serialize + ?Sized>(value: &T) -> Result<[u8; 16], Unhashable> {
    value.serialize(Hashing).map(|digest| digest.0.to_be_bytes())
}

/// Children in order.
struct InOrder {
    bytes: Vec<u8>,
}

/// Children in no order.
struct Sum {
    kind: u8,
    sum: Digest,
    count: u64,
    key: [u8; 16],
}

fn in_order(kind: u8, variant: u32) -> InOrder {
    InOrder { bytes: [&[kind][..], &variant.to_be_bytes()].concat() }
}

fn sum(kind: u8) -> Sum {
    Sum { kind, sum: Digest::default(), count: 0, key: [0; 16] }
}

impl InOrder {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unhashable> {
        self.bytes.extend_from_slice(&hash(value)?);
        Ok(())
    }

    fn finish(self) -> Result<Digest, Unhashable> {
        Ok(Digest::of(&self.bytes))
    }
}

impl Sum {
    fn push(&mut self, child: Digest) {
        self.sum = self.sum.plus(child);
        self.count += 1;
    }

    fn finish(self) -> Result<Digest, Unhashable> {
        leaf(self.kind, &[self.sum.0.to_be_bytes().as_slice(), &self.count.to_be_bytes()].concat())
    }
}

macro_rules! leaves {
    ($($method:ident: $type:ty, $kind:literal;)*) => {$(
        fn $method(self, value: $type) -> Result<Digest, Unhashable> {
            leaf($kind, &value.to_be_bytes())
        }
    )*};
}

macro_rules! variants {
    ($($method:ident: $kind:literal;)*) => {$(
        fn $method(self, _: &'static str, index: u32, _: &'static str, _: usize) -> Result<InOrder, Unhashable> {
            Ok(in_order($kind, index))
        }
    )*};
}

impl Serializer for Hashing {
    type Ok = Digest;
    type Error = Unhashable;
    type SerializeSeq = Sum;
    type SerializeTuple = InOrder;
    type SerializeTupleStruct = InOrder;
    type SerializeTupleVariant = InOrder;
    type SerializeMap = Sum;
    type SerializeStruct = InOrder;
    type SerializeStructVariant = InOrder;

    leaves! {
        serialize_i8: i8, 1; serialize_i16: i16, 2; serialize_i32: i32, 3; serialize_i64: i64, 4;
        serialize_i128: i128, 5; serialize_u8: u8, 6; serialize_u16: u16, 7; serialize_u32: u32, 8;
        serialize_u64: u64, 9; serialize_u128: u128, 10; serialize_f32: f32, 11; serialize_f64: f64, 12;
    }

    fn serialize_bool(self, value: bool) -> Result<Digest, Unhashable> {
        leaf(13, &[value.into()])
    }

    fn serialize_char(self, value: char) -> Result<Digest, Unhashable> {
        leaf(14, &u32::from(value).to_be_bytes())
    }

    fn serialize_str(self, value: &str) -> Result<Digest, Unhashable> {
        leaf(15, value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Digest, Unhashable> {
        leaf(16, value)
    }

    fn serialize_none(self) -> Result<Digest, Unhashable> {
        leaf(17, &[])
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Digest, Unhashable> {
        leaf(18, &hash(value)?)
    }

    fn serialize_unit(self) -> Result<Digest, Unhashable> {
        leaf(19, &[])
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Digest, Unhashable> {
        leaf(20, &[])
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<Digest, Unhashable> {
        in_order(21, index).finish()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Digest, Unhashable> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<Digest, Unhashable> {
        let mut children = in_order(22, index);
        children.push(value)?;
        children.finish()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Sum, Unhashable> {
        Ok(sum(23))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Sum, Unhashable> {
        Ok(sum(24))
    }

    fn serialize_tuple(self, _: usize) -> Result<InOrder, Unhashable> {
        Ok(in_order(25, 0))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<InOrder, Unhashable> {
        Ok(in_order(26, 0))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<InOrder, Unhashable> {
        Ok(in_order(28, 0))
    }

    variants! { serialize_tuple_variant: 27; serialize_struct_variant: 29; }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl ser::SerializeSeq for Sum {
    type Ok = Digest;
    type Error = Unhashable;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unhashable> {
        self.push(value.serialize(Hashing)?);
        Ok(())
    }

    fn end(self) -> Result<Digest, Unhashable> {
        self.finish()
    }
}

impl ser::SerializeMap for Sum {
    type Ok = Digest;
    type Error = Unhashable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unhashable> {
        self.key = hash(key)?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unhashable> {
        let pair = [self.key, hash(value)?].concat();
        self.push(Digest::of(&pair));
        Ok(())
    }

    fn end(self) -> Result<Digest, Unhashable> {
        self.finish()
    }
}

macro_rules! in_order {
    ($($trait:ident::$method:ident($($name:ident)?);)*) => {$(
        impl ser::$trait for InOrder {
            type Ok = Digest;
            type Error = Unhashable;

            fn $method<T: Serialize + ?Sized>(&mut self, $($name: &'static str,)? value: &T) -> Result<(), Unhashable> {
                $(let _ = $name;)?
                self.push(value)
            }

            fn end(self) -> Result<Digest, Unhashable> {
                self.finish()
            }
        }
    )*};
}
in_order! {
    SerializeTuple::serialize_element();
    SerializeTupleStruct::serialize_field();
    SerializeTupleVariant::serialize_field();
    SerializeStruct::serialize_field(name);
    SerializeStructVariant::serialize_field(name);
}
