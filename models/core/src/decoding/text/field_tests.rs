//! Numbers of structured texts under a toy guide: three numbers, each followed by a space.

use std::sync::Arc;

use super::super::tests::{PIECES, model, run};
use crate::contract::{Event, FieldOutcome, FieldsJob, NumberOutcome, Request, TextJob};
use crate::guide::{FieldEffect, FieldValues, Guide, GuideError, GuideState, SchemaField};
use crate::numbers::{Decimal, Estimation, GrammarLimits, Multiples, NumberSet, Objective, SchemaNumbers};
use crate::sampling::SamplingParams;

const NUMBERS: usize = 3;

#[derive(Debug, Clone, Default)]
struct ThreeNumbers {
    written: String,
    number_ends: bool,
}

impl Guide for ThreeNumbers {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(self.clone())
    }
}

impl ThreeNumbers {
    fn is_inside(&self) -> bool {
        self.written.ends_with(|last: char| last.is_ascii_digit())
    }

    fn allows(&self, piece: &str) -> bool {
        match piece {
            "" | "x" | "-" | "." => false,
            " " => self.is_inside(),
            _ => !self.number_ends,
        }
    }
}

impl GuideState for ThreeNumbers {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        for (piece, logit) in PIECES.iter().zip(logits) {
            if !self.allows(piece) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        self.written += PIECES[id as usize];
        self.number_ends = false;
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.written.matches(' ').count() == NUMBERS
    }

    fn field_effect(&self, id: u32) -> FieldEffect {
        let one = Decimal::shortest_f64(1.0).unwrap().canonical();
        let integers = NumberSet::Bounded { low: None, high: None, multiples: Multiples::common(&[one]) };
        match PIECES[id as usize] {
            "" | " " => FieldEffect::None,
            _ if self.is_inside() => FieldEffect::Continues,
            _ => {
                let path = format!("$[{}]", self.written.matches(' ').count());
                let numbers = Arc::new(SchemaNumbers::new(vec![integers]).unwrap());
                let field = SchemaField {
                    call: None,
                    path,
                    values: FieldValues::Numbers(numbers),
                    may_follow_space: false,
                };
                FieldEffect::Begins { field, has_space: false }
            }
        }
    }

    fn spell(&mut self, text: &str) -> Option<Vec<u32>> {
        let id = |digit: char| PIECES.iter().position(|piece| *piece == digit.to_string());
        text.chars().map(|digit| id(digit).map(|id| id as u32)).collect()
    }

    fn end_number(&mut self) {
        self.number_ends = true;
    }
}

/// Digits and the end of a number, with weights that depend on the whole text.
fn varied(text: &str) -> Vec<(&'static str, f64)> {
    let sum: usize = text.bytes().zip(3..).map(|(byte, place)| usize::from(byte) * place).sum();
    let weight = |index: usize| ((sum * 31 + index * 17) % 23 + 1) as f64;
    let digits = PIECES[2..12].iter().enumerate().map(|(index, digit)| (*digit, weight(index)));
    let all: Vec<(&str, f64)> = digits.chain([("12", 5.0), (" ", 200.0), ("x", 3.0)]).collect();
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    all.into_iter().map(|(piece, weight)| (piece, weight / total)).collect()
}

fn job(n: u32, nodes_max: usize) -> TextJob {
    let fields = FieldsJob {
        limits: GrammarLimits::new(3, 0, false).unwrap(),
        tolerance: 1e-9,
        nodes_max,
        precision: None,
        time_max: None,
        objective: Objective::Median,
        estimation: Estimation::default(),
        mass_min: 0.0,
        decimals: 0,
    };
    let sampling = SamplingParams { seed: 1, ..SamplingParams::PLAIN };
    let guide: Option<Arc<dyn Guide>> = Some(Arc::new(ThreeNumbers::default()));
    TextJob { n, best_of: n, max_tokens: 40, sampling, guide, fields: Some(fields), ..TextJob::default() }
}

/// The events without the steps, which depend on the width.
fn events(job: TextJob, rows_max: usize) -> Vec<Event> {
    let mut events = run(model(varied), Request::Text(job), rows_max).unwrap();
    for event in &mut events {
        if let Event::Field(FieldOutcome { outcome, .. }) = event {
            *outcome = NumberOutcome { forward_passes: 0, ..outcome.clone() };
        }
    }
    // Texts at different positions send their events in another order.
    events.sort_by_key(|event| match event {
        Event::Text { choice, .. } | Event::Finished { choice, .. } => *choice,
        Event::Field(number) => number.choice,
        _ => 0,
    });
    events
}

fn numbers(events: &[Event], choice: u32) -> Vec<&FieldOutcome> {
    let all = events.iter().filter_map(|event| match event {
        Event::Field(number) => Some(number),
        _ => None,
    });
    all.filter(|number| number.choice == choice).collect()
}

#[test]
fn texts_and_numbers_are_the_same_at_any_width() {
    let wide = events(job(4, 100_000), 64);
    for rows_max in [1, 3, 7] {
        assert_eq!(events(job(4, 100_000), rows_max), wide, "{rows_max}");
    }
    for choice in 0..4 {
        let text: String = wide
            .iter()
            .filter_map(|event| match event {
                Event::Text { choice: own, text, .. } if *own == choice => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let values: Vec<f64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let found = numbers(&wide, choice);
        assert_eq!(
            found.iter().map(|number| number.value).collect::<Vec<_>>(),
            values.into_iter().map(Some).collect::<Vec<_>>()
        );
        assert_eq!(found.len(), NUMBERS, "{text}");
        assert!(found.iter().all(|number| number.outcome.distribution.quantile(0.5) == number.value));
    }
}

#[test]
fn numbers_share_the_nodes_and_each_takes_at_most_half() {
    let wide = events(job(1, 40), 64);
    let nodes: Vec<usize> = numbers(&wide, 0).iter().map(|number| number.outcome.nodes).collect();
    assert_eq!(nodes, [20, 10, 5]);
    let tokens = wide.iter().filter(|event| matches!(event, Event::Text { tokens: 1, .. })).count();
    let finished =
        wide.iter().any(|event| matches!(event, Event::Finished { tokens: all, .. } if *all == tokens));
    assert!(finished, "{wide:?}");
}

#[test]
fn the_best_of_several_texts_keep_their_numbers() {
    let ranked = events(TextJob { n: 2, best_of: 5, ..job(5, 1000) }, 64);
    for choice in 0..2 {
        assert_eq!(numbers(&ranked, choice).len(), NUMBERS);
    }
    assert_eq!(numbers(&ranked, 2).len(), 0);
    let plain = events(job(5, 1000), 64);
    let best: Vec<Option<f64>> = numbers(&ranked, 0).iter().map(|number| number.value).collect();
    let is_one = |choice| numbers(&plain, choice).iter().map(|number| number.value).eq(best.iter().copied());
    assert!((0..5).any(is_one), "{best:?}");
}
