//! Which projects' files are trusted: a file at a path, with exactly the contents that a person has seen.
//!
//! The contents themselves are kept (they are small), so that no hash has to be good enough.

use std::path::{Path, PathBuf};

use ah_plugin_api::Result;
use serde::{Deserialize, Serialize};

use crate::home::Home;
use crate::text;
use crate::versioned::{Doc, Versioned};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Trusted {
    #[serde(default)]
    files: Vec<TrustedFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct TrustedFile {
    #[serde(with = "text::abs")]
    file: PathBuf,
    /// Hex.
    contents: String,
}

impl Versioned for Trusted {
    const VERSION: u64 = 1;
}

/// Whether a file with these contents is trusted. What cannot be read trusts nothing.
pub(super) fn is_trusted(home: &Home, file: &Path, contents: &[u8]) -> bool {
    let doc = Doc::<Trusted>::load(&home.join("trust.json")).ok().flatten();
    doc.is_some_and(|doc| doc.value.files.iter().any(|one| one.file == file && one.contents == text::hex(contents)))
}

/// Trusts a file with these contents, or with none no longer.
pub(super) fn set(home: &Home, file: &Path, contents: Option<&[u8]>) -> Result<()> {
    let path = home.join("trust.json");
    let mut doc = Doc::<Trusted>::load(&path)?.unwrap_or_else(|| Doc::new(Trusted::default()));
    doc.value.files.retain(|one| one.file != file);
    if let Some(contents) = contents {
        doc.value.files.push(TrustedFile { file: file.to_owned(), contents: text::hex(contents) });
    }
    doc.save(&path)
}
