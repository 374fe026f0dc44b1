//! Texts decoded token by token equal texts decoded in one call, with every kind of tokenizer.

use std::path::Path;
use std::sync::Arc;

use ntl_core::sampling::{Sampler, SamplingParams};
use ntl_core::text::{TextDecoder, TextStream};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

use crate::support::{Fixtures, over_fixtures};

/// The tokenizer that decodes a run of bytes as a unit: if the run is not valid UTF-8, none of it is, so that
/// a byte can still change the text of the bytes before it.
const BYTES_IN_RUNS: &str = "llama-ntl";

/// Returns the tokenizers of the demo checkpoint, of T5 in fast and slow formats, with byte fallback, and of
/// bytes.
fn tokenizers(fixtures: Fixtures) -> Vec<(&'static str, Arc<Tokenizer>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let demo = std::fs::read(root.join("../server/demo/t5-ntl-was.tar.gz")).unwrap();
    let demo = CheckpointFiles::archive("demo", &demo).unwrap();
    let mut all = vec![("demo", Arc::new(Tokenizer::open(&demo).unwrap()))];
    for name in ["t5-v11", "t5-ce", "llama-ntl", "gpt2", "qwen3"] {
        let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
        all.push((name, Arc::new(Tokenizer::open(&files).unwrap())));
    }
    all
}

/// Returns the pieces that a stream of these ids emits.
fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(Arc::clone(tokenizer) as Arc<dyn TextDecoder>, Arc::from([]));
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    pieces
}
over_fixtures! {
    random_ids_decode_to_the_same_text_one_by_one_and_together,
    characters_of_several_tokens_are_emitted_as_a_unit,
    invalid_bytes_do_not_delay_the_following_text,
}

fn random_ids_decode_to_the_same_text_one_by_one_and_together(fixtures: Fixtures) {
    for (name, tokenizer) in tokenizers(fixtures) {
        let usable = |id: u32| {
            let bytes = tokenizer.piece_bytes(id);
            name != BYTES_IN_RUNS || bytes.is_none_or(|bytes| std::str::from_utf8(&bytes).is_ok())
        };
        let known: Vec<u32> = (0..tokenizer.len() as u32).filter(|&id| usable(id)).collect();
        // Short pieces are punctuation and letters, around which spaces vary.
        let is_short = |id: &u32| tokenizer.piece_text(*id).is_some_and(|text| text.len() <= 2);
        let short: Vec<u32> = known.iter().copied().filter(is_short).collect();
        for seed in 0..40 {
            let mut random = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
            let from = if seed % 2 == 0 { &known } else { &short };
            let logits = vec![0.0; from.len()];
            let ids: Vec<u32> = (0..400).map(|_| from[random.choose(&logits).unwrap() as usize]).collect();
            assert_eq!(pieces(&tokenizer, &ids).concat(), tokenizer.decode(&ids), "{name}, seed {seed}");
        }
    }
}

fn characters_of_several_tokens_are_emitted_as_a_unit(fixtures: Fixtures) {
    let text = "Zoë ate 3 🍕 with 👩‍👩‍👧‍👦 at 20 °C; 日本語のテキスト, naïve café. ".repeat(20);
    for (name, tokenizer) in tokenizers(fixtures) {
        let ids = tokenizer.encode(&text, false).unwrap();
        let pieces = pieces(&tokenizer, &ids);
        assert_eq!(pieces.concat(), tokenizer.decode(&ids), "{name}");
        let split = pieces.iter().find(|piece| piece.contains('\u{FFFD}'));
        assert_eq!(split, None, "{name}");
    }
}

fn invalid_bytes_do_not_delay_the_following_text(fixtures: Fixtures) {
    for (name, tokenizer) in tokenizers(fixtures) {
        let bytes: Vec<u32> = (0..tokenizer.len() as u32)
            .filter(|&id| tokenizer.piece_bytes(id).is_some_and(|bytes| std::str::from_utf8(&bytes).is_err()))
            .collect();
        let word = tokenizer.encode("word", false).unwrap();
        for seed in 0..20.min(bytes.len() as u64) {
            let mut random = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
            let logits = vec![0.0; bytes.len()];
            let broken = (0..5).map(|_| bytes[random.choose(&logits).unwrap() as usize]);
            let ids: Vec<u32> = word.iter().copied().chain(broken).chain(word.iter().copied()).collect();
            let text = pieces(&tokenizer, &ids).concat();
            assert!(text.starts_with("word") && text.ends_with("word"), "{name}, seed {seed}: {text:?}");
        }
    }
}
