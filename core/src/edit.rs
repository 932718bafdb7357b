//! Relabelling and pinning.

use ah_plugin_api::{Durability, Error, ErrorKind, Result};

use crate::record::SnapshotRecord;
use crate::snapshot::check_label;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// What is to change.
#[derive(Debug, Clone, Default)]
pub struct EditOptions {
    /// The new label; empty: none.
    pub label: Option<String>,
    /// Pin it, or no longer.
    pub keep: Option<bool>,
}

impl Workspace {
    /// Changes a snapshot's label or pin; the answer is how it is now.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `InvalidArgument` if nothing is to change, and for what a program printed; `FailedPrecondition` if a moment has no
    /// snapshot that shows it.
    pub fn edit(&self, reference: &str, options: &EditOptions) -> Result<SnapshotRecord> {
        if options.label.is_none() && options.keep.is_none() {
            return Err(Error::new(ErrorKind::InvalidArgument, "nothing is to change")
                .with_hint("ah agent fs edit REF -m LABEL, or --keep"));
        }
        check_label(options.label.as_deref().filter(|label| !label.is_empty()))?;
        if options.keep == Some(false) {
            self.engine.refuse_to_agents("`edit --no-keep`")?;
        }
        let _stays = self.lock_stays()?;
        // As many as are asked for.
        let mut record = self.resolve_own_in(&self.state()?, &[reference.to_owned()])?.remove(0);
        let body = EventBody::Edit { snapshot: record.id.clone(), label: options.label.clone(), kept: options.keep };
        self.append(&self.writing_session(), body, Durability::Durable)?;
        if let Some(label) = &options.label {
            record.label = Some(label.clone()).filter(|label| !label.is_empty());
        }
        record.kept = options.keep.unwrap_or(record.kept);
        Ok(record)
    }
}
