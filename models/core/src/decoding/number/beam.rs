//! A beam search for complete numbers: the most probable prefixes of each length, and the best numbers among
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Decoding, Progress, StepResult, Vocabulary};
use super::{Root, logits_request};
use crate::contract::{EngineError, Event, LogitsRequest, NodeId, NumberOutcome, PathRow};
use crate::numbers::{
    ClosedNumber, Distribution, NumberGrammar, NumberRules, NumberState, NumberValue, Softmax,
};

pub(super) struct NumberBeam {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    logits: LogitsRequest,
    beams: usize,
    /// Prefixes of the present length; the first `computed` of them have their logits.
    prefixes: Vec<BeamPrefix>,
    computed: usize,
    in_step: usize,
    longer: Vec<BeamPrefix>,
    /// Complete numbers with the probability of the whole text.
    found: Vec<ClosedNumber>,
    invalid: f64,
    nodes: usize,
    forward_passes: usize,
}

#[derive(Clone)]
struct BeamPrefix {
    row: PathRow,
    state: NumberState,
    probability: f64,
}

impl NumberBeam {
    pub(super) fn new(vocabulary: &Vocabulary, rules: NumberRules, beams: usize, root: Root) -> Self {
        Self {
            grammar: Arc::clone(&vocabulary.grammar),
            logits: logits_request(vocabulary, &rules, &root),
            rules,
            beams: beams.max(1),
            prefixes: vec![BeamPrefix { row: root.row, state: root.state, probability: 1.0 }],
            computed: 0,
            in_step: 0,
            longer: Vec::new(),
            found: Vec::new(),
            invalid: 0.0,
            nodes: 0,
            forward_passes: 0,
        }
    }

    fn extend(&mut self, prefix: &BeamPrefix, softmax: &Softmax<'_>, node: NodeId) {
        let expansion = self.grammar.expand(prefix.state, softmax, &self.rules, 0.0);
        self.invalid += expansion.invalid * prefix.probability;
        for ClosedNumber { value, probability } in expansion.closed {
            self.found.push(ClosedNumber { value, probability: probability * prefix.probability });
        }
        for child in expansion.children {
            if child.probability > 0.0 {
                self.longer.push(BeamPrefix {
                    row: PathRow::new(Some(node), child.token),
                    state: child.state,
                    probability: child.probability * prefix.probability,
                });
            }
        }
    }

    /// Keeps the best numbers and continues with longer prefixes. Returns `true` if none of these can be
    /// better.
    fn next_length(&mut self) -> bool {
        self.found.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        self.found.truncate(self.beams);
        self.longer.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        self.longer.truncate(self.beams);
        self.prefixes = std::mem::take(&mut self.longer);
        self.computed = 0;
        let best_prefix = self.prefixes.first().map_or(0.0, |prefix| prefix.probability);
        let worst_found = self.found.get(self.beams - 1).map_or(0.0, |closing| closing.probability);
        best_prefix <= worst_found
    }

    fn outcome(&self) -> NumberOutcome {
        let mut closed: HashMap<NumberValue, f64> = HashMap::new();
        for closing in &self.found {
            *closed.entry(closing.value).or_default() += closing.probability;
        }
        let mass: f64 = self.found.iter().map(|closing| closing.probability).sum();
        let open = (1.0 - mass - self.invalid).max(0.0);
        let distribution = Distribution::new(&closed, self.invalid, open);
        NumberOutcome::new(distribution, self.nodes, self.forward_passes)
    }
}

impl Decoding for NumberBeam {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = (self.prefixes.len() - self.computed).min(rows_max);
        let prefixes = self.prefixes[self.computed..][..self.in_step].iter();
        prefixes.map(|prefix| prefix.row.clone().with_logits(self.logits.clone())).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        self.nodes += self.in_step;
        for row in 0..self.in_step {
            let prefix = self.prefixes[self.computed + row].clone();
            let row = result.row(row);
            let state = prefix.state.with_head_value(row.head_value);
            self.extend(&BeamPrefix { state, ..prefix }, &row.softmax()?, row.node);
        }
        self.computed += self.in_step;
        if self.computed < self.prefixes.len() || !self.next_length() {
            return Ok(Progress::Running);
        }
        events.push(Event::Number(self.outcome()));
        Ok(Progress::Done)
    }
}
