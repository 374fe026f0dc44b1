//! `ntl-server inspect`: the contents of a checkpoint, and whether it can be served.
//!
//! In: a directory or a GGUF file. Out: a table or one JSON object, or the reason why the checkpoint cannot
//! be served.

use std::io::Write;

use ntl_models::inspect::{Depth, EosToken, Inspection, Sizes, inspect};
use ntl_text::load_options::{DeviceChoice, LoadOptions};

use ntl_common::printable::printable;

use crate::backend;
use crate::choices::ChoiceArgs;
use crate::hub::{Contents, Location};

#[derive(Debug, Clone, clap::Args)]
pub struct InspectArgs {
    /// Checkpoint folder, GGUF file, or hf:ORG/NAME[@REVISION][/FILE.gguf]
    folder: Location,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Read all weights, too, as serving does
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    choices: ChoiceArgs,
}

impl InspectArgs {
    /// Writes the report to `out`. Fails if the checkpoint cannot be served.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let options = LoadOptions {
            device: DeviceChoice::Cpu,
            choices: self.choices.clone().into(),
            ..LoadOptions::default()
        };
        let depth = if self.check { Depth::Weights } else { Depth::Tables };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let checkpoint = runtime.block_on(self.folder.directory(Contents::Model))?;
        let inspection = inspect(backend::native_files(&checkpoint.path)?, options, depth)?;
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &inspection)?;
            writeln!(out)?;
        } else {
            for (name, value) in lines(&inspection) {
                writeln!(out, "{name:<16}{}", printable(&value))?;
            }
        }
        Ok(())
    }
}

fn lines(inspection: &Inspection) -> Vec<(&str, String)> {
    let memory = bytes(inspection.memory_bytes);
    let mut lines = vec![
        ("kind", format!("{} ({})", inspection.kind, inspection.architecture)),
        ("network", network(inspection.sizes)),
        ("parameters", inspection.parameters.to_string()),
        ("files", inspection.files.join(", ")),
        ("stored as", inspection.stored.join(", ")),
        ("in memory", format!("{} as {}", memory, inspection.dtype)),
        ("tokenizer", format!("{} tokens, numbers as {}", inspection.tokens, inspection.number_encoding)),
        ("number tokens", numbers(inspection)),
    ];
    if let Some(tokens) = inspection.context_tokens_max {
        lines.push(("context", format!("{tokens} tokens")));
        lines.push(("ends with", ends(&inspection.eos_tokens)));
        lines.push(("chat template", if inspection.has_chat_template { "yes" } else { "none" }.to_owned()));
    }
    for assumed in &inspection.assumed {
        lines.push(("assumed", format!("{} = {} ({})", assumed.name, assumed.value, assumed.origin)));
    }
    lines
}

fn network(sizes: Sizes) -> String {
    let mut known = Vec::new();
    for (name, size) in [
        ("layers", sizes.num_layers),
        ("decoder layers", sizes.num_decoder_layers),
        ("wide", sizes.d_model),
        ("heads", sizes.num_heads),
        ("embeddings", sizes.vocab_size),
    ] {
        if let Some(size) = size {
            known.push(format!("{size} {name}"));
        }
    }
    known.join(", ")
}

fn numbers(inspection: &Inspection) -> String {
    let digits = if inspection.numbers.multi_digit { "some longer than a digit" } else { "single digits" };
    match inspection.numbers.range {
        None => "none".to_owned(),
        Some((low, high)) => format!("{} from {low} to {high}, {digits}", inspection.numbers.count),
    }
}

fn ends(tokens: &[EosToken]) -> String {
    let mut ends = Vec::new();
    for token in tokens {
        ends.push(format!("{} {}", token.id, token.text));
    }
    if ends.is_empty() { "no token".to_owned() } else { ends.join(", ") }
}

fn bytes(count: u64) -> String {
    let (mega, giga) = (1e6, 1e9);
    let count = count as f64;
    if count >= giga { format!("{:.2} GB", count / giga) } else { format!("{:.2} MB", count / mega) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ntl_text::checkpoint::{Choices, TokenizerType};

    use super::*;
    use crate::demo;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: InspectArgs,
    }

    fn run(arguments: &[&str]) -> anyhow::Result<String> {
        let line = Line::try_parse_from([&["inspect"], arguments].concat())?;
        let mut out = Vec::new();
        line.args.run(&mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn a_checkpoint_is_described_in_lines() {
        let options = LoadOptions {
            choices: Choices { tokenizer_type: Some(TokenizerType::Custom), ..Choices::default() },
            ..LoadOptions::default()
        };
        let found = inspect(demo::files().unwrap(), options, Depth::Tables).unwrap();
        let told: Vec<String> =
            lines(&found).iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(
            told,
            [
                "kind: t5 (T5ForConditionalGeneration)",
                "network: 4 layers, 2 decoder layers, 128 wide, 4 heads, 133 embeddings",
                "parameters: 1330048",
                "files: model.safetensors",
                "stored as: f32",
                "in memory: 5.32 MB as f32",
                "tokenizer: 133 tokens, numbers as digits",
                "number tokens: 10 from 0 to 9, single digits",
                "assumed: tokenizer_type = custom (command line)",
            ]
        );
    }

    #[test]
    fn a_gguf_file_is_described_with_its_context_ends_and_template() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/data/gguf/llama-ntl.gguf");
        let lines = run(&[file]).unwrap();
        for line in [
            "kind            llama (LlamaForCausalLM)",
            "files           llama-ntl.gguf",
            "stored as       bf16, f32",
            "context         256 tokens",
            "ends with       2 </s>",
            "chat template   yes",
        ] {
            assert!(lines.lines().any(|other| other == line), "{line}: {lines}");
        }
    }

    #[test]
    fn what_could_not_be_served_is_an_error_that_says_why() {
        let error = run(&["/no/such/folder", "--json", "--log-scale-embeddings", "true"]).unwrap_err();
        assert_eq!(error.to_string(), "checkpoint folder /no/such/folder does not exist");
        for wrong in [&["/x", "--tokenizer-type", "fast"][..], &["/x", "--log-scale-embeddings", "2"], &[]] {
            assert!(run(wrong).unwrap_err().is::<clap::Error>(), "{wrong:?}");
        }
    }
}
