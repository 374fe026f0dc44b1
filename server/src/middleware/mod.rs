//! What every request passes on its way to a handler: request ids, counting, cross-origin rules, API keys, admission.

pub(crate) mod admission;
pub(crate) mod cors;
pub(crate) mod message_form;
pub(crate) mod request_id;
pub(crate) mod track;
