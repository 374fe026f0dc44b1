//! Runs a few steps of a freshly loaded model, so that the device loads its kernels before the first request,
//! and compiles those that were built for another GPU generation.

use std::sync::Arc;

use ntl_core::contract::{
    BatchModel, ContextRequest, LogitsRequest, ModelError, NodeId, OpenedContext, PathRow, Prompt, Row,
};

/// Length of the longer prompt, in tokens. On a GPU attention over a prompt this long uses matmuls, unlike
/// attention over short prompts (`ops::PassKeys`).
const LONG: usize = 72;

/// Opens one prompt, then two of different lengths, and decodes rows, trees and every kind of logits. Closes
/// all contexts.
pub(crate) fn warm_up(model: &mut dyn BatchModel) -> Result<(), ModelError> {
    let token = model.info().eos_ids.first().copied().unwrap_or(0);
    let long = LONG.min(model.info().prompt_tokens_max / 2).max(1);
    let prompts: [Prompt; 2] = [vec![token; 3].into(), vec![token; long].into()];
    for prompts in [&prompts[..1], &prompts] {
        let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>())?;
        let stepped = steps(model, &opened);
        opened.iter().for_each(|opened| model.close(opened.context));
        stepped?;
    }
    Ok(())
}

fn steps(model: &mut dyn BatchModel, opened: &[OpenedContext]) -> Result<(), ModelError> {
    let ids = LogitsRequest::Ids(Arc::new([0]));
    let greedy: Vec<Row> = opened.iter().map(|opened| row(opened, None, LogitsRequest::Best)).collect();
    model.step(&greedy)?;
    let tree = opened.iter().flat_map(|opened| {
        [(Some(0), LogitsRequest::All), (Some(0), ids.clone()), (Some(1), LogitsRequest::Best)]
            .map(|(parent, logits)| row(opened, parent, logits))
    });
    model.step(&tree.collect::<Vec<_>>()).map(drop)
}

fn row(opened: &OpenedContext, parent: Option<u32>, logits: LogitsRequest) -> Row {
    let path = PathRow::new(parent.map(NodeId), opened.first_token).with_logits(logits);
    Row { context: opened.context, path }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ntl_text::checkpoint::{CheckpointFiles, Choices};

    use super::*;
    use crate::ops::composed;
    use crate::{LoadOptions, load};

    /// A checkpoint of each kind of model.
    const KINDS: [&str; 9] = [
        "t5-v11",
        "t5-rt",
        "t5-xval",
        "t5-regression-head",
        "t5gemma",
        "t5gemma2",
        "regresslm-hf-head",
        "regresslm-hf-p10",
        "granite",
    ];

    #[test]
    fn warming_up_does_not_change_the_logits_of_any_kind_of_model() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
        for kind in KINDS {
            let files = CheckpointFiles::folder(&tiny.join(kind)).unwrap();
            let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
            let answer = |warm: bool| {
                let options = LoadOptions { choices, ..LoadOptions::default() };
                let mut model = load(&files, options).unwrap().model;
                if warm {
                    warm_up(model.as_mut()).unwrap();
                }
                let opened = model.open(&[(&Prompt::from(vec![5, 6, 7])).into()]).unwrap()[0];
                let path = PathRow::new(None, opened.first_token);
                model.step(&[Row { context: opened.context, path }]).unwrap()
            };
            composed::during(|| assert_eq!(answer(true), answer(false), "{kind}"));
        }
    }
}
