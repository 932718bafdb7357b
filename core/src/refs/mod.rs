//! REFs: how a person names a snapshot. `parse` is the text alone, `resolve` what it names among what there is.

mod parse;
mod resolve;

pub use parse::reads_as_option;
pub(crate) use parse::{parse_duration, reads_as_time};
pub(crate) use resolve::Resolver;
