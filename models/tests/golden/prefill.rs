//! Prompts that are computed in chunks of any size: results are bit-identical, prompts share their common
//! prefix, and a prompt that is closed in between leaves nothing behind. The same holds if other prompts are
//! computed between the layers of a pass.

use ntl_core::contract::{
    BatchModel, ContextRequest, Interruption, Logits, ModelError, OpenedContext, PrefillChunk, Prompt, Row,
    Token, Uninterrupted,
};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};

use crate::support::{Fixtures, chain, over_fixtures};

const DECODERS: [&str; 5] = ["llama-ce", "llama-ntl", "gpt2", "granite", "qwen3"];
const ENCODERS: [&str; 10] = [
    "t5-ce",
    "t5-ntl-was",
    "t5-v11",
    "t5-rt",
    "t5-xval",
    "t5-regression-head",
    "t5gemma",
    "t5gemma2",
    "regresslm-hf-head",
    "regresslm-hf-p10",
];

/// Work of a chunk.
const CHUNKS: [usize; 5] = [1, 7, 32, 100, usize::MAX];

fn model(fixtures: Fixtures, name: &str, prefix_bytes_max: usize) -> Box<dyn BatchModel> {
    let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
    let options = LoadOptions { choices, prefix_bytes_max, ..LoadOptions::default() };
    load(&CheckpointFiles::folder(&fixtures.folder(name)).unwrap(), options).unwrap().model
}

/// Returns a prompt of `length` tokens that ends with 1. Prompts with equal `seed` share a prefix.
fn prompt(seed: usize, length: usize) -> Prompt {
    let token = |at: usize| Token { id: (5 + (at * at * 7 + seed * 13) % 40) as u32, value: Some(1.5) };
    (0..length - 1).map(token).chain([Token { id: 1, value: Some(1.5) }]).collect()
}

fn prompts() -> Vec<Prompt> {
    [(0, 150), (0, 90), (1, 33), (2, 1), (0, 65), (1, 40)].map(|(seed, length)| prompt(seed, length)).into()
}

/// Opens prompts in chunks of this size.
fn open(model: &mut dyn BatchModel, prompts: &[Prompt], work: usize) -> Vec<OpenedContext> {
    open_interruptibly(model, prompts, work, &mut Uninterrupted)
}

fn open_interruptibly(
    model: &mut dyn BatchModel,
    prompts: &[Prompt],
    work: usize,
    interruption: &mut dyn Interruption,
) -> Vec<OpenedContext> {
    let begin = |prompt| model.begin(ContextRequest::from(prompt)).unwrap();
    let mut opened: Vec<OpenedContext> = prompts.iter().map(begin).collect();
    loop {
        let mut left: Vec<_> = opened.iter_mut().filter(|opened| opened.prefill.work_left > 0).collect();
        if left.is_empty() {
            return opened;
        }
        let chunks: Vec<_> =
            left.iter().map(|opened| PrefillChunk { context: opened.context, work }).collect();
        let progress = model.prefill_interruptibly(&chunks, interruption).unwrap();
        let advanced = progress.iter().any(|progress| progress.work_done > 0 || progress.work_left == 0);
        assert!(advanced, "a call without progress");
        left.iter_mut().zip(progress).for_each(|(opened, progress)| opened.prefill = progress);
    }
}

/// Returns the logits and numbers of a few rows of each context.
fn answers(model: &mut dyn BatchModel, opened: &[OpenedContext]) -> Vec<(Vec<f32>, Option<f32>)> {
    answers_of(&model.step(&rows(opened)).unwrap())
}

/// Returns a few rows of each context.
fn rows(opened: &[OpenedContext]) -> Vec<Row> {
    let number = |id| Token { id, value: Some(2.5) };
    let rows = |opened: &OpenedContext| chain(opened.context, &[opened.first_token, 6, 9].map(number), 0);
    opened.iter().flat_map(rows).collect()
}

fn answers_of(logits: &Logits) -> Vec<(Vec<f32>, Option<f32>)> {
    (0..logits.rows()).map(|row| (logits.row(row).to_vec(), logits.head_value(row))).collect()
}

/// Opens, computes and closes prompts whenever it can.
#[derive(Default)]
struct Visitors {
    calls: usize,
    /// The last one, which stays open until the next call.
    open: Vec<OpenedContext>,
}

impl Interruption for Visitors {
    fn is_due(&mut self) -> bool {
        true
    }

    fn serve(&mut self, model: &mut dyn BatchModel) {
        self.open.drain(..).for_each(|opened| model.close(opened.context));
        self.open = open(model, &[prompt(self.calls % 3, 70)], 50);
        answers(model, &self.open);
        self.calls += 1;
    }
}

over_fixtures! {
    results_are_bit_identical_in_chunks_of_any_size,
    results_are_bit_identical_if_other_prompts_are_computed_between_layers,
    prompts_that_are_computed_together_share_their_prefix_in_chunks_of_any_size,
    a_first_row_is_the_same_computed_with_its_prompt_and_in_a_step,
    one_call_with_all_the_work_that_is_left_completes_a_prompt,
    a_context_cannot_be_stepped_before_its_prefill_is_complete,
}

fn results_are_bit_identical_in_chunks_of_any_size(fixtures: Fixtures) {
    for name in fixtures.only(&DECODERS).chain(fixtures.only(&ENCODERS)) {
        let mut alone = model(fixtures, name, 0);
        let mut one = |prompt: &Prompt| {
            let opened = open(&mut *alone, std::slice::from_ref(prompt), usize::MAX);
            answers(&mut *alone, &opened)
        };
        let want: Vec<_> = prompts().iter().flat_map(&mut one).collect();
        for (work, prefixes) in CHUNKS.into_iter().flat_map(|work| [(work, 0), (work, 1 << 20)]) {
            let mut model = model(fixtures, name, prefixes);
            let opened = open(&mut *model, &prompts(), work);
            assert_eq!(answers(&mut *model, &opened), want, "{name}, chunks of {work}, prefixes {prefixes}");
        }
    }
}

fn results_are_bit_identical_if_other_prompts_are_computed_between_layers(fixtures: Fixtures) {
    for name in fixtures.only(&DECODERS).chain(fixtures.only(&ENCODERS)) {
        let mut undisturbed = model(fixtures, name, 0);
        let opened = open(&mut *undisturbed, &prompts(), usize::MAX);
        let want = answers(&mut *undisturbed, &opened);
        for (work, prefixes) in [(7, 1 << 20), (100, 0), (usize::MAX, 1 << 20)] {
            let mut model = model(fixtures, name, prefixes);
            let mut visitors = Visitors::default();
            let opened = open_interruptibly(&mut *model, &prompts(), work, &mut visitors);
            let logits = model.step_interruptibly(&rows(&opened), &mut visitors).unwrap();
            assert_eq!(answers_of(&logits), want, "{name}, chunks of {work}, prefixes {prefixes}");
            let has_head = name.ends_with("head");
            assert!(visitors.calls > 0 || has_head, "{name}: no pass was interrupted");
        }
    }
}

fn prompts_that_are_computed_together_share_their_prefix_in_chunks_of_any_size(fixtures: Fixtures) {
    for work in CHUNKS {
        let mut model = model(fixtures, "llama-ntl", 1 << 20);
        let opened = open(&mut *model, &vec![prompt(0, 150); 3], work);
        let cached: usize = opened.iter().map(|opened| opened.prefill.cached_tokens).sum();
        assert_eq!(cached, 2 * 149, "every block is computed once in chunks of {work}");
    }
}

fn a_first_row_is_the_same_computed_with_its_prompt_and_in_a_step(fixtures: Fixtures) {
    for name in fixtures.only(&DECODERS) {
        let mut model = model(fixtures, name, 1 << 20);
        let opened = open(&mut *model, &[prompt(2, 40)], usize::MAX);
        for token in 3..8 {
            model.step(&chain(opened[0].context, &[token], 0)).unwrap();
            assert!(!model.step_was_partial(), "the first steps are complete");
        }
        let [first_token, other] = [1, 6];
        for (seed, tokens) in [(0, [first_token, other, 9]), (1, [other, first_token, 9])] {
            let prompt = prompt(seed, 65);
            let [computed, cached] =
                [(); 2].map(|()| open(&mut *model, std::slice::from_ref(&prompt), usize::MAX)[0]);
            assert_eq!(cached.prefill.cached_tokens, 64, "the whole prompt is cached");
            let rows = [computed, cached].map(|opened| chain(opened.context, &tokens, 0)).concat();
            let logits = model.step(&rows).unwrap();
            for row in 0..tokens.len() {
                assert_eq!(
                    logits.row(row),
                    logits.row(tokens.len() + row),
                    "{name}, row {row} of {tokens:?}"
                );
            }
        }
        let opened = open(&mut *model, &[prompt(3, 40)], usize::MAX);
        model.step(&chain(opened[0].context, &[first_token], 0)).unwrap();
        assert!(model.step_was_partial(), "{name}: the row is computed with its prompt");
    }
}

fn one_call_with_all_the_work_that_is_left_completes_a_prompt(fixtures: Fixtures) {
    for name in fixtures.only(&DECODERS).chain(fixtures.only(&ENCODERS)) {
        let mut model = model(fixtures, name, 0);
        for (length, part) in (1..200).step_by(7).flat_map(|length| [(length, 0), (length, 20)]) {
            let prompt = prompt(0, length);
            let opened = model.begin((&prompt).into()).unwrap();
            let context = opened.context;
            let mut left = opened.prefill.work_left;
            for work in [part.min(left), usize::MAX].into_iter().filter(|&work| work > 0) {
                if left > 0 {
                    left = model.prefill(&[PrefillChunk { context, work: work.min(left) }]).unwrap()[0]
                        .work_left;
                }
            }
            assert_eq!(left, 0, "{name}, {length} tokens after a part of {part}");
            model.close(context);
        }
    }
}

fn a_context_cannot_be_stepped_before_its_prefill_is_complete(fixtures: Fixtures) {
    for name in ["llama-ntl", "t5-ntl-was", "t5-regression-head", "regresslm-hf-p10", "regresslm-hf-head"] {
        let mut model = model(fixtures, name, 0);
        let prompt = prompt(0, 100);
        let opened = model.begin((&prompt).into()).unwrap();
        let row = chain(opened.context, &[opened.first_token], 0);
        let chunk = PrefillChunk { context: opened.context, work: 10 };
        for _ in 0..2 {
            assert!(matches!(model.step(&row), Err(ModelError::NotPrefilled(_))), "{name}");
            model.prefill(&[chunk]).unwrap();
        }
        model.close(opened.context);
        assert!(matches!(model.prefill(&[chunk]), Err(ModelError::UnknownContext(_))), "{name}");
        assert!(matches!(model.step(&row), Err(ModelError::UnknownContext(_))), "{name}");
    }
}
