//! Reads integers as JSON Schema defines them: `11.0` and `1e3` are integers, and some clients send them.
//!
//! In: a number. Out: an integer, or the error that its type reports for other numbers. Integer fields have
//! the attribute `#[serde(default, deserialize_with = "whole")]`, or their struct applies it to their types.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, Visitor};

/// 2^53: an `f64` represents every integer up to this one exactly.
const EXACT_MAX: f64 = (1_u64 << 53) as f64;

/// Reads an integer, an optional integer, or a list of either.
pub(crate) fn whole<'de, T: Whole<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::read(deserializer)
}

/// A type that [`whole`] can read.
pub(crate) trait Whole<'de>: Sized {
    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl<'de> Whole<'de> for $integer {
            fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Integer(stringify!($integer), PhantomData))
            }
        }
    )*};
}

integers!(i64, u32, u64);

impl<'de, T: Whole<'de>> Whole<'de> for Option<T> {
    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Read<T>>::deserialize(deserializer)?.map(|Read(value)| value))
    }
}

impl<'de, T: Whole<'de>> Whole<'de> for Vec<T> {
    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Read<T>>::deserialize(deserializer)?.into_iter().map(|Read(value)| value).collect())
    }
}

/// Wraps a type so that serde reads it with [`Whole::read`].
struct Read<T>(T);

impl<'de, T: Whole<'de>> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(Self)
    }
}

/// Visitor of an integer type of this name, which converts floats without a fraction to integers first.
struct Integer<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Integer<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        T::deserialize(value.into_deserializer())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        T::deserialize(value.into_deserializer())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        if value.fract().abs() > 0.0 || value.abs() > EXACT_MAX {
            return T::deserialize(value.into_deserializer());
        }
        T::deserialize((value as i64).into_deserializer())
    }
}

#[cfg(test)]
mod tests {
    use crate::{CompletionRequest, Prompts};

    fn read(json: &str) -> Result<CompletionRequest, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_without_a_fraction_is_an_integer_however_it_is_written() {
        let request = read(
            r#"{"max_tokens": 11.0, "n": 1e1, "seed": -3.0, "top_k": -0.0, "best_of": null,
                "stop_token_ids": [1, 2.0], "prompt": [[3.0], [4, 5]]}"#,
        )
        .unwrap();
        assert_eq!((request.max_tokens, request.n, request.seed), (Some(11), Some(10), Some(-3)));
        assert_eq!((request.top_k, request.best_of), (Some(0), None));
        assert_eq!(request.stop_token_ids, Some(vec![1, 2]));
        assert_eq!(request.prompt, Some(Prompts::IdLists(vec![vec![3], vec![4, 5]])));
        assert_eq!(read(r#"{"prompt": [7.0]}"#).unwrap().prompt, Some(Prompts::Ids(vec![7])));
        assert_eq!(read("{}").unwrap(), CompletionRequest::default());
    }

    #[test]
    fn integers_are_read_exactly_and_other_values_are_rejected() {
        assert_eq!(read(r#"{"seed": 9223372036854775807}"#).unwrap().seed, Some(i64::MAX));
        assert_eq!(read(r#"{"max_tokens": 18446744073709551615}"#).unwrap().max_tokens, Some(u64::MAX));
        for wrong in ["1.5", "-1", "-1.0", "1e300", "\"1\"", "true", "[1]", "{}"] {
            let error = read(&format!(r#"{{"n": {wrong}}}"#)).unwrap_err();
            assert!(error.contains("expected u64"), "{wrong}: {error}");
        }
        for wrong in ["[1.5]", "[-1]", "[4294967296.0]", "[1, \"a\"]"] {
            assert!(read(&format!(r#"{{"prompt": {wrong}}}"#)).is_err(), "{wrong}");
        }
    }
}
