//! An object whose fields keep the order of the JSON.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Names and values in the order of the JSON. A name may be there twice.
#[derive(Debug, Clone, PartialEq)]
pub struct InOrder<T>(pub Vec<(String, T)>);

impl<T> FromIterator<(String, T)> for InOrder<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

impl<T: Serialize> Serialize for InOrder<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrderVisitor(PhantomData))
    }
}

struct InOrderVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrderVisitor<T> {
    type Value = InOrder<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(InOrder(fields))
    }
}
