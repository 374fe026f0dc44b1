//! The grammar of numbers with the pieces of any vocabulary.

use ntl_core::numbers::{
    GrammarLimits, Interval, NumberGrammar, NumberPiece, NumberState, NumberValues, Softmax, Terminator,
    TokenEffect,
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
