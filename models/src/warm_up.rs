//! A few steps of a model that was just loaded, so that the kernels of a device are loaded, and compiled where they were built for
//! another generation, before the first request.

use std::sync::Arc;

use ntl_core::engine::{
    BatchModel, ContextRequest, LogitsRequest, ModelError, NodeId, OpenedContext, PathRow, Prompt, Row,
};

/// Tokens of the longer prompt: long enough for attention by products on a GPU, which short prompts do not take (`ops::PassKeys`).
const LONG: usize = 72;

/// Opens prompts of two lengths, alone and together, and decodes rows, trees and every kind of logits. Leaves nothing open.
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
    let row = |opened: &OpenedContext, parent: Option<u32>, logits| {
        let path = PathRow::new(parent.map(NodeId), opened.first_token).with_logits(logits);
        Row { context: opened.context, path }
    };
    let ids = LogitsRequest::Ids(Arc::new([0]));
    let greedy: Vec<Row> = opened.iter().map(|opened| row(opened, None, LogitsRequest::Best)).collect();
    model.step(&greedy)?;
    let tree = opened.iter().flat_map(|opened| {
        [(Some(0), LogitsRequest::All), (Some(0), ids.clone()), (Some(1), LogitsRequest::Best)]
            .map(|(parent, logits)| row(opened, parent, logits))
    });
    model.step(&tree.collect::<Vec<_>>()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::{CheckpointFiles, Choices};
    use crate::ops::composed;
    use crate::{LoadOptions, load};

    /// Checkpoints of every kind of model.
    const KINDS: [&str; 5] = ["t5-v11", "t5-rt", "t5-xval", "t5-regression-head", "granite"];

    #[test]
    fn models_of_every_kind_warm_up_and_answer_as_before() {
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
