//! Estimates how many bytes a value has in a self-describing format, without writing any.
//!
//! Texts and byte strings count their length, names of fields as in JSON, a number as the bytes of its type, a bracket
//! or a comma as one. The sum is near the size of the encoded value and seldom equal to it, which is enough for budgets
//! of bytes.

use std::fmt::{self, Display};

use greylag_core::StorageScope;
use serde::ser::{self, Serialize, Serializer};

/// Estimates the bytes of `value`. If the value's own implementation fails, the bytes up to the failure count.
pub(crate) fn of(value: &impl Serialize) -> usize {
    // A reply token refuses to be serialized within this scope. Without it the token would count as sent, and its asker
    // would never hear that there is no answer.
    let _tokens_are_left_alone = StorageScope::enter();
    let mut size = Size(0);
    value.serialize(&mut size).ok();
    size.0
}

struct Size(usize);

impl Size {
    #[allow(clippy::unnecessary_wraps, reason = "the methods of serde return results")]
    fn add(&mut self, bytes: usize) -> Result<(), Refused> {
        self.0 = self.0.saturating_add(bytes);
        Ok(())
    }
}

/// The value's own implementation failed.
#[derive(Debug)]
struct Refused;

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value refuses to be written")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

macro_rules! numbers {
    ($($method:ident $type:ty)*) => {$(
        fn $method(self, _: $type) -> Result<(), Refused> {
            self.add(size_of::<$type>())
        }
    )*};
}

impl Serializer for &mut Size {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers! {
        serialize_i8 i8 serialize_i16 i16 serialize_i32 i32 serialize_i64 i64 serialize_i128 i128
        serialize_u8 u8 serialize_u16 u16 serialize_u32 u32 serialize_u64 u64 serialize_u128 u128
        serialize_f32 f32 serialize_f64 f64 serialize_bool bool serialize_char char
    }

    fn serialize_str(self, text: &str) -> Result<(), Refused> {
        self.add(text.len().saturating_add(2))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Refused> {
        self.add(bytes.len().saturating_add(2))
    }

    fn serialize_none(self) -> Result<(), Refused> {
        self.add(1)
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Refused> {
        self.add(1)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Refused> {
        self.add(1)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Refused> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        self.add(variant.len() + 5)?;
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Refused> {
        self.add(2)?;
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Refused> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Refused> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Refused> {
        self.add(variant.len() + 5)?;
        self.serialize_seq(None)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Refused> {
        self.serialize_seq(None)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Refused> {
        self.serialize_seq(None)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        fields: usize,
    ) -> Result<Self, Refused> {
        self.serialize_tuple_variant(name, index, variant, fields)
    }
}

macro_rules! items {
    ($($name:ident $method:ident)*) => {$(
        impl ser::$name for &mut Size {
            type Ok = ();
            type Error = Refused;

            fn $method<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
                self.add(1)?;
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Refused> {
                Ok(())
            }
        }
    )*};
}

items! {
    SerializeSeq serialize_element SerializeTuple serialize_element
    SerializeTupleStruct serialize_field SerializeTupleVariant serialize_field
}

macro_rules! fields {
    ($($name:ident)*) => {$(
        impl ser::$name for &mut Size {
            type Ok = ();
            type Error = Refused;

            fn serialize_field<T: ?Sized + Serialize>(&mut self, key: &'static str, value: &T) -> Result<(), Refused> {
                self.add(key.len() + 4)?;
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Refused> {
                Ok(())
            }
        }
    )*};
}

fields! { SerializeStruct SerializeStructVariant }

impl ser::SerializeMap for &mut Size {
    type Ok = ();
    type Error = Refused;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result<(), Refused> {
        self.add(1)?;
        key.serialize(&mut **self)
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.add(1)?;
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Refused> {
        Ok(())
    }
}
