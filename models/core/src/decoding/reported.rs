//! Decodings over the next-token probabilities that another engine reports.
//!
//! Their rows request the ids that they read. An id that the engine leaves out is open mass of a number, and
//! an error of a score. Row tokens without a parent have no meaning: such a row is the end of the prompt.
//! A structured text with numbers is not such a decoding: see [`ReportedText`].

use super::{Decoding, ReportedText, Vocabulary, candidates, number, options, score};
use crate::contract::{EngineError, NumberJob, Request, TextJob};

impl Vocabulary {
    /// Starts decoding a request over the reports of another engine. A number begins right after the prompt:
    /// [`Vocabulary::reported_search`] reads one after text.
    ///
    /// # Errors
    /// If reports are not enough for this kind of request.
    pub fn reported_decoding(&self, request: &Request) -> Result<Box<dyn Decoding>, EngineError> {
        match request {
            Request::Number(NumberJob { after: Some(_), .. }) => {
                Err(unsupported("the number comes after text, which the engine has to write first"))
            }
            Request::Number(job) => {
                let search = self.reported_search(job, "", 0)?;
                search.ok_or_else(|| unsupported("the vocabulary has no numbers"))
            }
            Request::Score(job) => Ok(Box::new(score::ScoreDecoding::new(job, 0).over_reports())),
            Request::Candidates(job) => {
                Ok(Box::new(candidates::CandidatesDecoding::new(job, 0).over_reports()))
            }
            Request::Options(job) => Ok(Box::new(options::OptionsDecoding::new(job, 0).over_reports())),
            Request::Text(_) => Err(unsupported("the engine writes texts itself")),
            Request::Beams(_) => Err(unsupported("another engine supports no beam search for texts")),
            Request::Labels => Err(unsupported("another engine does not report the values of labels")),
            Request::Embedding(_) => Err(unsupported("another engine does not report hidden states")),
        }
    }

    /// Begins the text `number` of a job with [`TextJob::fields`].
    ///
    /// # Errors
    /// If the job needs what an engine does not report.
    pub fn reported_text(&self, job: &TextJob, number: u32) -> Result<ReportedText, EngineError> {
        ReportedText::new(job, self, number)
    }

    /// Starts a search for the number after a text that another engine has written. `begun` is the part of
    /// the text after the marker, and `stream` distinguishes several texts. Returns `None` if no number
    /// begins with `begun`.
    ///
    /// # Errors
    /// If the vocabulary writes numbers with a head.
    pub fn reported_search(
        &self,
        job: &NumberJob,
        begun: &str,
        stream: u64,
    ) -> Result<Option<Box<dyn Decoding>>, EngineError> {
        if self.grammar.is_point() || self.grammar.head_id().is_some() {
            return Err(unsupported("another engine does not report the value of a number head"));
        }
        Ok(number::reported_search(job, self, begun, stream))
    }
}

fn unsupported(reason: &str) -> EngineError {
    EngineError::Unsupported(reason.to_owned())
}
