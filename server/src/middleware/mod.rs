//! The layers that every request passes on its way to a handler: request ids, counting, the name of the
//! server, cross-origin rules, API keys, admission, quotas.

pub(crate) mod admission;
pub(crate) mod cors;
pub(crate) mod forwarded;
pub(crate) mod host;
pub(crate) mod message_form;
pub(crate) mod quota;
pub(crate) mod request_id;
pub(crate) mod system_one_errors;
pub(crate) mod track;
