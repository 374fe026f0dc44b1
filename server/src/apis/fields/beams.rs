//! The fields of a beam search.

use ntl_api::{CompletionRequest, EarlyStoppingOption};
use ntl_core::contract::{BeamJob, EarlyStopping};

use super::text::TextFields;
use crate::error::{AppError, check};

/// Default number of beams, as in the paper.
const BEAMS: u64 = 4;

const BEAMS_MAX: u64 = 128;

/// Returns the beam search for `n` texts, if the request has one.
pub(super) fn beam_job(
    request: &CompletionRequest,
    n: u64,
    text: &TextFields,
) -> Result<Option<BeamJob>, AppError> {
    if request.use_beam_search != Some(true) {
        refuse_options(request)?;
        return Ok(None);
    }
    let beams = request.beam_width.or(request.best_of).or(request.n).unwrap_or(BEAMS);
    let message = format!("must be from 1 to {BEAMS_MAX} and at least `n`");
    check("beam_width", (n..=BEAMS_MAX).contains(&beams), message)?;
    let length_penalty = request.length_penalty.unwrap_or(1.0);
    let fits = length_penalty.is_finite() && length_penalty.abs() <= 10.0;
    check("length_penalty", fits, "must be from -10 to 10")?;
    text.check_for_beams()?;
    let early_stopping = match request.early_stopping {
        None | Some(EarlyStoppingOption::At(false)) => EarlyStopping::No,
        Some(EarlyStoppingOption::At(true)) => EarlyStopping::Yes,
        Some(EarlyStoppingOption::Never(_)) => EarlyStopping::Never,
    };
    let beams = beams as usize;
    let n = n as u32;
    let max_tokens = text.job.max_tokens;
    Ok(Some(BeamJob { beams, n, max_tokens, length_penalty, early_stopping }))
}

/// Rejects options of a beam search without `use_beam_search`: they would be ignored silently. Their defaults
/// pass.
fn refuse_options(request: &CompletionRequest) -> Result<(), AppError> {
    let message = "is only allowed with `use_beam_search`: true";
    check("beam_width", request.beam_width.is_none(), message)?;
    let penalty = request.length_penalty.is_some_and(|penalty| (penalty - 1.0).abs() > 1e-9);
    check("length_penalty", !penalty, message)?;
    let ends = request.early_stopping.as_ref().is_some_and(|ends| *ends != EarlyStoppingOption::At(false));
    check("early_stopping", !ends, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::FieldNames;
    use super::*;
    use crate::request::ModelProfile;

    fn job(body: Value) -> Result<Option<BeamJob>, AppError> {
        let request: CompletionRequest = serde_json::from_value(body).unwrap();
        let n = request.n.unwrap_or(1);
        let profile = ModelProfile::for_tests();
        beam_job(&request, n, &TextFields::read(&request, n, FieldNames::COMPLETIONS, &profile)?)
    }

    #[test]
    fn the_number_of_beams_is_that_of_the_request_its_best_of_its_n_or_four() {
        for (body, beams) in [
            (json!({"beam_width": 7, "best_of": 3, "n": 2}), 7),
            (json!({"best_of": 3, "n": 2}), 3),
            (json!({"n": 2}), 2),
            (json!({}), 4),
        ] {
            let mut body = body;
            body["use_beam_search"] = json!(true);
            assert_eq!(job(body).unwrap().unwrap().beams, beams);
        }
        assert_eq!(job(json!({"n": 2})).unwrap(), None);
    }

    #[test]
    fn a_search_ends_early_or_not_as_asked() {
        for (early_stopping, ends) in [
            (json!(null), EarlyStopping::No),
            (json!(false), EarlyStopping::No),
            (json!(true), EarlyStopping::Yes),
            (json!("never"), EarlyStopping::Never),
        ] {
            let job =
                job(json!({"use_beam_search": true, "early_stopping": early_stopping})).unwrap().unwrap();
            assert_eq!(job.early_stopping, ends);
        }
    }

    #[test]
    fn what_a_search_cannot_do_is_refused_by_name() {
        for (field, value) in [
            ("beam_width", json!(0)),
            ("beam_width", json!(129)),
            ("length_penalty", json!(11)),
            ("temperature", json!(0.7)),
            ("top_p", json!(0.5)),
            ("stop", json!("x")),
            ("logprobs", json!(1)),
            ("guided_regex", json!("[0-9]+")),
            ("repetition_penalty", json!(1.2)),
            ("min_tokens", json!(2)),
        ] {
            let mut body = json!({"use_beam_search": true});
            body[field] = value;
            assert_eq!(job(body).unwrap_err().body().error.param.as_deref(), Some(field));
        }
        let fewer = job(json!({"use_beam_search": true, "n": 3, "beam_width": 2})).unwrap_err();
        assert_eq!(fewer.body().error.param.as_deref(), Some("beam_width"));
        for neutral in [json!({"temperature": 0}), json!({"temperature": 1, "top_p": 1})] {
            let mut body = neutral;
            body["use_beam_search"] = json!(true);
            assert!(job(body).is_ok(), "clients send these unasked");
        }
    }
}
