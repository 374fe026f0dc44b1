//! Responses of inference servers elsewhere: next-token probabilities, and texts before a number.

use std::sync::LazyLock;

use ntl_remote::wire::{
    Alternatives, Batch, answers, llama_cpp, merge, openai, sglang, usage, vllm, written,
};
use ntl_remote::{Ahead, TokenTexts, byte_tokenizer};
use ntl_text::tokenizer::Tokenizer;

use crate::corpus::{file, named, split_named};
use crate::{Outcome, Target};

/// The vocabulary of the recorded responses.
const VOCAB: usize = 49_152;

const IDS: [u32; 4] = [2, 32, 33, 34];

/// A vocabulary of bytes.
static TEXTS: LazyLock<TokenTexts> = LazyLock::new(|| {
    let tokenizer = Tokenizer::open(&byte_tokenizer());
    TokenTexts::new(&tokenizer.expect("the vocabulary of bytes is valid"))
});

pub(super) const ENGINES: Target = Target {
    name: "engines",
    corpus: || {
        vec![
            named("vllm ids", &recorded("vllm-ids")),
            named("vllm best", &recorded("vllm-top")),
            named("text", &recorded("vllm-write")),
            named("llama-cpp best", llama_cpp_response("logprob", "-0.75").as_bytes()),
            named("llama-cpp ids", llama_cpp_response("prob", "0.25").as_bytes()),
            named(
                "llama-cpp text",
                br#"{"content":"It is","tokens":[3,4],"stop_type":"word"}"#,
            ),
            named(
                "sglang ids",
                br#"[{"meta_info":{"output_token_logprobs":[[-0.5,32,null]],"output_token_ids_logprobs":[[[-9.0,2,null],[-0.5,32,null],[-2.0,33,null],[-3.0,34,null]]]}}]"#,
            ),
            named(
                "sglang text",
                br#"{"text":"It is","output_ids":[3,4],"meta_info":{"finish_reason":{"type":"stop","matched":"x"}}}"#,
            ),
            named(
                "openai best",
                br#"{"choices":[{"index":0,"logprobs":{"tokens":["1"],"top_logprobs":[{"1":-0.5,"2":-1.5}]}},{"index":1,"logprobs":{"content":[{"token":"1","bytes":[49],"top_logprobs":[{"token":"1","bytes":null,"logprob":-0.5}]}]}}]}"#,
            ),
        ]
    },
    words: &[
        "choices",
        "index",
        "logprobs",
        "tokens",
        "top_logprobs",
        "top_probs",
        "token_id:",
        "token_id:4294967296",
        "completion_probabilities",
        "prob",
        "logprob",
        "content",
        "bytes",
        "finish_reason",
        "stop_reason",
        "stop_type",
        "meta_info",
        "output_token_logprobs",
        "output_token_ids_logprobs",
        "matched",
        "-0.0001",
        "1e999",
        "-1e999",
        "0",
        "NaN",
        "null",
    ],
    read: engines,
};

fn recorded(name: &str) -> Vec<u8> {
    file(&format!("models/remote/tests/recorded/{name}.json"))
}

/// Two items, the first of which has two alternatives, whose field `name` has this value.
fn llama_cpp_response(name: &str, value: &str) -> String {
    format!(
        r#"[{{"index":1,"completion_probabilities":[{{"id":3,"top_{name}s":[{{"id":3,"{name}":{value}}},{{"id":32,"{name}":{value}}}]}}]}},{{"index":0,"completion_probabilities":[]}}]"#
    )
}

/// Checks that accepted reports are parts of a distribution over the vocabulary, and that no combination of
/// them panics.
fn engines(input: &[u8]) -> Outcome {
    let Some((kind, body)) = split_named(input) else { return Outcome::Refused };
    let _ = (usage::of_openai(body), usage::of_llama_cpp(body), usage::of_sglang(body));
    let (engine, what) = kind.split_once(' ').unwrap_or((kind, ""));
    if engine == "text" || what == "text" {
        let read = match engine {
            "text" => written::read_completion(body),
            "sglang" => sglang::read_text(body),
            _ => written::read_llama_cpp(body),
        };
        return if read.is_ok() { Outcome::Accepted } else { Outcome::Refused };
    }
    let alternatives = if what == "ids" { Alternatives::Ids(&IDS) } else { Alternatives::Best(5) };
    let mut outcome = Outcome::Refused;
    for (rows, ahead) in [(1, 0), (2, 0), (2, 3)] {
        let ahead = &Ahead::greedy(ahead);
        let batch = Batch { rows, alternatives, ahead, cache_salt: 0, vocab: VOCAB };
        let read = match engine {
            "llama-cpp" => llama_cpp::read(body, &batch),
            "openai" => openai::read(body, &batch, &TEXTS),
            "sglang" => sglang::read(body, &batch),
            _ => vllm::read(body, &batch),
        };
        let Ok(read) = read else { continue };
        assert_eq!(read.len(), rows);
        let mut merged = read.clone();
        merge(&mut merged, read.clone());
        for (position, biased) in merged.iter_mut().flatten().zip(read.iter().flatten()) {
            // It fails if the two do not belong together.
            let _ = llama_cpp::complete(position, biased, &IDS);
        }
        let _ = answers(merged);
        let Ok(answers) = answers(read) else { continue };
        for answer in answers {
            assert!(answer.ahead.len() <= ahead.tokens);
            let reports = std::iter::once(&answer.report).chain(answer.ahead.iter().map(|step| &step.report));
            for report in reports {
                let sum: f64 = report.tokens().iter().map(|token| token.logprob.exp()).sum();
                assert!((0.0..=1.001).contains(&sum), "the probabilities add up to {sum}");
                assert!(report.tokens().iter().all(|token| (token.id as usize) < VOCAB));
            }
        }
        outcome = Outcome::Accepted;
    }
    outcome
}
