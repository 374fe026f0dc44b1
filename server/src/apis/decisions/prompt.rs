//! The prompts of a decision, and the tokens of its options.
//!
//! The text of a prompt is the state, then the question, so that all questions share the computed prefix of
//! the state. A checkpoint with a chat template reads the text as a message of the user, without reasoning;
//! any other one reads it with `Answer:` at the end.

use std::collections::BTreeMap;

use ntl_api::{DecisionPrompt, ReadName};
use ntl_core::contract::{OptionsJob, Request};
use ntl_core::samples::{OptionName, OptionNames};
use ntl_core::{Prompt, Token};
use ntl_remote::{ChatWanted, SampledOptions};
use ntl_text::chat::{ChatMessage, ChatTemplate, Conversation, TextTemplate};
use ntl_text::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{AnswerOption, Decision, Question, QuestionKind};
use crate::blocking::check_wanted;
use crate::error::{AppError, check};
use crate::request::ModelProfile;

/// Maximum size of the texts of all prompts of a request.
const TEXTS_BYTES_MAX: usize = 32 << 20;

/// Up to this many options are labelled with letters.
const LETTERS: usize = 26;

/// Ends the text for a checkpoint without a chat template.
const CUE: &str = "\nAnswer:";

/// Begins reasoning in the prompts of some chat templates.
const THINK: &str = "<think>";

/// The end of reasoning.
const THINK_END: &str = "\n\n</think>\n\n";

/// A prompt for the engine.
pub(crate) struct PreparedPrompt {
    /// The index of its question.
    pub(crate) question: usize,
    pub(crate) prompt: Prompt,
    pub(crate) request: Request,
    /// Whether the prompt lists the options, if there are any.
    pub(crate) is_listed: bool,
    /// The text and the answers that are read after it, of a dry run.
    shown: Option<(String, Vec<String>)>,
}

impl PreparedPrompt {
    /// The size of its description, 0 without a dry run.
    pub(crate) fn shown_bytes(&self) -> usize {
        const TOKEN_BYTES: usize = 8;
        let Some((text, answers)) = &self.shown else { return 0 };
        text.len() + TOKEN_BYTES * self.prompt.len() + answers.iter().map(String::len).sum::<usize>()
    }

    /// Its description in the response to a dry run.
    pub(crate) fn into_shown(self) -> DecisionPrompt {
        let (text, answers) = self.shown.unwrap_or_default();
        DecisionPrompt {
            question: self.question as u64,
            text,
            token_ids: self.prompt.ids().collect(),
            answers,
        }
    }
}

/// The variables of the template.
#[derive(Serialize)]
struct Variables<'a> {
    state: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    instructions: &'a str,
    /// `labels` or `texts`.
    read: ReadName,
    /// Whether labels are letters.
    letters: bool,
    options: Vec<VariableOption<'a>>,
    minimum: Option<String>,
    maximum: Option<String>,
    step: Option<String>,
    unit: Option<&'a str>,
}

#[derive(Serialize)]
struct VariableOption<'a> {
    /// What the model is to write; null if that is the text.
    label: Option<String>,
    text: &'a str,
    description: Option<&'a str>,
}

/// Makes the prompts of all questions and orders.
pub(crate) fn prepare(
    decision: &Decision,
    template: &TextTemplate,
    tokenizer: &Tokenizer,
    profile: &ModelProfile,
) -> Result<Vec<PreparedPrompt>, AppError> {
    // Each prompt has the whole state.
    check_bytes(decision.field, decision.state_bytes())?;
    let reader = AnswerReader::new(tokenizer, profile);
    let mut prompts = Vec::new();
    let mut bytes = 0;
    for (index, question) in decision.questions.iter().enumerate() {
        let first = prompts.len();
        let mut is_listed = true;
        let mut order = 0;
        while order < question.prompts() {
            check_wanted()?;
            let (text, answers) = question.layout(&decision.state, order, is_listed, template)?;
            let text = reader.whole(text, &question.param)?;
            bytes += text.len();
            check_bytes(decision.field, bytes)?;
            let Some(prompt) = reader.prompt(&text, &question.param)? else {
                if is_listed && question.lists_options() {
                    // Not every order may fit, since the tokens of a list depend on its order.
                    prompts.truncate(first);
                    (is_listed, order) = (false, 0);
                    continue;
                }
                let max = profile.prompt_tokens_max;
                let message =
                    format!("and the text it is about have more than the {max} tokens that the model reads");
                return Err(AppError::field(&question.param, message));
            };
            let request = reader.request(question, &text, &answers, prompt.len())?;
            let shown = decision.is_dry_run.then_some((text, answers));
            prompts.push(PreparedPrompt { question: index, prompt, request, is_listed, shown });
            // Without a list of the options, all orders are the same.
            order += if is_listed { 1 } else { question.prompts() };
        }
    }
    Ok(prompts)
}

/// A prompt for an engine that answers chats.
pub(crate) struct PreparedChat {
    /// The index of its question.
    pub(crate) question: usize,
    pub(crate) chat: Map<String, Value>,
    pub(crate) wanted: ChatWanted,
    /// Its description in the response to a dry run.
    pub(crate) shown: Option<DecisionPrompt>,
}

/// Makes the chats of all questions and orders. Each is one message of the user.
pub(crate) fn prepare_chats(
    decision: &Decision,
    template: &TextTemplate,
) -> Result<Vec<PreparedChat>, AppError> {
    check_bytes(decision.field, decision.state_bytes())?;
    let mut bytes = 0;
    let mut chats = Vec::new();
    for (index, question) in decision.questions.iter().enumerate() {
        for order in 0..question.prompts() {
            check_wanted()?;
            let (text, answers) = question.layout(&decision.state, order, true, template)?;
            bytes += text.len();
            check_bytes(decision.field, bytes)?;
            let shown = decision.is_dry_run.then(|| DecisionPrompt {
                question: index as u64,
                text: text.clone(),
                token_ids: Vec::new(),
                answers: answers.clone(),
            });
            let messages = json!([{"role": "user", "content": text}]);
            let chat = Map::from_iter([("messages".to_owned(), messages)]);
            chats.push(PreparedChat { question: index, chat, wanted: question.wanted(answers), shown });
        }
    }
    Ok(chats)
}

fn check_bytes(field: &str, bytes: usize) -> Result<(), AppError> {
    let message = format!("have prompts of {bytes} bytes together; at most {TEXTS_BYTES_MAX} are allowed");
    check(field, bytes <= TEXTS_BYTES_MAX, message)
}

impl Question {
    /// Returns what to read from sampled answers. `answers`: what the model is to write for each option.
    fn wanted(&self, answers: Vec<String>) -> ChatWanted {
        if let QuestionKind::Number(number) = &self.kind {
            return ChatWanted::Number(Box::new(number.job.clone()));
        }
        let mut names = Vec::with_capacity(answers.len());
        for (option, answer) in self.kind.options().iter().zip(answers) {
            let label = (answer != option.text).then_some(answer);
            names.push(OptionName { label, text: option.text.clone() });
        }
        let names = OptionNames::new(names);
        ChatWanted::Options(SampledOptions { names, samples: self.reading.samples, orders: self.prompts() })
    }

    /// Returns whether its prompt has a list of options, which may be too long for a model.
    fn lists_options(&self) -> bool {
        matches!(self.kind, QuestionKind::Choice(_) | QuestionKind::Score(_))
    }

    /// Returns the text of the question after the state, with its options rotated by `order`, and the answers
    /// of the options in the order of the request. If the options are not listed, their texts are the
    /// answers.
    fn layout(
        &self,
        state: &str,
        order: usize,
        is_listed: bool,
        template: &TextTemplate,
    ) -> Result<(String, Vec<String>), AppError> {
        let options = self.kind.options();
        let letters = options.len() <= LETTERS;
        let mut answers = vec![String::new(); options.len()];
        let mut shown = Vec::with_capacity(options.len());
        for position in 0..options.len() {
            let index = (position + order) % options.len();
            let AnswerOption { text, description } = &options[index];
            if !is_listed {
                answers[index].clone_from(text);
                continue;
            }
            let label = self.label(index, position, letters);
            answers[index] = label.clone().unwrap_or_else(|| text.clone());
            shown.push(VariableOption { label, text, description: description.as_deref() });
        }
        let criteria = match &self.kind {
            QuestionKind::Number(number) => Some(&number.criteria),
            _ => None,
        };
        let variables = Variables {
            state,
            kind: self.kind.name(),
            instructions: &self.instructions,
            read: if is_listed { self.reading.read } else { ReadName::Texts },
            letters,
            options: shown,
            minimum: criteria.and_then(|criteria| criteria.minimum).map(|value| value.to_string()),
            maximum: criteria.and_then(|criteria| criteria.maximum).map(|value| value.to_string()),
            step: criteria.and_then(|criteria| criteria.step).map(|value| value.to_string()),
            unit: criteria.and_then(|criteria| criteria.unit.as_deref()),
        };
        let text = template.render(&variables).map_err(|error| {
            AppError::invalid(&self.param, format!("`{}`: the template of decisions: {error}", self.param))
        })?;
        Ok((text, answers))
    }

    /// The label of an option: the index of a level, the position of another option.
    fn label(&self, index: usize, position: usize, letters: bool) -> Option<String> {
        match (&self.kind, self.reading.read) {
            (QuestionKind::Predicate(_) | QuestionKind::Number(_), _) | (_, ReadName::Texts) => None,
            (QuestionKind::Score(_), ReadName::Labels) => Some(index.to_string()),
            (QuestionKind::Choice(_), ReadName::Labels) if letters => {
                Some(char::from(b'A' + position as u8).to_string())
            }
            (QuestionKind::Choice(_), ReadName::Labels) => Some((position + 1).to_string()),
        }
    }
}

/// Tokenizes prompts and answers for one model.
struct AnswerReader<'a> {
    tokenizer: &'a Tokenizer,
    profile: &'a ModelProfile,
    template: Option<&'a ChatTemplate>,
    /// The ids that end an answer.
    ends: Vec<u32>,
}

impl<'a> AnswerReader<'a> {
    fn new(tokenizer: &'a Tokenizer, profile: &'a ModelProfile) -> Self {
        let template = tokenizer.chat_template();
        let mut reader = Self { tokenizer, profile, template, ends: profile.eos_ids.clone() };
        let further = match template {
            Some(template) => reader.turn_end(template),
            // A text without turns ends at the end of the line.
            None => reader.line_ends(),
        };
        reader.ends.extend(further);
        reader
    }

    /// The special token that the chat template writes after an answer, if it writes one.
    fn turn_end(&self, template: &ChatTemplate) -> Vec<u32> {
        const ANSWER: &str = "ANSWER_OF_THE_ASSISTANT";
        let messages = vec![ChatMessage::new("user", "x"), ChatMessage::new("assistant", ANSWER)];
        let text = template.render(&conversation(messages, false)).unwrap_or_default();
        let Some((_, after)) = text.rsplit_once(ANSWER) else { return Vec::new() };
        let ids = self.tokenizer.encode(after, false).unwrap_or_default();
        ids.into_iter().take(1).filter(|id| self.profile.special_ids.contains(id)).collect()
    }

    /// The tokens of one or two line feeds after an answer.
    fn line_ends(&self) -> Vec<u32> {
        let mut ends = Vec::new();
        let alone = self.tokenizer.encode(" A", false).unwrap_or_default();
        for text in [" A\n", " A\n\n"] {
            let ids = self.tokenizer.encode(text, false).unwrap_or_default();
            // A vocabulary without line feeds reads one as a space or as an unknown token.
            if let Some(&[end]) = ids.strip_prefix(&*alone)
                && self.tokenizer.token_bytes(end).starts_with(b"\n")
            {
                ends.push(end);
            }
        }
        ends
    }

    /// Returns the text that the model reads.
    fn whole(&self, text: String, param: &str) -> Result<String, AppError> {
        let Some(template) = self.template else { return Ok(text + CUE) };
        let mut text = template
            .render(&conversation(vec![ChatMessage::new("user", text)], true))
            .map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?;
        if text.trim_end().ends_with(THINK) {
            text.truncate(text.trim_end().len());
            text.push_str(THINK_END);
        }
        Ok(text)
    }

    /// Returns `None` if the prompt is too long for the model.
    fn prompt(&self, text: &str, param: &str) -> Result<Option<Prompt>, AppError> {
        if self.profile.check_bytes(text).is_err() {
            return Ok(None);
        }
        // A chat template writes the special tokens itself.
        let prompt = self.tokenizer.encode_prompt(text, self.template.is_none());
        let mut prompt = prompt.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?;
        let last = prompt.tokens.last().map(|token| token.id);
        let ends_itself = self.template.is_none() && !self.profile.encoder_decoder;
        // Some tokenizers end every text, and the answer has to follow.
        if ends_itself && self.profile.ends(last) {
            prompt.tokens.pop();
        }
        Ok((prompt.len() <= self.profile.prompt_tokens_max).then_some(prompt))
    }

    fn request(
        &self,
        question: &Question,
        text: &str,
        answers: &[String],
        prompt_tokens: usize,
    ) -> Result<Request, AppError> {
        if let QuestionKind::Number(number) = &question.kind {
            return Ok(Request::Number(number.job.clone()));
        }
        let tail = if self.profile.encoder_decoder { "" } else { last_line(text) };
        let before = self.encode(question, tail)?;
        let mut options: Vec<Vec<Token>> = Vec::with_capacity(answers.len());
        for (index, answer) in answers.iter().enumerate() {
            let tokens = self.answer_tokens(question, tail, &before, answer)?;
            let contains_end = tokens.iter().any(|token| self.ends.contains(&token.id));
            let message = format!("has an option, number {index}, that contains the end of an answer");
            check(&question.options_param, !contains_end && !tokens.is_empty(), message)?;
            let contains_number = tokens.iter().any(|token| token.value.is_some());
            let message = format!(
                "has an option, number {index}, that is read as `{answer}`: this model writes all numbers with one token"
            );
            check(&question.options_param, !contains_number, message)?;
            options.push(tokens);
        }
        let job = OptionsJob::new(&options, &self.ends, question.reading.tolerance)
            .map_err(|equal| question.equal_options(equal.first, equal.second))?;
        let (longest, max) = (job.tokens_max(), self.profile.prompt_tokens_max);
        let fits = self.profile.encoder_decoder || prompt_tokens + longest <= max;
        let message =
            format!("has {longest} tokens after a prompt of {prompt_tokens}, the model reads at most {max}");
        check(&question.options_param, fits, message)?;
        let max = self.profile.output_tokens_max;
        let message = format!("has an option of {longest} tokens, at most {max} are read");
        check(&question.options_param, longest as u64 <= max, message)?;
        Ok(Request::Options(job))
    }

    /// The tokens of an answer after the prompt, whose last line is `tail` with the tokens `before`.
    fn answer_tokens(
        &self,
        question: &Question,
        tail: &str,
        before: &[Token],
        answer: &str,
    ) -> Result<Vec<Token>, AppError> {
        let space = if self.template.is_none() && !self.profile.encoder_decoder { " " } else { "" };
        let whole = self.encode(question, &format!("{tail}{space}{answer}"))?;
        match whole.strip_prefix(before) {
            Some(tokens) => Ok(tokens.to_vec()),
            // The tokens of the prompt stay as they are.
            None => self.encode(question, &format!("{space}{answer}")),
        }
    }

    fn encode(&self, question: &Question, text: &str) -> Result<Vec<Token>, AppError> {
        let param = &question.options_param;
        let prompt = self.tokenizer.encode_prompt(text, false);
        let prompt = prompt.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?;
        Ok(prompt.tokens)
    }
}

/// The last line that is not empty, with everything after it.
fn last_line(text: &str) -> &str {
    let end = text.trim_end().len();
    let start = text[..end].rfind('\n').map_or(0, |at| at + 1);
    &text[start..]
}

fn conversation(messages: Vec<ChatMessage>, add_generation_prompt: bool) -> Conversation {
    Conversation {
        messages,
        tools: Vec::new(),
        documents: Vec::new(),
        add_generation_prompt,
        continue_final_message: false,
        variables: BTreeMap::from([("enable_thinking".to_owned(), false.into())]),
    }
}
