//! The template of the questions of decisions, and the names that stand for the first model.

use std::sync::{Arc, LazyLock};

use ntl_text::chat::TextTemplate;

/// Names of hosted models that clients send by default.
pub(crate) const MODEL_ALIASES: [&str; 2] = ["jev-latest", "gpt-6-luna"];

/// The template unless `--decision-template` replaces it.
#[expect(clippy::expect_used, reason = "the template is a part of the program, and tests compile it")]
pub(crate) fn default_decision_template() -> Arc<TextTemplate> {
    static TEMPLATE: LazyLock<Arc<TextTemplate>> = LazyLock::new(|| {
        let template = TextTemplate::new(include_str!("decision.jinja"));
        Arc::new(template.expect("the template of the program compiles"))
    });
    Arc::clone(&TEMPLATE)
}
