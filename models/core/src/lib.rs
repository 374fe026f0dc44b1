//! The rules of decoding: numbers, sampling, text assembly and the engine contract.
//!
//! Nothing here knows tensors, files or HTTP, so that each rule is tested in milliseconds with a scripted
//! model:
//!
//! * [`contract`]: the contract: what a model offers ([`contract::BatchModel`]), what a request is
//!   ([`contract::Job`] in, [`contract::Event`] out);
//! * [`decoding`]: the state machines that turn logits into the next rows: texts, beams, number searches,
//!   scores;
//! * [`numbers`]: the number grammar over token ids, distributions and their estimates, numbers in text;
//! * [`labels`]: the values of a model that writes no tokens;
//! * [`losses`]: cross entropy and Number Token Losses of a target;
//! * [`samples`]: confidence bounds of a distribution from whole answers that were sampled;
//! * [`sampling`] and [`text`]: choosing tokens, and assembling them into text with stop strings;
//! * [`failpoint`]: where tests of other packages make the operating system fail.

pub mod contract;
pub mod decoding;
pub mod failpoint;
pub mod guide;
pub mod labels;
mod logits;
pub mod losses;
mod maximum;
pub mod numbers;
mod report;
pub mod samples;
pub mod sampling;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/support/scripted.rs"]
pub mod scripted;
pub mod text;
mod token;
mod unprintable;

pub use token::{Prompt, Token};
pub use unprintable::is_unprintable;
