//! Reads structs from JSON objects only. Serde also reads a list as the fields of a struct in order, and an
//! enum with a tag from a list that begins with the tag.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};

/// A type whose derived code reads any form that serde accepts.
pub(crate) trait DerivedRead<'de>: Sized {
    fn read<M: MapAccess<'de>>(fields: MapAccessDeserializer<M>) -> Result<Self, M::Error>;
}

pub(crate) struct ObjectVisitor<T>(pub(crate) PhantomData<T>);

impl<'de, T: DerivedRead<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, fields: M) -> Result<T, M::Error> {
        T::read(MapAccessDeserializer::new(fields))
    }
}

/// Implements serde's traits for types whose derived code is `#[serde(remote = "Self")]`, so that an object
/// is the only JSON that they are read from. Each type inside a request needs this, except those with a
/// flattened field, which serde reads from objects only.
macro_rules! read_from_objects {
    ($($name:ident),+ $(,)?) => {$(
        impl<'de> $crate::object::DerivedRead<'de> for $name {
            fn read<M: serde::de::MapAccess<'de>>(
                fields: serde::de::value::MapAccessDeserializer<M>,
            ) -> Result<Self, M::Error> {
                $name::deserialize(fields)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map($crate::object::ObjectVisitor::<Self>(std::marker::PhantomData))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }
    )+};
}

pub(crate) use read_from_objects;
