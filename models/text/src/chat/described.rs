//! Tools for chat templates that read none: a system message describes them, and earlier calls and their
//! results become texts, in the form of Hermes.

use super::{ChatMessage, Conversation};

/// The text before the functions, and the text after them.
const BEFORE: &str = "You can call functions. Each line between <tools> and </tools> describes one of them as JSON:\n<tools>\n";
const AFTER: &str = "</tools>\n\nTo call a function, write its name and its arguments as JSON:\n<tool_call>\n\
    {\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n</tool_call>\n\
    The result of a call follows between <tool_response> and </tool_response>.";

/// The message that describes the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DescribedIn {
    /// The system message. It is added if the conversation has none.
    SystemMessage,
    /// The first message of the user, for templates without system messages.
    UserMessage,
}

/// Returns whether a prompt has the description of the tools.
pub(super) fn is_described(prompt: &str) -> bool {
    prompt.contains(BEFORE.trim_end())
}

impl Conversation {
    /// Returns a conversation with the same content for a template that reads no tools.
    pub(super) fn described(&self, described_in: DescribedIn) -> Self {
        let mut messages: Vec<ChatMessage> = Vec::with_capacity(self.messages.len() + 1);
        let mut follows_result = false;
        for message in &self.messages {
            let is_result = message.role == "tool";
            match messages.last_mut() {
                Some(results) if is_result && follows_result => {
                    results.content = Some(format!("{}\n{}", results.text(), result(message)));
                }
                _ => messages.push(as_text(message)),
            }
            follows_result = is_result;
        }
        if !self.tools.is_empty() {
            add_description(&mut messages, &self.description(), described_in);
        }
        Self { messages, tools: Vec::new(), ..self.clone() }
    }

    fn description(&self) -> String {
        let tools: String = self.tools.iter().map(|tool| format!("{tool}\n")).collect();
        format!("{BEFORE}{tools}{AFTER}")
    }
}

fn is_system(message: &ChatMessage) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

fn add_description(messages: &mut Vec<ChatMessage>, description: &str, described_in: DescribedIn) {
    match described_in {
        DescribedIn::SystemMessage => match messages.first_mut().filter(|message| is_system(message)) {
            Some(first) => first.content = Some(format!("{}\n\n{description}", first.text())),
            None => messages.insert(0, ChatMessage::new("system", description)),
        },
        DescribedIn::UserMessage => match messages.iter_mut().find(|message| message.role == "user") {
            Some(first) => first.content = Some(format!("{description}\n\n{}", first.text())),
            None => messages.insert(0, ChatMessage::new("user", description)),
        },
    }
}

/// Returns a message whose calls are part of its content. The result of a call becomes a message of the user.
fn as_text(message: &ChatMessage) -> ChatMessage {
    if message.role == "tool" {
        return ChatMessage::new("user", result(message));
    }
    if message.tool_calls.is_empty() {
        return message.clone();
    }
    let content = Some(message.text().to_owned()).filter(|text| !text.is_empty());
    let calls = message.tool_calls.iter().map(|call| {
        let function = &call["function"];
        let (name, arguments) = (&function["name"], &function["arguments"]);
        format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
    });
    let parts: Vec<String> = content.into_iter().chain(calls).collect();
    ChatMessage { content: Some(parts.join("\n")), tool_calls: Vec::new(), ..message.clone() }
}

fn result(message: &ChatMessage) -> String {
    format!("<tool_response>\n{}\n</tool_response>", message.text())
}
