//! Where things lie on disk: `log` (rows that are new), `base` (all older rows), `segments` (blocks of files).
//!
//! Not here: what the rows mean (`rows`), and which version of one is seen (`state`).

pub(crate) mod base;
pub(crate) mod log;
pub(crate) mod segments;
