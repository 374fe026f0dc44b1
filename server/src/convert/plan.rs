//! A completion request, checked: what to decode for each prompt and how to answer.
//!
//! Not here: fields that are refused (`unsupported`), token ids (`prompt`), options of numbers (`number_options`).

use ntl_api::{CompletionRequest, MethodName, NumberRequest, Stop};
use ntl_core::engine::{BeamJob, Request, TextJob};
use ntl_core::sampling::Sampling;

use super::beams::beam_job;
use super::number_method::TextBefore;
use super::number_options::NumberPlan;
use super::prompt::{PromptInput, prompts};
use super::unsupported::refuse_in_completion;
use super::{check, random_seed};
use crate::error::AppError;

/// Most tokens of a text where the request does not say.
const MAX_TOKENS: u64 = 16;

/// The same for a text before a number, which is a chain of thought rather than a phrase.
const MAX_TOKENS_BEFORE: u64 = 256;

const N_MAX: u64 = 128;
const LOGPROBS_MAX: u64 = 20;
const STOPS_MAX: usize = 4;

/// Every token is searched for stop strings, so their length is time.
const STOP_BYTES_MAX: usize = 1024;

/// What requests to one model must keep to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether prompt and answer live in different stacks.
    pub(crate) encoder_decoder: bool,
    /// Whether the vocabulary can write numbers.
    pub(crate) spells_numbers: bool,
    /// How numbers are found where only a number head says them.
    pub(crate) number_head: Option<MethodName>,
    /// Ids that the tokenizer knows.
    pub(crate) tokens: usize,
    /// Most tokens of a prompt.
    pub(crate) prompt_tokens_max: usize,
    /// Ids that end a sequence.
    pub(crate) eos_ids: Vec<u32>,
    /// Most tokens that a text may be asked to have.
    pub(crate) output_tokens_max: u64,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// What to complete.
    pub(crate) prompts: Vec<PromptInput>,
    /// What to decode for each prompt.
    pub(crate) wanted: Wanted,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) include_usage: bool,
    /// Whether to decode with the faults of the original code.
    pub(crate) paper_decoding: bool,
}

/// What to decode for each prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// Ordinary text.
    Text(TextPlan),
    /// The most probable texts.
    Beams(BeamJob),
    /// A number.
    Number(Box<NumberPlan>),
}

/// Ordinary text; the seed is decided for each prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextPlan {
    n: u32,
    max_tokens: usize,
    temperature: f64,
    top_p: f64,
    seed: Option<u64>,
    stop: Vec<String>,
    logprobs: Option<usize>,
    number_tokens: bool,
}

/// Checks a request against the rules of its model.
pub(crate) fn plan(request: CompletionRequest, rules: &Rules) -> Result<Plan, AppError> {
    let n = request.n.unwrap_or(1);
    check("n", (1..=N_MAX).contains(&n), format!("must be from 1 to {N_MAX}"))?;
    refuse_in_completion(&request.others, n)?;
    refuse_echo(&request, rules)?;
    let stream = request.stream.unwrap_or(false);
    let stream_options = request.stream_options.clone();
    check("stream_options", stream || stream_options.is_none(), "goes only with `stream`: true")?;
    let text = text_plan(&request, n, rules)?;
    let beams = beam_job(&request, n, text.max_tokens)?;
    let wanted = match request.number {
        None | Some(NumberRequest::Switch(false)) => beams.map_or(Wanted::Text(text), Wanted::Beams),
        Some(number) => {
            text.goes_with_a_number()?;
            check("use_beam_search", beams.is_none(), "does not go with `number`; see `number.method`")?;
            check("number", rules.spells_numbers, "needs a model whose vocabulary can write numbers")?;
            let options = match number {
                NumberRequest::Switch(_) => serde_json::Map::new(),
                NumberRequest::Options(options) => options,
            };
            let max_tokens = request.max_tokens.unwrap_or(MAX_TOKENS_BEFORE.min(rules.output_tokens_max));
            let before = text.before_a_number(max_tokens as usize);
            Wanted::Number(Box::new(NumberPlan::new(options, before, text.seed, rules.number_head)?))
        }
    };
    let prompts = match &wanted {
        Wanted::Text(_) | Wanted::Beams(_) => prompts(request.prompt, n, "n")?,
        Wanted::Number(number) => prompts(request.prompt, number.rationales(), "number.rationales")?,
    };
    let include_usage = stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let paper_decoding = request.paper_decoding.unwrap_or(false);
    Ok(Plan { prompts, wanted, stream, include_usage, paper_decoding })
}

fn refuse_echo(request: &CompletionRequest, rules: &Rules) -> Result<(), AppError> {
    let message = if rules.encoder_decoder {
        "echo is not available for encoder-decoder models"
    } else {
        "echo is not supported by this version"
    };
    match request.echo {
        Some(true) => Err(AppError::invalid("echo", message)),
        _ => Ok(()),
    }
}

fn text_plan(request: &CompletionRequest, n: u64, rules: &Rules) -> Result<TextPlan, AppError> {
    let max = rules.output_tokens_max;
    let max_tokens = request.max_tokens.unwrap_or(MAX_TOKENS.min(max));
    check("max_tokens", max_tokens <= max, format!("must be at most {max}"))?;
    let temperature = request.temperature.unwrap_or(1.0);
    check("temperature", (0.0..=2.0).contains(&temperature), "must be from 0 to 2")?;
    let top_p = request.top_p.unwrap_or(1.0);
    check("top_p", top_p > 0.0 && top_p <= 1.0, "must be above 0 and at most 1")?;
    let logprobs = request.logprobs;
    let fits = logprobs.is_none_or(|count| count <= LOGPROBS_MAX);
    check("logprobs", fits, format!("must be from 0 to {LOGPROBS_MAX}"))?;
    let number_tokens = request.number_tokens.unwrap_or(false);
    check("number_tokens", logprobs.is_some() || !number_tokens, "goes only with `logprobs`")?;
    Ok(TextPlan {
        n: n as u32,
        max_tokens: max_tokens as usize,
        temperature,
        top_p,
        seed: request.seed.map(i64::cast_unsigned),
        stop: stops(request.stop.clone())?,
        logprobs: logprobs.map(|count| count as usize),
        number_tokens,
    })
}

fn stops(stop: Option<Stop>) -> Result<Vec<String>, AppError> {
    let stops = match stop {
        None => Vec::new(),
        Some(Stop::One(one)) => vec![one],
        Some(Stop::Many(many)) => many,
    };
    check("stop", stops.len() <= STOPS_MAX, format!("must be at most {STOPS_MAX} strings"))?;
    let short = stops.iter().all(|stop| stop.len() <= STOP_BYTES_MAX);
    check("stop", short, format!("must be strings of at most {STOP_BYTES_MAX} bytes"))?;
    // An empty string would end every text at once; clients that send one mean none.
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

impl TextPlan {
    fn goes_with_a_number(&self) -> Result<(), AppError> {
        check("n", self.n == 1, "must be 1 with `number`: it has one distribution")?;
        check("logprobs", self.logprobs.is_none(), "does not go with `number`")?;
        check("stop", self.stop.is_empty(), "does not go with `number`; see `number.terminator`")
    }

    /// How the text before a number is written.
    fn before_a_number(&self, max_tokens: usize) -> TextBefore {
        TextBefore { temperature: self.temperature, top_p: self.top_p, max_tokens }
    }

    fn job(&self) -> TextJob {
        let seed = self.seed.unwrap_or_else(random_seed);
        TextJob {
            n: self.n,
            max_tokens: self.max_tokens,
            sampling: Sampling { temperature: self.temperature, top_p: self.top_p, seed },
            stop: self.stop.clone(),
            logprobs: self.logprobs,
        }
    }
}

impl Wanted {
    /// What to decode for one more prompt: without a seed in the request every prompt gets its own.
    pub(crate) fn request(&self) -> Request {
        match self {
            Self::Text(plan) => Request::Text(plan.job()),
            Self::Beams(job) => Request::Beams(job.clone()),
            Self::Number(plan) => Request::Number(plan.job()),
        }
    }

    /// How many answers each prompt gets.
    pub(crate) fn answers_per_prompt(&self) -> u32 {
        match self {
            Self::Text(plan) => plan.n,
            Self::Beams(job) => job.n,
            Self::Number(_) => 1,
        }
    }

    /// Whether the answers carry log-probabilities.
    pub(crate) fn with_logprobs(&self) -> bool {
        matches!(self, Self::Text(plan) if plan.logprobs.is_some())
    }

    /// Whether these say what number tokens say.
    pub(crate) fn with_number_tokens(&self) -> bool {
        matches!(self, Self::Text(plan) if plan.number_tokens)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::convert) fn rules() -> Rules {
        Rules {
            encoder_decoder: true,
            spells_numbers: true,
            number_head: None,
            tokens: 100,
            prompt_tokens_max: 8,
            eos_ids: vec![1],
            output_tokens_max: 4096,
        }
    }

    fn plan_of(body: &Value) -> Result<Plan, AppError> {
        plan(serde_json::from_value(body.clone()).unwrap(), &rules())
    }

    fn text(body: &Value) -> TextJob {
        match plan_of(body).unwrap().wanted.request() {
            Request::Text(job) => job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let job = text(&json!({"prompt": "x"}));
        assert_eq!((job.n, job.max_tokens, job.stop.len(), job.logprobs), (1, 16, 0, None));
        assert_eq!(
            (job.sampling.temperature.to_string(), job.sampling.top_p.to_string()),
            ("1".into(), "1".into())
        );
        let all_null = json!({"prompt": "x", "max_tokens": null, "temperature": null, "top_p": null, "seed": null,
            "n": null, "stop": null, "logprobs": null, "stream": null, "stream_options": null, "echo": null,
            "user": null, "number": null, "best_of": null, "suffix": null, "logit_bias": null});
        let job = text(&all_null);
        assert_eq!((job.n, job.max_tokens, job.stop.len(), job.logprobs), (1, 16, 0, None));
    }

    #[test]
    fn fields_reach_the_job() {
        let job = text(
            &json!({"prompt": "x", "max_tokens": 0, "temperature": 0, "top_p": 0.5, "seed": -1, "n": 128,
            "stop": ["a", "", "b"], "logprobs": 0}),
        );
        assert_eq!((job.n, job.max_tokens, job.logprobs), (128, 0, Some(0)));
        assert_eq!(job.sampling, Sampling { temperature: 0.0, top_p: 0.5, seed: u64::MAX });
        assert_eq!(job.stop, ["a", "b"]);
        assert_eq!(text(&json!({"prompt": "x", "stop": "a"})).stop, ["a"]);
    }

    #[test]
    fn prompts_of_one_request_share_a_seed_only_if_it_was_given() {
        let seed = |wanted: &Wanted| match wanted.request() {
            Request::Text(job) => job.sampling.seed,
            other => panic!("{other:?}"),
        };
        let random = plan_of(&json!({"prompt": ["x", "x"]})).unwrap().wanted;
        assert_ne!(seed(&random), seed(&random));
        let given = plan_of(&json!({"prompt": ["x", "x"], "seed": 5})).unwrap().wanted;
        assert_eq!((seed(&given), seed(&given)), (5, 5));
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (field, value) in [
            ("prompt", json!("")),
            ("prompt", json!([])),
            ("prompt", json!(["a", ""])),
            ("prompt", json!([[1], []])),
            ("prompt", json!(vec!["a"; 1025])),
            ("prompt", json!(null)),
            ("max_tokens", json!(4097)),
            ("max_tokens", json!(u64::MAX)),
            ("temperature", json!(-0.1)),
            ("temperature", json!(2.1)),
            ("top_p", json!(0)),
            ("top_p", json!(1.1)),
            ("n", json!(0)),
            ("n", json!(129)),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("stop", json!("x".repeat(1025))),
            ("logprobs", json!(21)),
            ("stream_options", json!({"include_usage": true})),
            ("echo", json!(true)),
            ("number_tokens", json!(true)),
            ("suffix", json!("x")),
            ("beam_width", json!(4)),
            ("length_penalty", json!(2)),
            ("early_stopping", json!("never")),
        ] {
            let mut body = json!({"prompt": "x"});
            body[field] = value.clone();
            let error = plan_of(&body).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(field), "{value}");
        }
        let many = plan_of(&json!({"prompt": vec!["a"; 9], "n": 128})).unwrap_err();
        assert_eq!(many.to_string(), "`n` asks for 1152 texts with 9 prompts; at most 1024");
        let number = json!({"after": "#", "rationales": 64});
        let many = plan_of(&json!({"prompt": vec!["a"; 17], "number": number})).unwrap_err();
        assert_eq!(many.to_string(), "`number.rationales` asks for 1088 texts with 17 prompts; at most 1024");
    }

    #[test]
    fn the_text_before_a_number_has_the_sampling_of_the_request_and_more_tokens() {
        let mut body =
            json!({"prompt": "x", "number": {"after": "#"}, "temperature": 0.5, "top_p": 0.25, "seed": 5});
        let after =
            |body: &Value, rules: &Rules| match plan(serde_json::from_value(body.clone()).unwrap(), rules)
                .unwrap()
                .wanted
                .request()
            {
                Request::Number(job) => job.after.unwrap(),
                other => panic!("{other:?}"),
            };
        let by_default = after(&body, &rules());
        assert_eq!(by_default.sampling, Sampling { temperature: 0.5, top_p: 0.25, seed: 5 });
        assert_eq!(by_default.max_tokens, 256);
        assert_eq!(after(&body, &Rules { output_tokens_max: 99, ..rules() }).max_tokens, 99);
        body["max_tokens"] = json!(3);
        assert_eq!(after(&body, &rules()).max_tokens, 3);
    }

    #[test]
    fn a_number_excludes_what_belongs_to_texts() {
        for (field, value) in [
            ("n", json!(2)),
            ("logprobs", json!(1)),
            ("stop", json!("x")),
            ("echo", json!(true)),
            ("number_tokens", json!(true)),
        ] {
            let mut body = json!({"prompt": "x", "number": {}});
            body[field] = value;
            assert_eq!(plan_of(&body).unwrap_err().body().error.param.as_deref(), Some(field));
        }
        for number in [json!(true), json!({})] {
            let plan = plan_of(&json!({"prompt": "x", "number": number})).unwrap();
            assert!(matches!(plan.wanted, Wanted::Number(_)));
        }
        let off = plan_of(&json!({"prompt": "x", "number": false})).unwrap();
        assert!(matches!(off.wanted, Wanted::Text(_)));
        let mute = Rules { spells_numbers: false, ..rules() };
        let request = serde_json::from_value(json!({"prompt": "x", "number": true})).unwrap();
        assert_eq!(plan(request, &mute).unwrap_err().body().error.param.as_deref(), Some("number"));
    }
}
