//! The contract between `ah` and its snapshot providers.
//!
//! - [`Provider`] is the contract itself; start there.
//! - [`types`] and [`request`] are its nouns and its messages, declared once for all ways of travelling.
//! - [`Error`] is its error, [`Context`] what runs beside an operation, [`Place`] where it works.
//! - [`wire`] turns calls into messages and back; [`abi`] carries them into a shared library, [`ipc`] over a socket.
//! - [`sys`] is what `ah`, the helper and providers ask of the kernel alike, with `unsafe`; [`text`] what they say alike.
//!
//! Not here: finding and loading libraries (`ah-host`), and anything that a particular provider needs.

#[macro_use]
mod open_enum;

pub mod abi;
mod answers;
pub mod context;
mod error;
pub mod ipc;
mod path;
mod place;
mod provider;
pub mod request;
pub mod sys;
pub mod text;
pub mod types;
pub mod wire;

pub use context::{Context, LogLevel, Observer, Progress, Quiet};
pub use error::{Error, ErrorKind, Result};
pub use path::{FileName, RelPath, proc_path};
pub use place::{Dir, Place};
pub use provider::Provider;
pub use request::*;
pub use types::*;
pub use wire::Op;
