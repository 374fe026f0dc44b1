//! Creates inputs from other inputs, with some knowledge of formats: lengths, decimal numbers, JSON, words.
//!
//! Random bytes alone never get past the first bytes of a format. A mutation changes only a little of a valid
//! input.

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value, json};

/// Lengths and counts at which arithmetic tends to overflow.
const LENGTHS: [u64; 12] =
    [0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX];

const DECIMALS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "127",
    "65536",
    "2147483648",
    "4294967295",
    "1000000000",
    "9007199254740993",
    "18446744073709551615",
    "1e308",
    "-1e-308",
    "0.5",
    "1e999",
];

/// Maximum depth of JSON that [`mutate`] parses.
const DEPTH_MAX: usize = 64;

/// Mutates `input` one to eight times. `other` is another input of the corpus, and `words` are the words of
/// the format.
pub fn mutate(
    input: &[u8],
    other: &[u8],
    words: &[&str],
    bytes_max: usize,
    random: &mut impl Rng,
) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 << random.random_range(0..4) {
        match mutated_json(&bytes, words, random) {
            Some(json) if random.random_bool(0.7) => bytes = json,
            _ => mutate_bytes(&mut bytes, other, words, random),
        }
    }
    bytes.truncate(bytes_max);
    bytes
}

fn mutate_bytes(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut impl Rng) {
    let at = random.random_range(0..=bytes.len());
    let end = at + random.random_range(0..=(bytes.len() - at).min(64));
    match random.random_range(0..11) {
        0 | 1 => flip(bytes, random),
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let part = bytes[at..end].to_vec();
            let times = 1 << random.random_range(0..10);
            let repeated = part.repeat(times.min(1 + 16_384 / part.len().max(1)));
            bytes.splice(end..end, repeated);
        }
        5 => {
            let from = random.random_range(0..=other.len());
            let to = from + random.random_range(0..=(other.len() - from).min(256));
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        6 => {
            let word = words.choose(random).copied().unwrap_or_default();
            bytes.splice(at..at, word.bytes());
        }
        7 => {
            let word = words.choose(random).copied().unwrap_or_default();
            bytes.splice(at..end, word.bytes());
        }
        8 => set_length(bytes, at, random),
        9 => set_decimal(bytes, at, random),
        _ => {
            let byte = random.random();
            bytes.insert(at, byte);
        }
    }
}

fn flip(bytes: &mut [u8], random: &mut impl Rng) {
    if !bytes.is_empty() {
        let at = random.random_range(0..bytes.len());
        bytes[at] ^= 1 << random.random_range(0..8);
    }
}

/// Overwrites 1, 2, 4 or 8 bytes with a length, little-endian.
fn set_length(bytes: &mut [u8], at: usize, random: &mut impl Rng) {
    let length = LENGTHS.choose(random).copied().unwrap_or_default().to_le_bytes();
    let size = 1 << random.random_range(0..4);
    for (place, byte) in bytes.iter_mut().skip(at).zip(length.into_iter().take(size)) {
        *place = byte;
    }
}

/// Replaces the next decimal number.
fn set_decimal(bytes: &mut Vec<u8>, at: usize, random: &mut impl Rng) {
    let Some(from) = (at..bytes.len()).find(|&index| bytes[index].is_ascii_digit()) else { return };
    let length = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let decimal = DECIMALS.choose(random).copied().unwrap_or_default();
    bytes.splice(from..from + length, decimal.bytes());
}

/// Returns `bytes` with one part of its JSON changed, or `None` if there is no JSON. A first line without
/// JSON is kept.
fn mutated_json(bytes: &[u8], words: &[&str], random: &mut impl Rng) -> Option<Vec<u8>> {
    let start = bytes.iter().position(|&byte| byte == b'{' || byte == b'[')?;
    let mut json = serde_json::from_slice(&bytes[start..]).ok()?;
    change(&mut json, words, DEPTH_MAX, random);
    let mut changed = bytes[..start].to_vec();
    serde_json::to_writer(&mut changed, &json).ok()?;
    Some(changed)
}

/// Changes one node, chosen by a random walk from the root.
fn change(json: &mut Value, words: &[&str], depth_left: usize, random: &mut impl Rng) {
    let below = depth_left > 0 && random.random_bool(0.8);
    match json {
        Value::Object(fields) if below && !fields.is_empty() => {
            let index = random.random_range(0..fields.len());
            if let Some((_, value)) = fields.iter_mut().nth(index) {
                change(value, words, depth_left - 1, random);
            }
        }
        Value::Array(items) if below && !items.is_empty() => {
            let index = random.random_range(0..items.len());
            change(&mut items[index], words, depth_left - 1, random);
        }
        Value::Object(fields) => change_object(fields, words, random),
        Value::Array(items) => change_array(items, words, random),
        other => *other = value(words, random),
    }
}

fn change_object(fields: &mut Map<String, Value>, words: &[&str], random: &mut impl Rng) {
    let index = random.random_range(0..fields.len().max(1));
    let key = fields.keys().nth(index).cloned();
    let name = words.choose(random).copied().unwrap_or_default().to_owned();
    match (random.random_range(0..4), key) {
        (0, Some(key)) => drop(fields.remove(&key)),
        (1, Some(key)) => {
            if let Some(moved) = fields.remove(&key) {
                fields.insert(name, moved);
            }
        }
        _ => drop(fields.insert(name, value(words, random))),
    }
}

fn change_array(items: &mut Vec<Value>, words: &[&str], random: &mut impl Rng) {
    let at = random.random_range(0..=items.len());
    match random.random_range(0..4) {
        0 => items.truncate(at),
        1 => items.insert(at, value(words, random)),
        2 if !items.is_empty() => {
            let item = items[at.min(items.len() - 1)].clone();
            let times = 1 << random.random_range(0..8);
            items.splice(at..at, std::iter::repeat_n(item, times));
        }
        _ => items.reverse(),
    }
}

/// Returns a value of any type.
fn value(words: &[&str], random: &mut impl Rng) -> Value {
    let word = words.choose(random).copied().unwrap_or_default();
    match random.random_range(0..10) {
        0 => Value::Null,
        1 => json!(random.random::<bool>()),
        2 => json!({}),
        3 => json!([]),
        4 => json!([[word], { word: word }]),
        5 => json!(word.repeat(1 << random.random_range(0..8))),
        6 => json!(random.random_range(-3..300)),
        _ => {
            let decimal = DECIMALS.choose(random).copied().unwrap_or_default();
            serde_json::from_str(decimal).unwrap_or_else(|_| json!(word))
        }
    }
}
