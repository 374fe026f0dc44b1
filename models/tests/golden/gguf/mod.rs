//! GGUF files, written from checkpoint directories: they give the results of the directory.

mod write;

use std::path::{Path, PathBuf};
use std::slice::from_ref;

use candle_core::quantized::gguf_file::{self, Value as Field};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use ntl_core::text::TextDecoder;
use ntl_models::causal::{Causal, CausalOptions};
use ntl_models::inspect::{Depth, inspect};
use ntl_models::{DeviceChoice, DtypeChoice, LoadOptions, LoadedModel, Placement, Weights, load};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::gguf;
use ntl_text::tokenizer::Tokenizer;

use crate::support::{Fixtures, assert_close, flat, score_ids};
use write::{Source, count};

const TEXTS: [&str; 6] = [
    "Natalia sold 48/2 = 24 clips in May.",
    "  two  spaces, naïve café: 3.14159 and -0.5e10\n\n\tnew line",
    "日本語 🙂 x=1234567890",
    "<|endoftext|> is not <s>special</s> text <|im_end|>",
    "it's I'LL don't",
    "",
];

fn causal(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/causal").join(name)
}

fn cpu(dtype: DtypeChoice) -> LoadOptions {
    LoadOptions { device: DeviceChoice::Cpu, dtype, ..LoadOptions::default() }
}

/// A temporary directory with one GGUF file.
struct Written {
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl Written {
    fn new(source: &Source, dtype: GgmlDType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        source.write(&file, dtype);
        Self { _folder: folder, file }
    }

    fn load(&self, dtype: DtypeChoice) -> LoadedModel {
        load(&gguf::checkpoint(&self.file).unwrap(), cpu(dtype)).unwrap()
    }

    fn error(&self) -> String {
        let loaded = gguf::checkpoint(&self.file).and_then(|files| load(&files, cpu(DtypeChoice::Auto)));
        loaded.map(|_| ()).unwrap_err().to_string()
    }
}

/// Returns the logits after each of some tokens.
fn logits(model: &mut dyn ntl_core::contract::BatchModel) -> Vec<f32> {
    let prompt = [3, 7, 5, 11, 2, 9];
    let target = [4, 8, 30, 12, 25, 6, 7, 17];
    let (logits, _) = score_ids(model, &[prompt.to_vec()], from_ref(&target.to_vec()));
    (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect()
}

#[test]
fn a_file_in_f32_gives_the_logits_and_ids_of_its_directory() {
    for (fixtures, name) in [
        (Fixtures::Reference, "llama-ntl"),
        (Fixtures::Reference, "qwen3"),
        (Fixtures::Reference, "granite"),
        (Fixtures::Reference, "gpt2"),
        (Fixtures::Reference, "t5-v11"),
        (Fixtures::Tiny, "t5-v11"),
    ] {
        let folder = fixtures.folder(name);
        let written = Written::new(&Source::open(&folder), GgmlDType::F32);
        let mut got = written.load(DtypeChoice::Auto);
        let mut want = load(&CheckpointFiles::folder(&folder).unwrap(), cpu(DtypeChoice::F32)).unwrap();
        let (info, want_info) = (got.model.info().clone(), want.model.info().clone());
        assert_eq!((&info.kind, &info.dtype), (&want_info.kind, &want_info.dtype), "{name}");
        assert_eq!(info.parameters, want_info.parameters, "{name}");
        assert_eq!(info.context_tokens_max, want_info.context_tokens_max, "{name}");
        assert!(want_info.eos_ids.iter().all(|id| info.eos_ids.contains(id)), "{name}");
        assert_eq!(logits(&mut *got.model), logits(&mut *want.model), "{name}");
        for text in TEXTS {
            let ids = want.tokenizer.encode(text, true).unwrap();
            assert_eq!(got.tokenizer.encode(text, true).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(got.tokenizer.decode(&ids), want.tokenizer.decode(&ids), "{name}: {text:?}");
        }
        assert_eq!(got.tokenizer.chat_template().is_some(), name != "t5-v11", "{name}");
        assert_eq!(got.vocabulary.number_values, want.vocabulary.number_values, "{name}");
    }
}

#[test]
fn a_file_of_llama_cpps_writer_gives_the_logits_of_its_directory() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/llama-ntl.gguf");
    let mut got = load(&gguf::checkpoint(&file).unwrap(), cpu(DtypeChoice::Auto)).unwrap();
    let folder = Fixtures::Tiny.folder("llama-ntl");
    let mut want = load(&CheckpointFiles::folder(&folder).unwrap(), cpu(DtypeChoice::F32)).unwrap();
    assert_eq!(logits(&mut *got.model), logits(&mut *want.model));
    for text in TEXTS {
        let ids = want.tokenizer.encode(text, true).unwrap();
        assert_eq!(got.tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn a_model_in_two_parts_gives_the_logits_of_its_directory() {
    let folder = Fixtures::Reference.folder("llama-ntl");
    let parts = tempfile::tempdir().unwrap();
    let [first, second] = [1, 2].map(|number| parts.path().join(format!("m-0000{number}-of-00002.gguf")));
    Source::open(&folder).write_parts([&first, &second]);
    let mut got = load(&gguf::checkpoint(&first).unwrap(), cpu(DtypeChoice::Auto)).unwrap();
    let mut want = load(&CheckpointFiles::folder(&folder).unwrap(), cpu(DtypeChoice::F32)).unwrap();
    assert_eq!(logits(&mut *got.model), logits(&mut *want.model));
    let error = gguf::checkpoint(&second).unwrap_err().to_string();
    assert!(error.contains("-00002-of-00002.gguf: field `split.count`"), "{error}");
    std::fs::copy(&first, &second).unwrap();
    let error = gguf::checkpoint(&first).unwrap_err().to_string();
    assert!(error.contains("`split.no`: this is part 0 in the place of part 1"), "{error}");
    std::fs::remove_file(&second).unwrap();
    let error = gguf::checkpoint(&first).unwrap_err().to_string();
    assert!(error.ends_with("has no m-00002-of-00002.gguf"), "{error}");
}

#[test]
fn links_to_a_file_lead_to_its_model() {
    let source = Source::open(&causal("qwen2"));
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("models--m/blobs");
    let snapshot = folder.path().join("models--m/snapshots/1f");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    source.write(&blobs.join("9c"), GgmlDType::F32);
    for link in [snapshot.join("m.gguf"), folder.path().join("m.gguf")] {
        std::os::unix::fs::symlink(blobs.join("9c"), &link).unwrap();
        let files = gguf::checkpoint(&link).unwrap();
        assert_eq!(Weights::open(&files).unwrap().shape("model.norm.weight"), Some(&[16][..]), "{link:?}");
    }
}

#[test]
fn variants_of_positions_and_biases_give_the_logits_of_their_directories() {
    for name in [
        "llama-biases",
        "llama-linear",
        "llama-llama3",
        "llama-yarn",
        "mistral-window",
        "qwen2",
        "smollm3",
        "olmo2",
        "gemma2",
        "gemma3",
        "phi3",
    ] {
        let written = Written::new(&Source::open(&causal(name)), GgmlDType::F32);
        let mut got = written.load(DtypeChoice::F32);
        let options = CausalOptions { tokens: 36, place: Placement::default(), prefix_bytes_max: 0 };
        let files = CheckpointFiles::folder(&causal(name)).unwrap();
        let mut want = Causal::load(&files, &options).unwrap();
        // Their factors of angles and scales of normalisations are rounded.
        let is_rounded = ["llama-llama3", "gemma2", "gemma3", "phi3"].contains(&name);
        let tolerance = if is_rounded { 1e-5 } else { 0.0 };
        assert_close(&logits(&mut *got.model), &logits(&mut want), tolerance, name);
    }
}

#[test]
fn logits_of_quantised_types_are_close_and_auto_keeps_the_bits_of_the_file() {
    let folder = Fixtures::Reference.folder("llama-ntl");
    let source = Source::open(&folder);
    let mut exact = load(&CheckpointFiles::folder(&folder).unwrap(), cpu(DtypeChoice::F32)).unwrap();
    let want = logits(&mut *exact.model);
    let spread = root_mean_square(&want);
    for (dtype, name, error_max) in [
        (GgmlDType::F16, "f32", 0.002),
        (GgmlDType::BF16, "f32", 0.02),
        (GgmlDType::Q8_0, "gguf", 0.05),
        (GgmlDType::Q5_1, "gguf", 0.2),
        (GgmlDType::Q5_0, "gguf", 0.25),
        (GgmlDType::Q4_1, "gguf", 0.4),
        (GgmlDType::Q4_0, "gguf", 0.5),
    ] {
        let written = Written::new(&source, dtype);
        let auto = written.load(DtypeChoice::Auto);
        assert_eq!(auto.model.info().dtype.name(), name, "{dtype:?}");
        let [auto, read] = [auto, written.load(DtypeChoice::F32)].map(|mut model| logits(&mut *model.model));
        let errors = [&auto, &read].map(|got| difference(got, &want) / spread);
        println!("{dtype:?}: errors of auto and f32 are {errors:?} of the spread");
        assert!(errors.iter().all(|error| (1e-6..error_max).contains(error)), "{dtype:?}: {errors:?}");
        let rounding = difference(&auto, &read) / spread;
        assert!(rounding < 0.03, "{dtype:?}: auto and f32 differ by {rounding} of the spread");
    }
}

/// Returns the root of the mean square of the differences.
fn difference(got: &[f32], want: &[f32]) -> f32 {
    let off: Vec<f32> = got.iter().zip(want).map(|(got, want)| got - want).collect();
    root_mean_square(&off)
}

fn root_mean_square(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

#[test]
fn blocks_of_every_type_are_read_across_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let shape = (1100, 256);
    let values: Vec<f32> = (0..shape.0 * shape.1).map(|index| ((index * 37) as f32 * 0.01).sin()).collect();
    let exact = Tensor::from_vec(values.clone(), shape, &Device::Cpu).unwrap();
    for (dtype, error_max) in [
        (GgmlDType::F32, 0.0),
        (GgmlDType::F16, 5e-4),
        (GgmlDType::BF16, 4e-3),
        (GgmlDType::Q8_0, 5e-3),
        (GgmlDType::Q5_1, 0.04),
        (GgmlDType::Q5_0, 0.07),
        (GgmlDType::Q4_1, 0.08),
        (GgmlDType::Q4_0, 0.14),
        (GgmlDType::Q6K, 0.04),
        (GgmlDType::Q5K, 0.08),
        (GgmlDType::Q4K, 0.15),
        (GgmlDType::Q3K, 0.4),
        (GgmlDType::Q2K, 0.7),
    ] {
        let stored = QTensor::quantize(&exact, dtype).unwrap();
        let fields: Vec<(String, Field)> = gpt2_fields();
        let fields: Vec<(&str, &Field)> = fields.iter().map(|(name, field)| (&**name, field)).collect();
        let mut out = std::fs::File::create(&file).unwrap();
        gguf_file::write(&mut out, &fields, &[("token_embd.weight", &stored)]).unwrap();
        let files = gguf::checkpoint(&file).unwrap();
        let weights = Weights::open(&files).unwrap();
        let read =
            weights.tensor("transformer.wte.weight", &[shape.0, shape.1], DType::F32, &Device::Cpu).unwrap();
        let name = format!("{dtype:?}");
        assert_eq!(flat(&read), flat(&stored.dequantize(&Device::Cpu).unwrap()), "{name}");
        assert_close(&flat(&read), &values, error_max, &name);
        assert_eq!(weights.summary().stored[0].replace('_', ""), name.to_lowercase().replace('_', ""));
    }
}

/// The fields of a GPT-2 with 256 elements per position.
fn gpt2_fields() -> Vec<(String, Field)> {
    let mut fields = vec![("general.architecture".to_owned(), Field::String("gpt2".to_owned()))];
    for (key, size) in [
        ("context_length", 8),
        ("embedding_length", 256),
        ("block_count", 1),
        ("attention.head_count", 4),
        ("feed_forward_length", 512),
    ] {
        fields.push((format!("gpt2.{key}"), count(size)));
    }
    fields.push(("gpt2.attention.layer_norm_epsilon".to_owned(), Field::F32(1e-5)));
    let texts = |all: &[&str]| Field::Array(all.iter().map(|text| Field::String((*text).into())).collect());
    for (key, field) in
        [("model", Field::String("gpt2".to_owned())), ("tokens", texts(&["a", "b"])), ("merges", texts(&[]))]
    {
        fields.push((format!("tokenizer.ggml.{key}"), field));
    }
    fields
}

/// The tokenizer of a file without weights.
fn tokenizer(architecture: &str, fields: Vec<(&str, Field)>) -> (Tokenizer, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let mut all = vec![("general.architecture".to_owned(), Field::String(architecture.to_owned()))];
    all.extend(fields.into_iter().map(|(key, field)| (format!("tokenizer.ggml.{key}"), field)));
    let all: Vec<(&str, &Field)> = all.iter().map(|(name, field)| (&**name, field)).collect();
    gguf_file::write(&mut std::fs::File::create(&file).unwrap(), &all, &[]).unwrap();
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let header = gguf::GgufFile::read_model("m", &files, "m.gguf").unwrap();
    for (name, bytes) in gguf::tokenizer_files(&header, &files).unwrap() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    (Tokenizer::open(&files).unwrap(), gguf::end_ids(&header).unwrap())
}

fn texts(all: &[&str]) -> Field {
    Field::Array(all.iter().map(|text| Field::String((*text).to_owned())).collect())
}

#[test]
fn special_tokens_of_phi3_take_the_spaces_after_them_and_end_a_turn_however_they_are_marked() {
    let names = ["<unk>", "<s>", "<|end|>", "<|user|>", "▁", "a", "\n"];
    // The converter marks some tokens as usual ones (1) or as the user's (4).
    let kinds = [2, 3, 1, 4, 1, 1, 1];
    let scores = Field::Array(vec![Field::F32(0.0); names.len()]);
    let fields = |architecture| {
        let kinds = kinds.map(Field::I32).to_vec();
        let fields = vec![
            ("model", Field::String("llama".to_owned())),
            ("tokens", texts(&names)),
            ("token_type", Field::Array(kinds)),
            ("scores", scores.clone()),
            ("add_bos_token", Field::Bool(false)),
            ("add_space_prefix", Field::Bool(false)),
        ];
        tokenizer(architecture, fields)
    };
    for (architecture, want) in [("phi3", vec![3, 5, 2, 5]), ("llama", vec![3, 6, 5, 2, 4, 5])] {
        let (tokenizer, ends) = fields(architecture);
        assert_eq!(tokenizer.encode("<|user|>\na<|end|> a", false).unwrap(), want, "{architecture}");
        assert_eq!(ends, [2], "{architecture}");
    }
}

#[test]
fn words_are_divided_as_the_pre_tokenizer_of_the_file_says() {
    // One token for each character, and merges for all pairs of letters and digits.
    let letters = ["a", "b", "B", "1", "'", "s", "Ġ"];
    let mut names: Vec<String> = letters.iter().map(|&letter| letter.to_owned()).collect();
    let mut merges = Vec::new();
    for (first, second) in
        [("a", "b"), ("b", "B"), ("ab", "B"), ("1", "1"), ("11", "1"), ("111", "1"), ("ab", "'")]
    {
        merges.push(format!("{first} {second}"));
        names.push(format!("{first}{second}"));
    }
    let ids = |pre: &str, text: &str| {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let merges: Vec<&str> = merges.iter().map(|merge| &**merge).collect();
        let (tokenizer, _) = tokenizer(
            "qwen2",
            vec![
                ("model", Field::String("gpt2".to_owned())),
                ("pre", Field::String(pre.to_owned())),
                ("tokens", texts(&names)),
                ("merges", texts(&merges)),
            ],
        );
        let ids = tokenizer.encode(text, false).unwrap();
        ids.into_iter().map(|id| names[id as usize].to_owned()).collect::<Vec<_>>()
    };
    for (pre, want) in [
        ("gpt-4o", ["ab|B", "111|1", "ab'|s"]),
        ("dbrx", ["abB", "111|1", "ab|'|s"]),
        ("qwen2", ["abB", "1|1|1|1", "ab|'|s"]),
        ("tekken", ["ab|B", "1|1|1|1", "ab|'|s"]),
    ] {
        let got = ["abB", "1111", "ab's"].map(|text| ids(pre, text).join("|"));
        assert_eq!(got, want, "{pre}");
    }
}

#[test]
fn an_inspection_shows_the_contents_of_a_file() {
    let source = Source::open(&Fixtures::Reference.folder("qwen3"));
    let written = Written::new(&source, GgmlDType::F16);
    for depth in [Depth::Tables, Depth::Weights] {
        let files = gguf::checkpoint(&written.file).unwrap();
        let found = inspect(files, cpu(DtypeChoice::Auto), depth).unwrap();
        assert_eq!((&*found.kind, &*found.architecture), ("qwen3", "Qwen3ForCausalLM"));
        assert_eq!((&found.files[..], &*found.stored[0]), (&["m.gguf".to_owned()][..], "f16"));
        assert_eq!(found.context_tokens_max, Some(2048));
        let ends: Vec<&str> = found.eos_tokens.iter().map(|token| &*token.text).collect();
        assert_eq!(ends, ["<|endoftext|>", "<|im_end|>"]);
        assert!(found.has_chat_template);
        assert_eq!((found.sizes.num_layers, found.sizes.d_model), (Some(3), Some(80)));
    }
}

#[test]
fn a_file_that_cannot_be_served_is_rejected_with_the_key_or_the_tensor() {
    let folder = Fixtures::Reference.folder("llama-ntl");
    let text = |text: &str| Field::String(text.to_owned());
    for (key, field, want) in [
        ("general.architecture", text("gemma"), "`gemma` is not served natively; known are gemma2, gemma3,"),
        ("general.type", text("adapter"), "field `general.type`: `adapter` is not a model"),
        ("split.count", count(3), "field `split.count`: the model has 3 parts, and the file names of 1"),
        ("split.no", count(1), "field `split.no`: this is part 1 in the place of part 0"),
        ("tokenizer.ggml.model", text("bert"), "field `tokenizer.ggml.model`: `bert` is not supported"),
        ("llama.block_count", count(0), "field `llama.block_count`: missing, or 0"),
        ("llama.block_count", count(4), "tensor `blk.3.attn_norm.weight` is missing"),
        ("llama.block_count", text("3"), "field `llama.block_count`: a text instead of an integer"),
        ("llama.embedding_length", count(1 << 25), "`llama.embedding_length`: 33554432 is out of range"),
        ("llama.feed_forward_length", count(128), "tensor `blk.0.ffn_gate.weight`: shape [256, 96]"),
        ("llama.expert_count", count(8), "field `llama.expert_count`: experts are not served natively"),
        ("llama.rope.dimension_count", count(12), "`llama.rope.dimension_count`: 12 differs from the 24"),
        ("llama.rope.scaling.type", text("longrope"), "`llama.rope.scaling.type`: `longrope` is not"),
        ("llama.logit_scale", Field::F32(2.0), "`llama.logit_scale`: multipliers of `llama` are not"),
        ("tokenizer.ggml.scores", count(1), "field `tokenizer.ggml.scores`: not one number for each token"),
        (
            "tokenizer.ggml.tokens",
            Field::Array(vec![text(&"a".repeat(2000))]),
            "field `tokenizer.ggml.tokens`: a token has 2000 bytes; the limit is 1024",
        ),
        ("tokenizer.ggml.token_type", count(1), "`tokenizer.ggml.token_type`: not one integer for each"),
    ] {
        let mut source = Source::open(&folder);
        source.fields.retain(|(other, _)| other != key);
        source.fields.push((key.to_owned(), field));
        let error = Written::new(&source, GgmlDType::F32).error();
        assert!(error.contains("m.gguf") && error.contains(want), "{key}: {error}");
    }
    let mut source = Source::open(&Fixtures::Reference.folder("qwen3"));
    for (_, field) in source.fields.iter_mut().filter(|(key, _)| key == "tokenizer.ggml.pre") {
        *field = text("viking");
    }
    let error = Written::new(&source, GgmlDType::F32).error();
    assert!(error.contains("field `tokenizer.ggml.pre`: `viking` is not supported"), "{error}");
    let written = Written::new(&Source::open(&Fixtures::Reference.folder("llama-ntl")), GgmlDType::Q8_1);
    let error = written.error();
    assert!(error.contains("`token_embd.weight`: element type q8_1 is not supported"), "{error}");
}
