//! Compares scoring through the engine, from token ids to losses, with the reference models and losses.

use std::sync::Arc;

use ntl_core::Prompt;
use ntl_core::contract::{Event, Job, Request, ScoreJob, ScoreOutcome};
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens};
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::Value;

use crate::stored::{DECODERS, Deviations, in_order, mean, read};
use crate::support::{Fixtures, ids, numbers, over_fixtures};

/// Supported checkpoints: trained and random, with multi-digit tokens and single digits.
const SERVED: [&str; 6] = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11", "t5-rt", "t5-rt-ntl"];

const LOSSES: [(&str, NumberLossKind); 5] = [
    ("ntl_mse", NumberLossKind::Mse),
    ("ntl_mae", NumberLossKind::Mae),
    ("ntl_huber", NumberLossKind::Huber),
    ("ntl_was_absdiff", NumberLossKind::Was),
    ("ntl_was_cdf_ordered", NumberLossKind::WasCdf),
];

/// Allowed deviation of our models' logits from the reference's, in units in the last place.
const UNIT: f64 = 400.0;

struct Scorer {
    engine: Engine,
    number_tokens: Arc<NumberTokens>,
    golden: Value,
}

impl Scorer {
    fn open(fixtures: Fixtures, name: &str, limits: EngineLimits) -> Self {
        let golden = read(fixtures, name, "golden.json");
        let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
        let loaded = load(&files, LoadOptions::default()).unwrap();
        let number_tokens = NumberTokens::new(loaded.vocabulary.number_values.iter().copied());
        let number_tokens = in_order(number_tokens, &ids(&golden["wasserstein_order_ids"]));
        let (engine, _) =
            Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver)).unwrap();
        Self { engine, number_tokens: Arc::new(number_tokens), golden }
    }

    fn submit(&self, case: &Value) -> JobEvents {
        let losses = LOSSES.iter().map(|(_, kind)| NumberLoss::of(*kind)).collect();
        let number_tokens = Arc::clone(&self.number_tokens);
        let request = Request::Score(ScoreJob {
            target: Prompt::from(ids(&case["label_ids"])).tokens,
            number_tokens,
            losses,
            digits: false,
        });
        self.engine.submit(Job::new(ids(&case["input_ids"]), request)).unwrap()
    }

    fn cases(&self) -> &[Value] {
        self.golden["cases"].as_array().unwrap()
    }
}

fn outcome(mut events: JobEvents) -> ScoreOutcome {
    match events.next_blocking() {
        Some(Event::Scored(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}
over_fixtures! {
    scored_targets_have_the_losses_of_the_reference,
    targets_after_decoder_only_prompts_have_the_log_probabilities_of_the_reference,
    a_target_has_the_same_scores_alone_and_in_a_batch_in_steps_of_any_size,
}

fn scored_targets_have_the_losses_of_the_reference(fixtures: Fixtures) {
    let mut deviations = Deviations::default();
    for name in fixtures.only(&SERVED) {
        let scorer = Scorer::open(fixtures, name, EngineLimits::default());
        for case in scorer.cases() {
            let what = format!("{name} {}", case["id"]);
            let tokens = outcome(scorer.submit(case)).tokens;
            let ce: Vec<Option<f64>> = tokens.iter().map(|token| Some(-token.token.logprob)).collect();
            deviations.compare(("ce", &what), mean(&ce), case["ce_loss"].as_f64().unwrap(), UNIT);
            for (token, want) in tokens.iter().zip(numbers(&case["token_logprobs"])) {
                deviations.compare(("logprob", &what), token.token.logprob, want, UNIT);
            }
            for (token, want) in tokens.iter().zip(numbers(&case["number_mass"])) {
                deviations.compare(("mass", &what), token.number.unwrap().mass, want, UNIT);
            }
            for (index, (loss, _)) in LOSSES.iter().enumerate() {
                let losses: Vec<Option<f64>> = tokens.iter().map(|token| token.losses[index]).collect();
                // The reference is NaN without a number label.
                let want = case["paper_losses"][loss].as_f64().unwrap_or_default();
                deviations.compare((loss, &what), mean(&losses), want, UNIT);
            }
        }
    }
    deviations.check();
}

fn targets_after_decoder_only_prompts_have_the_log_probabilities_of_the_reference(fixtures: Fixtures) {
    for name in fixtures.only(&DECODERS) {
        let golden = read(fixtures, name, "golden.json");
        let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
        let loaded = load(&files, LoadOptions::default()).unwrap();
        let number_tokens = Arc::new(NumberTokens::new(loaded.vocabulary.number_values.iter().copied()));
        let limits = EngineLimits::default();
        let (engine, _) =
            Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver)).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let prompt = case["n_prompt"].as_u64().unwrap() as usize;
            let full = ids(&case["full_ids"]);
            let target = Prompt::from(ids(&case["label_ids"])).tokens;
            let number_tokens = Arc::clone(&number_tokens);
            let request =
                Request::Score(ScoreJob { target, number_tokens, losses: Vec::new(), digits: false });
            let job = Job::new(full[..prompt].to_vec(), request);
            let tokens = outcome(engine.submit(job).unwrap()).tokens;
            let want = numbers(&case["token_logprobs"]);
            assert_eq!(tokens.len(), want.len(), "{name} {}", case["id"]);
            for (token, want) in tokens.iter().zip(want) {
                let got = token.token.logprob;
                assert!((got - want).abs() < 2e-4, "{name} {}: got {got}, expected {want}", case["id"]);
            }
        }
    }
}

fn a_target_has_the_same_scores_alone_and_in_a_batch_in_steps_of_any_size(fixtures: Fixtures) {
    let limits = |step_rows_max| EngineLimits { step_rows_max, ..EngineLimits::default() };
    let one_step = Scorer::open(fixtures, "t5-ntl-was", limits(4096));
    let alone: Vec<ScoreOutcome> =
        one_step.cases().iter().map(|case| outcome(one_step.submit(case))).collect();
    for step_rows_max in [1, 7, 128] {
        let scorer = Scorer::open(fixtures, "t5-ntl-was", limits(step_rows_max));
        let together: Vec<JobEvents> = scorer.cases().iter().map(|case| scorer.submit(case)).collect();
        for (events, alone) in together.into_iter().zip(&alone) {
            assert_eq!(&outcome(events), alone, "{step_rows_max} rows a step");
        }
    }
}
