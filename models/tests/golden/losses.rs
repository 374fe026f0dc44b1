//! Compares cross entropy and the paper's Number Token Losses with the results of the paper's classes.

use ntl_core::contract::NumberEncoding;
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens, PlacedDigit, Position};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

use crate::stored::{DECODERS, Deviations, Example, Stored, T5, assert_same_tokens, flat, in_order, mean};
use crate::support::{Fixtures, over_fixtures};

const CDF: NumberLossKind = NumberLossKind::WasCdf;

/// Names in the golden files. The rank distance depends on the order in which the reference's sort left
/// tokens of equal value.
const PAPER_LOSSES: [(&str, NumberLossKind); 5] = [
    ("ntl_mse", NumberLossKind::Mse),
    ("ntl_mae", NumberLossKind::Mae),
    ("ntl_huber", NumberLossKind::Huber),
    ("ntl_was_absdiff", NumberLossKind::Was),
    ("ntl_was_cdf_ordered", CDF),
];

/// Returns the magnitude of the reference's single-precision sums: errors of some digits, or as many shares
/// as there are tokens.
fn unit(kind: NumberLossKind, tokens: &NumberTokens) -> f64 {
    if kind == CDF { tokens.values().count() as f64 } else { 10.0 }
}

fn loss(example: &Example, kind: NumberLossKind, tokens: &NumberTokens) -> f64 {
    mean(&example.losses(NumberLoss::of(kind), tokens))
}
over_fixtures! {
    the_paper_s_losses_match_the_reference,
    cross_entropy_expectations_and_masses_match_the_reference,
    number_tokens_read_from_the_checkpoints_match_the_reference,
}

fn the_paper_s_losses_match_the_reference(fixtures: Fixtures) {
    let mut deviations = Deviations::default();
    for stored in Stored::all(fixtures, &T5) {
        let tokens = in_order(stored.paper_tokens().0, &stored.original_order());
        for example in stored.examples() {
            // The golden values exclude padding, since this project never counts it.
            let without_padding = &example.golden["paper_losses_padding_removed"];
            let golden =
                if without_padding.is_null() { &example.golden["paper_losses"] } else { without_padding };
            for (name, kind) in PAPER_LOSSES {
                let got = loss(&example, kind, &tokens);
                match golden[name].as_f64() {
                    Some(want) => deviations.compare((name, &example.id), got, want, unit(kind, &tokens)),
                    // Without a number label, the reference is NaN and this project returns 0.
                    None => assert!(got.abs() <= 0.0 && example.id.ends_with("no_number"), "{}", example.id),
                }
            }
        }
    }
    deviations.check();
}

fn cross_entropy_expectations_and_masses_match_the_reference(fixtures: Fixtures) {
    let mut deviations = Deviations::default();
    let all = [&T5[..], &DECODERS, &["t5-xval"]].concat();
    for stored in Stored::all(fixtures, &all) {
        let has_numbers = stored.golden["number_tokens"].is_array();
        let tokens = if has_numbers { stored.paper_tokens().0 } else { NumberTokens::default() };
        for example in stored.examples() {
            let golden = &example.golden;
            let losses = example.cross_entropies(&tokens);
            let want = golden["ce_loss"].as_f64().unwrap();
            deviations.compare(("ce", &example.id), mean(&losses), want, example.logit_max());
            // The batches of decoder-only checkpoints have no log-probabilities.
            let logprobs = Some(&golden["token_logprobs"]).filter(|logprobs| logprobs.is_array());
            for (got, want) in losses.iter().zip(logprobs.map(flat).unwrap_or_default()) {
                assert_eq!(got.is_some(), want.is_some(), "{}: padding", example.id);
                if let (Some(got), Some(want)) = (got, want) {
                    // The golden values are in double precision.
                    deviations.compare(("logprob", &example.id), -got, want, 1e-3);
                }
            }
            if has_numbers {
                compare_numbers(&mut deviations, &example, &tokens);
            }
        }
    }
    deviations.check();
}

fn compare_numbers(deviations: &mut Deviations, example: &Example, tokens: &NumberTokens) {
    let golden = |name: &str| flat(&example.golden[name]);
    let wanted = golden("yhat").into_iter().zip(golden("number_mass")).zip(golden("y"));
    for ((label, logits), ((expectation, mass), value)) in example.positions().zip(wanted) {
        let Some(label) = label else { continue };
        let position = Position::new(logits, tokens).unwrap();
        let yhat = position.expectation().unwrap();
        let what = &example.id;
        deviations.compare(("expectation", what), yhat, expectation.unwrap(), 10.0);
        deviations.compare(("mass", what), position.number_mass(), mass.unwrap(), 1.0);
        assert_eq!(tokens.value(label), value, "{}", example.id);
    }
}

#[test]
fn total_losses_match_the_reference_models() {
    let mut deviations = Deviations::default();
    for name in Fixtures::Reference.only(&["t5-ntl-was", "t5-ntl-mse"]) {
        let kind = if name == "t5-ntl-was" { NumberLossKind::Was } else { NumberLossKind::Mse };
        let stored = Stored::open(Fixtures::Reference, name);
        let (tokens, _) = stored.paper_tokens();
        for example in stored.examples() {
            let ce = mean(&example.cross_entropies(&tokens));
            let ntl = loss(&example, kind, &tokens);
            let golden = |name: &str| example.golden[name].as_f64();
            let unit = example.logit_max();
            deviations.compare(("token_loss", &example.id), ce, golden("token_loss").unwrap(), unit);
            // The reference is NaN without a number label.
            if let (Some(number), Some(total)) = (golden("number_loss"), golden("loss")) {
                deviations.compare(("number_loss", &example.id), ntl, number, 10.0);
                deviations.compare(("loss", &example.id), ce + 0.3 * ntl, total, unit);
            }
        }
    }
    deviations.check();
}

/// If padding gets these labels, this project computes the same as the reference, which counts padding.
#[test]
fn the_reference_counts_padding_as_a_digit_and_ours_does_not() {
    for stored in Stored::all(Fixtures::Reference, &["t5-rt", "t5-rt-ntl"]) {
        let (tokens, _) = stored.paper_tokens();
        let alias = stored.golden["minus100_alias"]["id"].as_u64().unwrap() as u32;
        let mut batch = stored.examples().pop().unwrap();
        let (with, without) =
            (batch.golden["paper_losses"].clone(), batch.golden["paper_losses_padding_removed"].clone());
        let mut deviations = Deviations::default();
        for (name, kind) in &PAPER_LOSSES[..3] {
            let want = without[name].as_f64().unwrap();
            deviations.compare((name, &batch.id), loss(&batch, *kind, &tokens), want, 10.0);
        }
        batch.rows.iter_mut().flatten().for_each(|(label, _)| *label = label.or(Some(alias)));
        for (name, kind) in &PAPER_LOSSES[..3] {
            let with = with[name].as_f64().unwrap();
            let without = without[name].as_f64().unwrap();
            assert!((with - without).abs() > 0.1, "padding must have a visible effect");
            deviations.compare((name, &batch.id), loss(&batch, *kind, &tokens), with, 10.0);
        }
        deviations.check();
    }
}

/// The reference's order is the result of an unstable sort; this project orders by id.
#[test]
fn the_order_of_equal_values_changes_the_rank_distance_by_some_hundredths() {
    for stored in Stored::all(Fixtures::Reference, &["t5-ce", "t5-rt"]) {
        let (tokens, places) = stored.paper_tokens();
        let ours = tokens.clone().ranked_by(|id, _| places[&id]);
        let original = in_order(tokens, &stored.original_order());
        let mut farthest = 0.0_f64;
        for example in stored.examples() {
            let [ours, original] = [&ours, &original].map(|tokens| loss(&example, CDF, tokens));
            println!("{}: {original} in the reference's order, {ours} in ours", example.id);
            farthest = farthest.max((ours - original).abs() / original.max(1e-9));
        }
        assert!((0.001..0.1).contains(&farthest), "{}: {farthest}", stored.name);
    }
}

fn number_tokens_read_from_the_checkpoints_match_the_reference(fixtures: Fixtures) {
    for stored in Stored::all(fixtures, &T5) {
        let (want, places) = stored.paper_tokens();
        let pieces = stored.golden["number_tokens"].as_array().unwrap();
        if stored.name.starts_with("t5-rt") {
            for piece in pieces {
                let id = piece[0].as_u64().unwrap() as u32;
                let digit = PlacedDigit::parse(piece[1].as_str().unwrap()).unwrap();
                assert_eq!(want.value(id), Some(f64::from(digit.digit)), "{piece}");
                assert!((digit.value() - places[&id]).abs() <= 1e-6 * places[&id], "{piece}");
            }
            continue;
        }
        let files = CheckpointFiles::folder(&fixtures.folder(stored.name)).unwrap();
        let tokenizer = Tokenizer::open(&files).unwrap();
        let values = (0..tokenizer.len() as u32).filter_map(|id| Some((id, tokenizer.number_value(id)?)));
        assert_same_tokens(&NumberTokens::new(values), &want, stored.name);
        let digits = tokenizer.number_encoding() == NumberEncoding::Digits;
        assert_eq!(digits, stored.name.starts_with("t5-ntl"), "{}", stored.name);
    }
}
