//! Compares the losses with the outputs of ntloss 0.3.2: `ntloss.json`.
//!
//! `loss_weights` and `NumberLevelLoss(float_level=True)` are not supported, and therefore not compared.

use ntl_core::losses::{
    NumberLoss, NumberLossKind, NumberTokens, Position, ReducedLoss, Reduction, level_losses, reduce,
};
use ntl_core::numbers::python::parse_float;
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::stored::{DECODERS, Deviations, Example, Stored, T5, assert_same_tokens, flat, read};
use crate::support::{Fixtures, over_fixtures};

/// A class of ntloss with its options, parsed from a name such as `NTLoss(digit_level=True,reweigh=True)`.
struct Original<'a> {
    class: &'a str,
    options: Vec<(&'a str, &'a str)>,
    is_weighted: bool,
}

impl<'a> Original<'a> {
    fn parse(name: &'a str) -> Self {
        let (class, rest) = name.split_once('(').unwrap();
        let (options, rest) = rest.split_once(')').unwrap();
        let options = options.split(',').map(|option| option.split_once('=').unwrap()).collect();
        Self { class, options, is_weighted: rest.contains("loss_weights") }
    }

    fn option(&self, name: &str) -> &'a str {
        self.options.iter().find(|(option, _)| *option == name).map_or("None", |(_, value)| value)
    }

    fn is(&self, name: &str) -> bool {
        self.option(name) == "True"
    }

    fn kind(&self) -> NumberLossKind {
        match (self.class, self.option("loss_function"), self.option("squash_factor")) {
            ("NTLoss", _, "None") => NumberLossKind::Was,
            ("NTLoss", _, factor) => NumberLossKind::SquashedWas(factor.parse().unwrap()),
            (_, "mse_loss", _) => NumberLossKind::Mse,
            (_, "l1_loss", _) => NumberLossKind::Mae,
            // With its default beta of 1, torch's smooth_l1_loss equals the Huber loss.
            (_, "huber_loss" | "smooth_l1_loss", _) => NumberLossKind::Huber,
            (class, function, _) => panic!("{class} with {function} is unknown"),
        }
    }

    /// Returns the magnitude of the single-precision sums: errors of some digits or, with `reweigh`, the
    /// largest loss times the rounding error of a sum over the whole vocabulary.
    fn unit(&self, tokens: &NumberTokens) -> f64 {
        let span = tokens.values().map(|(_, value)| value.abs()).fold(0.0, f64::max);
        match (self.is("reweigh"), self.option("loss_function")) {
            (false, _) => 10.0,
            (true, "mse_loss") => 10.0 + 10.0 * span * span,
            (true, _) => 10.0 + 10.0 * span,
        }
    }

    fn is_served(&self) -> bool {
        match self.class {
            "NumberLevelLoss" => !self.is("float_level"),
            // The same results by another way.
            "NumberLevelLossLooped" => false,
            _ => !self.is_weighted,
        }
    }

    fn losses(&self, example: &Example, vocabularies: &Vocabularies) -> Vec<Option<f64>> {
        if self.class == "NumberLevelLoss" {
            return self.level_losses(example, &vocabularies.digits);
        }
        let tokens = vocabularies.of(self.is("digit_level"));
        example.losses(NumberLoss { kind: self.kind(), reweigh: self.is("reweigh") }, tokens)
    }
}

impl Original<'_> {
    /// Returns the losses of whole numbers, which do not continue from one target to the next.
    fn level_losses(&self, example: &Example, digits: &NumberTokens) -> Vec<Option<f64>> {
        let mut losses = Vec::new();
        for row in &example.rows {
            let digit = |(label, logits): &(Option<u32>, Vec<f32>)| {
                Position::new(logits, digits).unwrap().digit((*label)?)
            };
            let scores: Vec<_> = row.iter().map(digit).collect();
            losses.extend(level_losses(&scores, self.is("reweigh")));
        }
        losses
    }
}

/// The number tokens of ntloss for a checkpoint.
struct Vocabularies {
    digits: NumberTokens,
    floats: NumberTokens,
}

impl Vocabularies {
    fn open(fixtures: Fixtures, stored: &Stored, info: &Value) -> Self {
        let files = CheckpointFiles::folder(&fixtures.folder(stored.name)).unwrap();
        // The tokenizer of RT checkpoints starts with the pieces of the plain tokenizer.
        let files = match stored.name.starts_with("t5-rt") {
            true => CheckpointFiles::folder(&fixtures.folder("t5-v11")).unwrap(),
            false => files,
        };
        let tokenizer = Tokenizer::open(&files).unwrap();
        let tokens = |value: fn(&str) -> Option<f64>| {
            let value = |id| Some((id, value(tokenizer.token(id)?)?));
            NumberTokens::new((0..tokenizer.len() as u32).filter_map(value))
        };
        // `digit_level=True`: the ten ASCII digits. `False`: every piece that Python's `float` accepts,
        // including the space mark.
        let digit = |piece: &str| match piece.as_bytes() {
            [digit @ b'0'..=b'9'] => Some(f64::from(digit - b'0')),
            _ => None,
        };
        let golden = |name: &str| {
            let pair = |pair: &Value| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap());
            NumberTokens::new(info[name].as_array().unwrap().iter().map(pair))
        };
        let digits = tokens(digit).with_digits(|_| true);
        let floats = tokens(parse_float);
        assert_same_tokens(&digits, &golden("number_tokens_digit_level"), stored.name);
        assert_same_tokens(&floats, &golden("number_tokens_all"), stored.name);
        Self { digits, floats }
    }

    fn of(&self, digit_level: bool) -> &NumberTokens {
        if digit_level { &self.digits } else { &self.floats }
    }
}

fn compare(
    deviations: &mut Deviations,
    original: &Original<'_>,
    losses: &[Option<f64>],
    (golden, what, unit): (&Value, &str, f64),
) {
    for (name, reduction) in [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)] {
        let Some(want) = golden.get(name) else { continue };
        let got = match reduce(losses, reduction) {
            ReducedLoss::All(loss) => vec![loss],
            ReducedLoss::Each(losses) => losses,
        };
        let want = flat(want);
        assert_eq!(got.len(), want.len(), "{what}");
        for (got, want) in got.into_iter().zip(want) {
            let terms = if reduction == Reduction::Sum { losses.len() as f64 } else { 1.0 };
            deviations.compare((original.class, &format!("{what} {name}")), got, want.unwrap(), unit * terms);
        }
    }
}
over_fixtures! {
    every_supported_loss_matches_ntloss,
}

fn every_supported_loss_matches_ntloss(fixtures: Fixtures) {
    let mut deviations = Deviations::default();
    let mut compared = 0;
    for stored in Stored::all(fixtures, &[&T5[..], &DECODERS].concat()) {
        let golden = read(fixtures, stored.name, "ntloss.json");
        let vocabularies = Vocabularies::open(fixtures, &stored, &golden["info"]);
        for example in stored.examples() {
            let id = example.id.rsplit(' ').next().unwrap();
            let golden = if id == "batch" { &golden["batch"] } else { &golden["cases"][id] };
            for (name, golden) in golden.as_object().unwrap() {
                let original = Original::parse(name);
                let what = format!("{} {name}", example.id);
                if original.class == "predict_numbers" {
                    compare_predictions(
                        &mut deviations,
                        &example,
                        vocabularies.of(original.is("digit_level")),
                        golden,
                    );
                } else if original.is_served() {
                    let losses = original.losses(&example, &vocabularies);
                    let unit = original.unit(vocabularies.of(original.is("digit_level")));
                    compare(&mut deviations, &original, &losses, (golden, &what, unit));
                }
                compared += usize::from(original.is_served());
            }
        }
    }
    println!("{compared} comparisons with an option of ntloss");
    deviations.check();
}

fn compare_predictions(
    deviations: &mut Deviations,
    example: &Example,
    tokens: &NumberTokens,
    golden: &Value,
) {
    let wanted = flat(&golden["yhat"]).into_iter().zip(flat(&golden["nt_mass"]));
    for ((_, logits), (expectation, mass)) in example.positions().zip(wanted) {
        let position = Position::new(logits, tokens).unwrap();
        let yhat = position.expectation().unwrap();
        let what = &example.id;
        deviations.compare(("expectation", what), yhat, expectation.unwrap(), 10.0);
        deviations.compare(("mass", what), position.number_mass(), mass.unwrap(), 1.0);
    }
}
