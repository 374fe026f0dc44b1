//! The relevance of documents as questions with the answers yes and no.

use super::{Decision, Figures, Question, QuestionKind, Reading, check_writes};
use crate::apis::rerank::DOCUMENTS;
use crate::error::AppError;
use crate::request::ModelProfile;

/// Asks about each document. The query is before the documents, so that its prefix is computed once.
pub(crate) fn decision(
    query: &str,
    documents: &[String],
    profile: &ModelProfile,
) -> Result<Decision, AppError> {
    let mut questions = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        let param = format!("{DOCUMENTS}[{index}]");
        let instructions = format!("Is this document relevant to the query?\n\n{document}");
        let kind = QuestionKind::yes_or_no([None, None]);
        check_writes(&kind, profile)?;
        questions.push(Question::new(param.clone(), param, instructions, kind, Reading::DEFAULT));
    }
    Decision::new(DOCUMENTS, format!("Query: {query}"), questions, false, profile)
}

/// The probability of yes against no for each document.
pub(crate) fn scores(figures: &[Figures]) -> Vec<f64> {
    let mut scores = Vec::with_capacity(figures.len());
    for figures in figures {
        if let Figures::Options(options) = figures {
            scores.extend(options.or_uniform().first());
        }
    }
    scores
}
