//! Encoders with a head, which predict the values of labels: BERT, RoBERTa and ModernBERT.
//!
//! Blocks, prefills and pooling come from T5's encoder. This module has only the configurations and the names
//! of tensors. Computes the same as transformers 5.24. References: BERT (arXiv 1810.04805), RoBERTa (arXiv
//! 1907.11692), ModernBERT (arXiv 2412.13663).

mod bert;
mod modern_bert;
mod reader;

use ntl_text::checkpoint::{CheckpointFiles, LoadResult};

use crate::families::EncoderVariant;
use crate::ops::Placement;
use crate::t5::{PooledEncoder, TokenizerFacts};

pub(crate) fn load(
    files: &CheckpointFiles,
    variant: EncoderVariant,
    facts: TokenizerFacts,
    place: &Placement,
) -> LoadResult<PooledEncoder> {
    match variant {
        EncoderVariant::Bert => bert::load(files, bert::Head::Pooler, facts, place),
        EncoderVariant::Roberta => bert::load(files, bert::Head::Classifier, facts, place),
        EncoderVariant::ModernBert => modern_bert::load(files, facts, place),
    }
}
