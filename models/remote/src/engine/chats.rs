//! Numbers and options from whole answers of chats, which are sampled independently: for engines that report
//! no probabilities.
//!
//! All answers of a look are requested together, and are read in the order in which they were requested, not
//! in the order in which they arrived: fast answers may have other values. Invariant: no answer is left out
//! because of its value. One that did not arrive in time, or whose failure may depend on it, is open. Any
//! other failure fails the job.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_core::contract::{
    AfterMarker, EngineError, Event, NumberJob, NumberMethod, NumberOutcome, OptionsOutcome, Precision,
    RefusedText,
};
use ntl_core::numbers::{NumberReading, NumberRules};
use ntl_core::samples::{Looks, NumberSamples, OptionNames, OptionReading, OptionSamples};
use serde_json::{Map, Value};

use super::client::ClientEvents;
use super::requests::Requests;
use super::{ChatAnswer, ChatEnd, ChatQuery, EngineUsage};

/// Number of refused texts that are reported, and of their characters.
const REFUSED_MAX: usize = 3;
const REFUSED_CHARS_MAX: usize = 40;

/// A chat, and what to read from its answers.
#[derive(Debug, Clone)]
pub struct ChatJob {
    /// The messages, and further fields for the engine.
    pub chat: Arc<Map<String, Value>>,
    /// Maximum number of tokens of each answer, reasoning included.
    pub max_tokens: usize,
    pub seed: u64,
    pub wanted: ChatWanted,
    /// See [`Job::deadline`](ntl_core::contract::Job::deadline).
    pub deadline: Option<(Instant, Duration)>,
    /// See [`Job::client`](ntl_core::contract::Job::client).
    pub client: u64,
}

#[derive(Debug, Clone)]
pub enum ChatWanted {
    /// Its method is to sample.
    Number(Box<NumberJob>),
    Options(SampledOptions),
}

/// Options that answers name.
#[derive(Debug, Clone)]
pub struct SampledOptions {
    pub names: OptionNames,
    pub samples: usize,
    /// Number of jobs whose results are averaged, this one included.
    pub orders: usize,
}

impl ChatJob {
    /// Maximum number of answers.
    pub(super) fn samples(&self) -> usize {
        match &self.wanted {
            ChatWanted::Number(number) => match number.method {
                NumberMethod::Sample { samples, .. } => samples as usize,
                _ => 0,
            },
            ChatWanted::Options(options) => options.samples,
        }
    }

    /// The requests for the answers with these numbers.
    fn queries(&self, numbers: Range<usize>) -> Vec<ChatQuery> {
        let Self { chat, max_tokens, seed, .. } = self;
        let (max_tokens, seed) = (*max_tokens, *seed);
        let mut queries = Vec::with_capacity(numbers.len());
        for number in numbers {
            queries.push(ChatQuery { chat: Arc::clone(chat), max_tokens, seed, stream: number as u64 });
        }
        queries
    }
}

/// Samples the answers of a job, and returns its last event.
pub(super) async fn sampled(
    requests: &Requests<'_>,
    job: &ChatJob,
    client: &ClientEvents,
) -> Result<Event, EngineError> {
    match &job.wanted {
        ChatWanted::Number(number) => number_of(requests, job, number, client).await.map(Event::Number),
        ChatWanted::Options(options) => options_of(requests, job, options).await.map(Event::Options),
    }
}

async fn options_of(
    requests: &Requests<'_>,
    job: &ChatJob,
    options: &SampledOptions,
) -> Result<OptionsOutcome, EngineError> {
    let mut tokens: u64 = 0;
    let mut readings = Vec::with_capacity(options.samples);
    let answers = requests.chats(job.queries(0..options.samples), None).await?;
    check_any(&answers)?;
    for answer in answers.into_iter().flatten() {
        tokens = tokens.saturating_add(answer.usage.completion_tokens);
        readings.push(match answer.end {
            ChatEnd::Refused => OptionReading::Invalid,
            ChatEnd::Lost(_) => OptionReading::Open,
            end => options.names.read(&answer.text, end == ChatEnd::Cut),
        });
    }
    let looks = Looks::once(options.samples, options.orders);
    let look = looks.iter().next().ok_or_else(no_samples)?;
    let samples = OptionSamples::new(&readings, options.names.len(), look);
    Ok(OptionsOutcome::of_answers(samples, usize::try_from(tokens).unwrap_or(usize::MAX)))
}

/// Fails with the error of the first answer if all were lost.
fn check_any(answers: &[Option<ChatAnswer>]) -> Result<(), EngineError> {
    let mut first = None;
    for answer in answers {
        match answer.as_ref().map(|answer| &answer.end) {
            Some(ChatEnd::Lost(error)) => first = first.or(Some(error)),
            _ => return Ok(()),
        }
    }
    match first {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}

fn no_samples() -> EngineError {
    EngineError::Unsupported("this engine reports no probabilities: its answers are sampled".to_owned())
}

async fn number_of(
    requests: &Requests<'_>,
    job: &ChatJob,
    number: &NumberJob,
    client: &ClientEvents,
) -> Result<NumberOutcome, EngineError> {
    let NumberMethod::Sample { samples, precision, .. } = &number.method else { return Err(no_samples()) };
    let looks = match (precision, number.time_max) {
        (None, None) => Looks::once(*samples as usize, 1),
        _ => Looks::doubling(*samples as usize),
    };
    let end = number.time_max.map(|time_max| Instant::now() + time_max);
    let mut reader = Reader::new(number);
    let mut found = None;
    let mut is_late = false;
    for look in looks.iter() {
        if found.is_some() && end.is_some_and(|end| end <= Instant::now()) {
            is_late = true;
            break;
        }
        let first = reader.readings.len();
        let answers = requests.chats(job.queries(first..look.samples), end).await?;
        if first == 0 {
            check_any(&answers)?;
        }
        for answer in answers {
            is_late |= answer.is_none();
            reader.read(answer.as_ref());
        }
        if first == 0 {
            reader.show(client).await;
        }
        let (samples, distribution) = NumberSamples::new(&reader.readings, look);
        let is_precise = is_precise(precision.as_ref(), &samples);
        found = Some((samples, distribution, is_precise));
        if is_precise || is_late {
            break;
        }
    }
    let (samples, distribution, is_precise) = found.ok_or_else(no_samples)?;
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let usage = reader.usage;
    let outcome = NumberOutcome::new(distribution, count(usage.completion_tokens), count(usage.requests));
    Ok(NumberOutcome {
        truncated: !is_precise && (is_late || precision.is_some()),
        refused: if number.reports_refused { reader.refused() } else { Vec::new() },
        answers: Some(Box::new(samples)),
        ..outcome
    })
}

fn is_precise(precision: Option<&Precision>, samples: &NumberSamples) -> bool {
    precision.is_some_and(|precision| precision.is_reached_by_samples(samples))
}

/// Reads the numbers of answers.
struct Reader<'a> {
    rules: NumberRules,
    after: Option<&'a AfterMarker>,
    readings: Vec<NumberReading>,
    usage: EngineUsage,
    /// The beginnings of invalid answers, with their numbers.
    invalid: HashMap<String, usize>,
    /// The first answer up to its marker.
    first_text: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(number: &'a NumberJob) -> Self {
        let rules = NumberRules::of_answers(number.limits, number.terminator.clone(), number.values);
        let after = number.after.as_ref();
        let usage = EngineUsage::default();
        Self { rules, after, readings: Vec::new(), usage, invalid: HashMap::new(), first_text: None }
    }

    /// Reads the next answer; `None` if it did not arrive in time.
    fn read(&mut self, answer: Option<&ChatAnswer>) {
        let Some(answer) = answer else {
            self.readings.push(NumberReading::Open);
            return;
        };
        self.usage.add(answer.usage);
        let reading = match &answer.end {
            ChatEnd::Refused => NumberReading::Invalid,
            ChatEnd::Lost(_) => NumberReading::Open,
            end => self.number(&answer.text, *end == ChatEnd::Cut),
        };
        if reading == NumberReading::Invalid {
            let text: String = answer.text.trim().chars().take(REFUSED_CHARS_MAX).collect();
            *self.invalid.entry(text).or_default() += 1;
        }
        self.readings.push(reading);
    }

    /// Reads the number at the beginning of a text, or after its marker.
    fn number(&mut self, text: &str, is_cut: bool) -> NumberReading {
        let Some(after) = self.after else { return self.rules.read_answer(text, is_cut) };
        match text.split_once(after.stop()) {
            Some((before, rest)) => {
                if self.readings.is_empty() {
                    self.first_text = Some(format!("{before}{}", after.marker));
                }
                self.rules.read_answer(rest, is_cut)
            }
            None if is_cut => NumberReading::Open,
            None => NumberReading::Invalid,
        }
    }

    /// Sends the text of the first answer before its number.
    async fn show(&mut self, client: &ClientEvents) {
        if let Some(text) = self.first_text.take() {
            client.send_text(text, 0).await;
        }
    }

    /// The most frequent texts that are not admitted numbers.
    fn refused(self) -> Vec<RefusedText> {
        let total = self.readings.len().max(1) as f64;
        let mut refused: Vec<RefusedText> = Vec::with_capacity(self.invalid.len());
        for (text, count) in self.invalid {
            refused.push(RefusedText { text, probability: count as f64 / total });
        }
        refused.sort_by(|a, b| b.probability.total_cmp(&a.probability).then_with(|| a.text.cmp(&b.text)));
        refused.truncate(REFUSED_MAX);
        refused
    }
}
