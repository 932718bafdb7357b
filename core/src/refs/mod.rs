//! REFs: how a person names a snapshot. `parse` is the text alone, `resolve` what it names among what there is, `before` what a
//! moment means that no snapshot shows.

mod before;
mod parse;
mod resolve;

pub(crate) use before::{Before, PutBack};
pub use parse::reads_as_option;
pub(crate) use parse::{parse_duration, reads_as_time};
pub(crate) use resolve::Resolver;
