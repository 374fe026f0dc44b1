//! Outputs of the Number Token Loss paper's kinds of T5 in addition to logits: numbers of tokens, regression
//! heads, and answers in readable form.

use ntl_core::Token;
use ntl_core::contract::{BatchModel, ContextRequest, NodeId, PathRow, Prompt, Row};
use ntl_core::text::TextDecoder;
use ntl_models::Placement;
use ntl_models::t5::{RegressionHead, TokenizerFacts};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::stored::read as golden_file;
use crate::support::{
    Fixtures, Golden, floats, greedy, ids, open, over_fixtures, prompt, reference, score, target,
};

/// Tolerance relative to the larger of the number and 1.
const TOLERANCE: f32 = 1e-4;

#[track_caller]
fn assert_numbers(got: &[f32], want: &[f32], what: &str) -> f32 {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let off = |(got, want): (&f32, &f32)| (got - want).abs() / want.abs().max(1.0);
    let worst = got.iter().zip(want).map(off).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: error {worst}: got {got:?}, expected {want:?}");
    worst
}
over_fixtures! {
    the_number_head_matches_the_reference_at_every_position,
    xval_is_decoded_as_it_was_trained_or_with_the_bugs_of_the_paper,
    regression_heads_match_the_reference_alone_and_in_a_padded_batch,
    a_number_without_a_value_is_an_error,
}

fn the_number_head_matches_the_reference_at_every_position(fixtures: Fixtures) {
    let mut golden = Golden::open(fixtures, "t5-xval");
    let mut worst = 0.0_f32;
    for case in golden.cases() {
        let (logits, _) = score(&mut golden.model, &[prompt(&case)], &[target(&case)]);
        let got: Vec<f32> = (0..logits.rows()).map(|row| logits.head_value(row).unwrap()).collect();
        let want = floats(&case["number_predictions"]);
        worst = worst.max(assert_numbers(&got, &want, &case["id"].to_string()));
    }
    println!("t5-xval: numbers differ by at most {worst:e} relative");
}

fn xval_is_decoded_as_it_was_trained_or_with_the_bugs_of_the_paper(fixtures: Fixtures) {
    let mut golden = Golden::open(fixtures, "t5-xval");
    let mut worst = 0.0_f32;
    for case in golden.cases() {
        for (field, paper_decoding) in [("greedy_full_prefix", false), ("greedy", true)] {
            let want = ids(&case[field]["ids"]);
            let prompt = prompt(&case);
            let request = ContextRequest { paper_decoding, ..ContextRequest::from(&prompt) };
            let (got, numbers) = greedy(&mut golden, request, want.len());
            let what = format!("{} {field}", case["id"]);
            assert_eq!(got, want, "{what}");
            worst = worst.max(assert_numbers(&numbers, &floats(&case[field]["numbers"]), &what));
        }
    }
    println!("t5-xval: decoded numbers differ by at most {worst:e} relative");
}

/// Returns an answer as text. Missing values are 1.
fn read(tokenizer: &Tokenizer, ids: &[u32], values: &[f32]) -> String {
    let values = values.iter().copied().map(Some).chain(std::iter::repeat(None));
    let tokens: Vec<Token> = ids.iter().zip(values).map(|(&id, value)| Token { id, value }).collect();
    tokenizer.decode_with_values(&tokens)
}

#[test]
fn greedy_answers_are_decoded_like_the_reference() {
    let names = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11", "t5-rt", "t5-rt-ntl", "t5-xval"];
    for name in Fixtures::Reference.only(&names) {
        let golden = Golden::open(Fixtures::Reference, name);
        for case in golden.cases() {
            for field in ["greedy", "greedy_full_prefix"] {
                let answer = &case[field];
                if answer.is_null() {
                    continue;
                }
                let ids = ids(&answer["ids"]);
                let numbers = floats(&answer["numbers"]);
                let read = read(&golden.tokenizer, &ids, &numbers);
                assert_eq!(read, answer["human"].as_str().unwrap(), "{name} {}", case["id"]);
                if let Some(text) = answer["text"].as_str() {
                    assert_eq!(golden.tokenizer.decode_tokens(&ids), text, "{name} {}", case["id"]);
                }
            }
        }
    }
}

#[test]
fn labels_of_the_paper_s_evaluation_are_decoded_like_the_reference() {
    let names = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-rt", "t5-rt-ntl", "t5-xval"];
    for name in Fixtures::Reference.only(&names) {
        let tokenizer = Tokenizer::open(&CheckpointFiles::folder(&reference(name)).unwrap()).unwrap();
        let golden = golden_file(Fixtures::Reference, name, "paper_eval.json");
        let pairs = golden["pairs"].as_array().unwrap().iter();
        for (pair, want) in pairs.zip(golden["decoded_labels"].as_array().unwrap()) {
            let label = tokenizer.encode_prompt(pair[1].as_str().unwrap(), true).unwrap();
            let read = tokenizer.decode_with_values(&label.tokens);
            assert_eq!(read, want.as_str().unwrap(), "{name} {pair}");
        }
    }
}

/// 96 answers in batches of 32, each as long as its batch allows. The paper's scores for xVal are based on
/// them.
#[test]
fn the_paper_s_evaluation_of_xval_is_reproduced_number_by_number() {
    let mut golden = Golden::open(Fixtures::Reference, "t5-xval");
    let eval = golden_file(Fixtures::Reference, "t5-xval", "paper_eval.json");
    let pairs = eval["pairs"].as_array().unwrap();
    let encode =
        |golden: &Golden, text: &Value| golden.tokenizer.encode_prompt(text.as_str().unwrap(), true).unwrap();
    let batches = pairs.chunks(32).zip(eval["decoded_predictions"].as_array().unwrap().chunks(32));
    for (pairs, wanted) in batches {
        let longest = pairs.iter().map(|pair| encode(&golden, &pair[1]).len()).max().unwrap();
        for (pair, want) in pairs.iter().zip(wanted) {
            let prompt = encode(&golden, &pair[0]);
            let request = ContextRequest { paper_decoding: true, ..ContextRequest::from(&prompt) };
            let (mut ids, numbers) = greedy(&mut golden, request, longest + 10);
            let ends = ids.iter().position(|&id| id == 1).unwrap_or(ids.len());
            ids.truncate(ends);
            let got = read(&golden.tokenizer, &ids, &numbers);
            let got = words(&got);
            let want = words(want.as_str().unwrap());
            assert_eq!(got.0, want.0, "{pair}");
            assert_numbers(&got.1, &want.1, &pair.to_string());
        }
    }
}

/// Returns the words of a text, with a `#` for each number, and the numbers.
fn words(text: &str) -> (String, Vec<f32>) {
    let numbers: Vec<f32> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    let word = |word: &str| if word.parse::<f32>().is_ok() { "#".to_owned() } else { word.to_owned() };
    (text.split(' ').map(word).collect::<Vec<_>>().join(" "), numbers)
}

fn regression_heads_match_the_reference_alone_and_in_a_padded_batch(fixtures: Fixtures) {
    let golden = golden_file(fixtures, "t5-regression-head", "golden.json");
    let files = CheckpointFiles::folder(&fixtures.folder("t5-regression-head")).unwrap();
    let tokenizer = Tokenizer::open(&files).unwrap();
    let facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: 512,
        number_encoding: tokenizer.number_encoding(),
    };
    let mut model = RegressionHead::load(&files, facts, false, &Placement::default()).unwrap();
    let mut predict = |prompts: &[Prompt]| -> Vec<f32> {
        let opened = open(&mut model, prompts);
        let row = |opened: &ntl_core::contract::OpenedContext| Row {
            context: opened.context,
            path: PathRow::new(None, opened.first_token),
        };
        let rows: Vec<Row> = opened.iter().map(row).collect();
        let values = model.step(&rows).unwrap();
        opened.iter().for_each(|opened| model.close(opened.context));
        assert!(model.step(&rows).is_err(), "a closed context must be rejected");
        (0..rows.len()).map(|row| values.row(row)[0]).collect()
    };
    let cases = golden["cases"].as_array().unwrap();
    let values = |values: Vec<&Value>| values.iter().map(|v| v.as_f64().unwrap() as f32).collect::<Vec<_>>();
    let want = values(cases.iter().map(|case| &case["value"]).collect());
    let prompts: Vec<Prompt> = cases.iter().map(prompt).collect();
    let alone: Vec<f32> = prompts.iter().flat_map(|prompt| predict(std::slice::from_ref(prompt))).collect();
    let worst = assert_numbers(&alone, &want, "alone");
    assert_eq!(predict(&prompts), alone, "values depend on the batch");
    let batch = &golden["batch"];
    let chosen: Vec<Prompt> = batch["case_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| prompt(cases.iter().find(|case| case["id"] == *id).unwrap()))
        .collect();
    let worst_batch = assert_numbers(&predict(&chosen), &floats(&batch["value"]), "batch");
    println!(
        "t5-regression-head: values differ by at most {worst:e} alone, {worst_batch:e} in a batch, relative"
    );
}

/// An input number must be provided if no step predicted it.
fn a_number_without_a_value_is_an_error(fixtures: Fixtures) {
    let mut golden = Golden::open(fixtures, "t5-xval");
    let number = golden.tokenizer.number_token().unwrap();
    let error = golden.model.open(&[(&Prompt::from(vec![number, 1])).into()]).unwrap_err();
    assert_eq!(error.to_string(), format!("token id {number} stands for a number, which is missing"));
    let context = golden.model.open(&[(&Prompt::from(vec![17, 1])).into()]).unwrap()[0].context;
    let row = |parent: Option<u32>, token| Row { context, path: PathRow::new(parent.map(NodeId), token) };
    let error = golden.model.step(&[row(None, 0), row(Some(0), number)]).unwrap_err();
    assert_eq!(error.to_string(), format!("token id {number} stands for a number, which is missing"));
}
