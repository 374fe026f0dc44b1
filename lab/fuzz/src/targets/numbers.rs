//! The grammars of numbers with the pieces of any vocabulary, and with any dedicated number tokens.

use std::sync::Arc;

use ntl_core::numbers::{
    GrammarLimits, Interval, NumberGrammar, NumberPiece, NumberState, NumberValues, Softmax, SpecialValue,
    Terminator, TokenEffect, TokenFormat, TokenNotation,
};

use crate::{Outcome, Target};

pub(super) const GRAMMAR: Target = Target {
    name: "grammar",
    corpus: || {
        vec![
            b"\x0c\x06\x01\x00-\n \n1\n12\n.\n5\n,\n000\n, \nx\n".to_vec(),
            b"\x03\x02\x02\x01 -\n 7\n7\n7.\n.5\n</s>\n'\n".to_vec(),
            b"\x14\x14\x04\x03\xe2\x96\x811\n9\n0\n-0\n.\n00\n".to_vec(),
        ]
    },
    words: &[
        "1", "9", "0", "00000", ".", "-", " ", ",", "'", "_", "\n", "\u{1}", "e5", "-.", "1,234", "\u{2212}",
        "٣", "1.5.",
    ],
    read,
};

/// Walks through numbers made of the pieces in the input. Checks that the probabilities after each state add
/// up to 1.
fn read(input: &[u8]) -> Outcome {
    let Some((&[digits, decimals, flags, walk], rest)) = input.split_first_chunk() else {
        return Outcome::Refused;
    };
    let Some(mut limits) = GrammarLimits::new(digits, decimals, flags & 1 == 0) else {
        return Outcome::Refused;
    };
    if flags & 2 != 0 {
        limits = limits.with_thousands(GrammarLimits::THOUSANDS[usize::from(flags >> 6)]).unwrap();
    }
    let text = String::from_utf8_lossy(rest);
    let mut pieces: Vec<Option<NumberPiece>> =
        text.split('\n').take(300).map(|piece| Some(NumberPiece::from(piece.to_owned()))).collect();
    pieces.extend([None, Some(NumberPiece::Head)]);
    pieces.push(Some(NumberPiece::Place { digit: digits % 10, place: decimals as i8 }));
    let count = pieces.len();
    let grammar = NumberGrammar::new(pieces, vec![0]);
    let terminator = match flags >> 2 & 3 {
        0 => Terminator::Any,
        1 => Terminator::Eos,
        _ => Terminator::Texts(vec![text.chars().take(2).collect()]),
    };
    let range = Interval { low: -1000.0, high: f64::from(walk) };
    let values = if flags & 16 != 0 { NumberValues::Range(range) } else { NumberValues::All };
    let rules = grammar.rules(limits, terminator, values);
    let logits: Vec<f32> = (0..count).map(|id| ((id * 31 + usize::from(walk)) % 17) as f32 - 8.0).collect();
    let softmax = Softmax::new(&logits).unwrap();
    let mut state = NumberState::START;
    let mut closes = false;
    for step in 0..64 {
        let expansion = grammar.expand(state, &softmax, &rules, 0.0);
        let children: f64 = expansion.children.iter().map(|child| child.probability).sum();
        let closed: f64 = expansion.closed.iter().map(|closed| closed.probability).sum();
        let total = children + closed + expansion.invalid + expansion.left_open;
        assert!((total - 1.0).abs() < 1e-6, "the probabilities after a state add up to {total}");
        for closed in &expansion.closed {
            assert!(closed.value.to_f64().is_finite(), "{:?}", closed.value);
        }
        closes |= closed > 0.0;
        for child in &expansion.children {
            let effect = grammar.effect(state, child.token, &rules);
            assert_eq!(effect, TokenEffect::Continues(child.state), "token {}", child.token);
        }
        let next = expansion.children.get((usize::from(walk) + step) % expansion.children.len().max(1));
        let Some(child) = next else { break };
        state = child.state;
    }
    if closes { Outcome::Accepted } else { Outcome::Refused }
}

pub(super) const NOTATION: Target = Target {
    name: "notation",
    corpus: || {
        let digits: String = (0..10).map(|digit| format!("<{digit}>\n")).collect();
        let ieee = format!("<pad>\n<+>\n<->\n{digits}");
        let p10 = format!("{ieee}<E-1>\n<E0>\n<E1>\n<NAN>\n");
        [(b"\x00\x0a\x02\x05\x00", ieee), (b"\x09\x00\x01\x02\x03", p10), (b"\x02\x0a\x00\x04\x01", digits)]
            .map(|(header, names)| [header.as_slice(), names.as_bytes()].concat())
            .to_vec()
    },
    words: &["<+>", "<->", "<E", "<E-0>", "<10>", "<35>", "<NAN>", "<pad>", "\n", "\u{0}", "\u{ff}"],
    read: notation,
};

/// Walks through numbers of the tokens that the input lists. Checks that the probabilities after each state
/// add up to 1, and that the interval of a prefix contains all numbers that begin with it.
fn notation(input: &[u8]) -> Outcome {
    let Some((&[flags, base, exponent, digits, walk], rest)) = input.split_first_chunk() else {
        return Outcome::Refused;
    };
    let [exponent_digits, digits] = [exponent, digits].map(usize::from);
    let format = match flags & 3 {
        0 => TokenFormat::Ieee { base, exponent_digits, digits },
        1 => TokenFormat::P10 { digits, exponent_max: exponent.into() },
        _ => TokenFormat::Normalized { base, digits },
    };
    let text = String::from_utf8_lossy(rest);
    let names: Vec<String> = text.split('\n').take(300).map(str::to_owned).collect();
    let count = names.len();
    let outputs = 1 + usize::from(flags >> 2 & 1);
    let special = [("<NAN>".to_owned(), SpecialValue::Nan)];
    let special = if flags & 8 != 0 { &special[..] } else { &[] };
    let notation = TokenNotation::new(names, format, outputs);
    let notation = notation.and_then(|notation| notation.with_special_values(special));
    let notation = if flags & 16 != 0 { notation.and_then(TokenNotation::with_separator) } else { notation };
    let Ok(notation) = notation else { return Outcome::Refused };
    let tokens = notation.answer_tokens();
    let grammar = NumberGrammar::of_tokens(Arc::new(notation));
    let limits = GrammarLimits::new(1, 0, true).unwrap();
    let range = Interval { low: -1000.0, high: f64::from(walk) };
    let values = if flags & 32 != 0 { NumberValues::Range(range) } else { NumberValues::All };
    let rules = grammar.rules(limits, Terminator::Eos, values).masked(flags & 64 == 0);
    let logits: Vec<f32> = (0..count).map(|id| ((id * 31 + usize::from(walk)) % 17) as f32 - 8.0).collect();
    let softmax = Softmax::new(&logits).unwrap();
    let interval = |state| (outputs == 1).then(|| grammar.open_part(state, 0, 1.0, &rules)).flatten();
    let mut state = grammar.start();
    for step in 0..tokens {
        let expansion = grammar.expand(state, &softmax, &rules, 0.0);
        let children: f64 = expansion.children.iter().map(|child| child.probability).sum();
        let closed: f64 = expansion.closed.iter().map(|closed| closed.probability).sum();
        let total = children + closed + expansion.invalid + expansion.left_open;
        assert!((total - 1.0).abs() < 1e-6, "the probabilities after a state add up to {total}");
        if let Some(part) = interval(state) {
            let Interval { low, high } = part.interval;
            let numbers = expansion.closed.iter().filter(|closed| !closed.value.is_special());
            let values = numbers.map(|closed| closed.value.to_f64());
            let ends = expansion.children.iter().filter_map(|child| interval(child.state));
            let ends = ends.flat_map(|part| [part.interval.low, part.interval.high]);
            for value in values.chain(ends) {
                assert!(value.is_finite() && low <= value && value <= high, "{value}: {low} to {high}");
            }
            assert!(!part.is_certain || expansion.invalid < 1e-9, "{}", expansion.invalid);
        }
        let next = expansion.children.get((usize::from(walk) + step) % expansion.children.len().max(1));
        let Some(child) = next else { break };
        state = child.state;
    }
    Outcome::Accepted
}
