//! Checkpoints of the mock agent's own: what was said so far, kept under an id, and gone on from without anything being done
//! again. Agents that have such a thing keep it themselves; so does this one, beside its transcripts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::start::{self, Read};

/// Keeps a transcript as it is now.
pub(super) fn keep(config: &Path, id: &str, transcript: &Path) -> Result<()> {
    let folder = folder(config, id)?;
    fs::create_dir_all(&folder)?;
    let name = transcript.file_name().context("a transcript has a name")?;
    fs::copy(transcript, folder.join(name)).with_context(|| format!("cannot keep checkpoint {id:?}"))?;
    Ok(())
}

/// What a checkpoint kept.
pub(super) fn read(config: &Path, id: &str) -> Result<Read> {
    let folder = folder(config, id)?;
    let entry = fs::read_dir(&folder).ok().and_then(|mut entries| entries.next());
    let Some(entry) = entry else { bail!("there is no checkpoint {id:?}") };
    start::read(&entry?.path())
}

fn folder(config: &Path, id: &str) -> Result<PathBuf> {
    if id.is_empty() || id.contains('/') || id.starts_with('.') {
        bail!("{id:?} cannot be a checkpoint's id");
    }
    Ok(config.join("checkpoints").join(id))
}
