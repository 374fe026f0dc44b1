//! Sends the questions of a suite to a decision model: each one alone, and again in the ways that the
//! settings request.

use indexmap::IndexMap;

use super::{Evaluator, Phase};
use crate::data::decisions::{Question, QuestionKind};
use crate::error::OutputError;
use crate::run::decisions::{Asked, Decision, DecisionApi, DecisionsBody};
use crate::run::reply::{Answer, Reply};
use crate::run::runner::RunError;

/// Maximum number of questions in one request. vLLM accepts no more.
const BATCH_MAX: usize = 64;

/// The questions of one request.
struct QuestionRequest<'q> {
    /// The indices of their items.
    items: Vec<usize>,
    asked: Vec<Asked<'q>>,
}

/// The answer to each item's question; `None` for items without a request.
type Decisions = Vec<Option<Result<Decision, String>>>;

impl<'a> Evaluator<'a, '_> {
    /// Returns one reply per item, with the changes of its probabilities.
    pub(super) async fn run_questions(&mut self, api: DecisionApi) -> Result<Vec<Reply<'a>>, RunError> {
        let items = self.items;
        let template = self.template;
        let settings = &template.decisions;
        let mut questions = Vec::new();
        for (index, item) in items.iter().enumerate() {
            questions.extend(item.decision.as_ref().map(|question| (index, question)));
        }
        let with_options: Vec<(usize, &Question)> =
            questions.iter().copied().filter(|(_, question)| question.expected_index().is_some()).collect();
        let phase = |title, id| Phase { title, id, route: api.route() };
        let first = self.ask_questions(api, phase("", "answer"), alone(&questions)).await?;
        let mut replies = Vec::with_capacity(items.len());
        for (index, question) in &questions {
            let answer = match &first[*index] {
                Some(Ok(decision)) => Ok(Answer::of_decision(question, decision.clone())),
                Some(Err(reason)) => Err(reason.clone()),
                None => Err("it was not requested".to_owned()),
            };
            replies.push(Reply::new(&items[*index], answer));
        }
        for reordering in &settings.reorder {
            let mut requests = alone(&with_options);
            requests.retain(|request| request.asked.iter().all(|asked| is_choice(asked.question)));
            for asked in requests.iter_mut().flat_map(|request| &mut request.asked) {
                asked.reordering = Some(*reordering);
            }
            let again =
                self.ask_questions(api, phase(reordering.name(), reordering.name()), requests).await?;
            for (index, change) in changes(&first, &again) {
                let order = &mut replies[index].changes.order;
                *order = Some(order.map_or(change, |other| other.max(change)));
            }
        }
        if settings.repeat {
            let again = self.ask_questions(api, phase("repeated", "repeated"), alone(&with_options)).await?;
            for (index, change) in changes(&first, &again) {
                replies[index].changes.repeat = Some(change);
            }
        }
        if settings.batch {
            let again = self.ask_questions(api, phase("together", "together"), together(&questions)).await?;
            for (index, change) in changes(&first, &again) {
                replies[index].changes.batch = Some(change);
            }
        }
        Ok(replies)
    }

    /// Returns the answers, and prints how many requests of a later phase failed.
    async fn ask_questions(
        &mut self,
        api: DecisionApi,
        phase: Phase,
        requests: Vec<QuestionRequest<'_>>,
    ) -> Result<Decisions, RunError> {
        let template = self.template;
        let mut bodies = Vec::with_capacity(requests.len());
        for QuestionRequest { items, asked } in &requests {
            let body = api.body(&template.model, asked, &template.decisions);
            bodies.extend(items.first().map(|first| (*first, body)));
        }
        let answers = self
            .phase_by_index(phase, bodies, |index, response: DecisionsBody| {
                api.read(&requests[index].asked, &response)
            })
            .await?;
        let failures: Vec<&String> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        if let Some(first) = failures.first()
            && !phase.title.is_empty()
        {
            let failed = failures.len();
            let Phase { title, .. } = phase;
            writeln!(
                self.err,
                "{} {title}: {failed} of {} requests failed, the first with: {first}",
                self.name,
                requests.len()
            )
            .map_err(OutputError)?;
        }
        let mut decisions: Decisions = vec![None; self.items.len()];
        for (request, answer) in requests.iter().zip(answers) {
            for (place, index) in request.items.iter().enumerate() {
                decisions[*index] = match &answer {
                    Ok(answers) => answers.get(place).cloned().map(Ok),
                    Err(reason) => Some(Err(reason.clone())),
                };
            }
        }
        Ok(decisions)
    }
}

fn is_choice(question: &Question) -> bool {
    matches!(question.kind, QuestionKind::Choice { .. })
}

/// Returns one request per question.
fn alone<'q>(questions: &[(usize, &'q Question)]) -> Vec<QuestionRequest<'q>> {
    let mut requests = Vec::with_capacity(questions.len());
    for (index, question) in questions {
        requests
            .push(QuestionRequest { items: vec![*index], asked: vec![Asked { question, reordering: None }] });
    }
    requests
}

/// Returns requests with all questions about one state, without states that have a single question.
fn together<'q>(questions: &[(usize, &'q Question)]) -> Vec<QuestionRequest<'q>> {
    let mut groups: IndexMap<String, Vec<(usize, &Question)>> = IndexMap::new();
    for (index, question) in questions {
        groups.entry(question.state.to_string()).or_default().push((*index, question));
    }
    let mut requests = Vec::new();
    for group in groups.values().flat_map(|group| group.chunks(BATCH_MAX)).filter(|group| group.len() > 1) {
        let mut request = QuestionRequest { items: Vec::new(), asked: Vec::new() };
        for (index, question) in group {
            request.items.push(*index);
            request.asked.push(Asked { question, reordering: None });
        }
        requests.push(request);
    }
    requests
}

/// Returns the indices of the items with two answers, and how far these differ.
fn changes(first: &Decisions, again: &Decisions) -> Vec<(usize, f64)> {
    let mut changes = Vec::new();
    for (index, pair) in first.iter().zip(again).enumerate() {
        if let (Some(Ok(first)), Some(Ok(again))) = pair {
            changes.extend(first.change(again).map(|change| (index, change)));
        }
    }
    changes
}
