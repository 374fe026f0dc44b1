//! Flags for facts that the files of a checkpoint leave open, when it is served or inspected.

use clap::builder::BoolishValueParser;
use ntl_text::checkpoint::{Choices, TokenizerType};

/// Properties that the files of some checkpoints do not state. A flag overrides the files.
#[derive(Debug, Clone, clap::Args)]
pub struct ChoiceArgs {
    /// Whether training took the logarithm of numbers (`rt`, `xval`, regression heads). Overrides the
    /// ntl.json and the trainer's config.yaml; needed if neither states it
    #[arg(long, env = "NTL_LOG_SCALE_EMBEDDINGS", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    log_scale_embeddings: Option<bool>,
    /// How training split text: auto (pieces as they are) or custom (each digit by itself)
    #[arg(long, env = "NTL_TOKENIZER_TYPE", value_name = "TYPE")]
    tokenizer_type: Option<TokenizerType>,
}

impl From<ChoiceArgs> for Choices {
    fn from(args: ChoiceArgs) -> Self {
        let ChoiceArgs { log_scale_embeddings, tokenizer_type } = args;
        Self { log_scale_embeddings, tokenizer_type, ..Self::default() }
    }
}
